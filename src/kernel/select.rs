//! The table from type and reduction to blocks and arithmetic, for any instruction set.

use super::block::{Block, Many, One};
use super::pass::{self, Run};
use super::scalar::{self, Number, Op, Real};
use super::scaled::{self, Code, Conversions, Int8, Scaled};
use super::wide::KernelElement;
use crate::element::{
    self, BlockFormat, Complex, DataType, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, ReduceOp,
    Wire, f16,
};

/// An instruction set: its blocks, and the loops compiled for it.
pub(super) trait Isa {
    type Line<T: Lines>: Block<Lane = T::Wide>;
    type F16: Block<Lane = f32>;
    type BF16: Block<Lane = f32>;
    /// The instruction set for rare reductions. Every loop costs compile time, and wider registers
    /// gain little there.
    type Rare: Isa;
    /// The loops of a block and an operation, compiled for the instruction set. By default that is
    /// the one for which the whole program is compiled.
    fn run<B: Block, O: Op<B::Lane>>() -> Run {
        Run { pair: pass::pair::<B, O>, fold: pass::fold::<B, O> }
    }
    /// The conversions of blocks with a scale, compiled likewise.
    fn conversions<C: Code>() -> Conversions {
        Conversions { widen: scaled::widen::<C>, narrow: scaled::narrow::<C> }
    }
}

/// The portable level: one element at a time.
pub(super) struct Portable;

impl Isa for Portable {
    type Line<T: Lines> = One<T>;
    type F16 = One<f16>;
    type BF16 = One<element::bf16>;
    type Rare = Self;
}

/// A type that the compiler vectorises well.
pub(super) trait Lines: KernelElement {
    /// As many elements as fill a cache line in the type in which they are reduced.
    type Line: Block<Lane = Self::Wide>;
}

macro_rules! lines {
    ($($type:ty),*) => {$(
        impl Lines for $type {
            type Line = Many<Self, { 64 / size_of::<<Self as KernelElement>::Wide>() }>;
        }
    )*};
}

lines!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);
lines!(F8E4M3, F8E5M2, Complex<f32>, Complex<f64>);

/// A line of elements in the instruction set for rare reductions.
type Line<I, T> = <<I as Isa>::Rare as Isa>::Line<T>;

/// The loops of rarely used reductions: compiled once, one element at a time.
fn scalar_only<T: KernelElement, O: Op<T::Wide>>() -> Run {
    Portable::run::<One<T>, O>()
}

/// The arithmetic to select: a plain operation, or the sum of scaled contributions.
#[derive(Clone, Copy)]
pub(super) enum Arithmetic {
    Plain(ReduceOp),
    PreMulSum,
}

/// The kernel of one instruction set; `None` where the reduction is not defined for the form.
pub(super) fn of<I: Isa>(wire: Wire, arithmetic: Arithmetic) -> Option<Run> {
    match (wire, arithmetic) {
        (Wire::Type(dtype), Arithmetic::Plain(op)) => plain::<I>(dtype, op),
        (Wire::Type(dtype), Arithmetic::PreMulSum) => premul_sum::<I>(dtype),
        (Wire::Blocks(BlockFormat::Int8), Arithmetic::Plain(op)) => blocks::<I, Int8>(op),
        (Wire::Blocks(BlockFormat::F8E4M3), Arithmetic::Plain(op)) => blocks::<I, F8E4M3>(op),
        // Contributions are multiplied before they are rounded.
        (Wire::Blocks(_), Arithmetic::PreMulSum) => None,
    }
}

/// The conversions of one instruction set.
pub(super) fn conversions<I: Isa>(format: BlockFormat) -> Conversions {
    match format {
        BlockFormat::Int8 => I::conversions::<Int8>(),
        BlockFormat::F8E4M3 => I::conversions::<F8E4M3>(),
    }
}

/// The kernel for bfloat16 of an instruction set that has arithmetic for this type alone.
pub(super) fn bf16<I: Isa>(arithmetic: Arithmetic) -> Option<Run> {
    match arithmetic {
        Arithmetic::Plain(op) => float::<I, I::BF16, <I::Rare as Isa>::BF16>(op),
        Arithmetic::PreMulSum => Some(scaled::<I, I::BF16>()),
    }
}

fn plain<I: Isa>(dtype: DataType, op: ReduceOp) -> Option<Run> {
    match op {
        _ if !op.is_defined_for(dtype) => None,
        ReduceOp::BitAnd => Some(I::Rare::run::<Line<I, u8>, scalar::BitAnd>()),
        ReduceOp::BitOr => Some(I::Rare::run::<Line<I, u8>, scalar::BitOr>()),
        ReduceOp::BitXor => Some(I::Rare::run::<Line<I, u8>, scalar::BitXor>()),
        ReduceOp::LogicalAnd => logical::<scalar::LogicalAnd>(dtype),
        ReduceOp::LogicalOr => logical::<scalar::LogicalOr>(dtype),
        ReduceOp::LogicalXor => logical::<scalar::LogicalXor>(dtype),
        ReduceOp::MinLoc => located::<scalar::MinLoc>(dtype),
        ReduceOp::MaxLoc => located::<scalar::MaxLoc>(dtype),
        _ => match same_bits_type(dtype, op) {
            DataType::I8 => integer::<I, i8>(op),
            DataType::U8 => integer::<I, u8>(op),
            DataType::I16 => integer::<I, i16>(op),
            DataType::U16 => integer::<I, u16>(op),
            DataType::I32 => integer::<I, i32>(op),
            DataType::U32 => integer::<I, u32>(op),
            DataType::I64 => integer::<I, i64>(op),
            DataType::U64 => integer::<I, u64>(op),
            DataType::F16 => float::<I, I::F16, <I::Rare as Isa>::F16>(op),
            DataType::BF16 => float::<I, I::BF16, <I::Rare as Isa>::BF16>(op),
            DataType::F32 => float::<I, I::Line<f32>, Line<I, f32>>(op),
            DataType::F64 => float::<I, I::Line<f64>, Line<I, f64>>(op),
            DataType::F8E4M3 => float::<I::Rare, Line<I, F8E4M3>, Line<I, F8E4M3>>(op),
            DataType::F8E5M2 => float::<I::Rare, Line<I, F8E5M2>, Line<I, F8E5M2>>(op),
            DataType::C64 => Some(I::Rare::run::<Line<I, Complex<f32>>, scalar::Prod>()),
            DataType::C128 => Some(I::Rare::run::<Line<I, Complex<f64>>, scalar::Prod>()),
            DataType::LocF32 | DataType::LocF64 | DataType::LocI32 | DataType::LocI64 => None,
        },
    }
}

fn premul_sum<I: Isa>(dtype: DataType) -> Option<Run> {
    Some(match same_bits_type(dtype, ReduceOp::Prod) {
        DataType::U8 => scalar_only::<u8, scalar::PreMulSum>(),
        DataType::U16 => scalar_only::<u16, scalar::PreMulSum>(),
        DataType::U32 => scalar_only::<u32, scalar::PreMulSum>(),
        DataType::U64 => scalar_only::<u64, scalar::PreMulSum>(),
        DataType::F16 => scaled::<I, I::F16>(),
        DataType::BF16 => scaled::<I, I::BF16>(),
        DataType::F32 => scaled::<I, I::Line<f32>>(),
        DataType::F64 => scaled::<I, I::Line<f64>>(),
        DataType::F8E4M3 => scaled::<I::Rare, Line<I, F8E4M3>>(),
        DataType::F8E5M2 => scaled::<I::Rare, Line<I, F8E5M2>>(),
        DataType::C64 => scaled::<I::Rare, Line<I, Complex<f32>>>(),
        DataType::C128 => scaled::<I::Rare, Line<I, Complex<f64>>>(),
        _ => return None,
    })
}

/// A type for which the operation does the same to the same bytes, so one kernel serves both.
fn same_bits_type(dtype: DataType, op: ReduceOp) -> DataType {
    match (dtype, op) {
        (_, ReduceOp::Min | ReduceOp::Max) => dtype,
        (DataType::C64, ReduceOp::Sum | ReduceOp::Avg) => DataType::F32,
        (DataType::C128, ReduceOp::Sum | ReduceOp::Avg) => DataType::F64,
        (_, ReduceOp::Avg) => dtype,
        (DataType::I8, _) => DataType::U8,
        (DataType::I16, _) => DataType::U16,
        (DataType::I32, _) => DataType::U32,
        (DataType::I64, _) => DataType::U64,
        _ => dtype,
    }
}

/// Sums are the common case, in training and in counting. An average divides in the last reduction
/// only; min, max and prod are rare.
fn integer<I: Isa, T: Lines<Wide: Real> + KernelElement<Wide = T>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum => I::run::<I::Line<T>, scalar::Sum>(),
        ReduceOp::Prod => I::Rare::run::<Line<I, T>, scalar::Prod>(),
        ReduceOp::Min => I::Rare::run::<Line<I, T>, scalar::Min>(),
        ReduceOp::Max => I::Rare::run::<Line<I, T>, scalar::Max>(),
        ReduceOp::Avg => scalar_only::<T, scalar::Avg>(),
        _ => return None,
    })
}

/// `B` is the block of the instruction set itself, `R` the block for rare reductions.
fn float<I: Isa, B: Block<Lane: Real>, R: Block<Lane: Real>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum => I::run::<B, scalar::Sum>(),
        ReduceOp::Avg => I::run::<B, scalar::Avg>(),
        ReduceOp::Prod => I::Rare::run::<R, scalar::Prod>(),
        ReduceOp::Min => I::Rare::run::<R, scalar::Min>(),
        ReduceOp::Max => I::Rare::run::<R, scalar::Max>(),
        _ => return None,
    })
}

/// Products travel as they are.
fn blocks<I: Isa, C: Code>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum => I::run::<Scaled<C>, scalar::Sum>(),
        ReduceOp::Avg => I::run::<Scaled<C>, scalar::Avg>(),
        ReduceOp::Min => I::run::<Scaled<C>, scalar::Min>(),
        ReduceOp::Max => I::run::<Scaled<C>, scalar::Max>(),
        _ => return None,
    })
}

fn scaled<I: Isa, B: Block<Lane: Number>>() -> Run {
    I::run::<B, scalar::PreMulSum>()
}

/// Logical operations; on integers the unsigned types serve the signed ones too.
trait Logical: Op<u8> + Op<u16> + Op<u32> + Op<u64> + Op<f32> + Op<f64> {}
impl<O: Op<u8> + Op<u16> + Op<u32> + Op<u64> + Op<f32> + Op<f64>> Logical for O {}

fn logical<O: Logical>(dtype: DataType) -> Option<Run> {
    Some(match dtype {
        DataType::I8 | DataType::U8 => scalar_only::<u8, O>(),
        DataType::I16 | DataType::U16 => scalar_only::<u16, O>(),
        DataType::I32 | DataType::U32 => scalar_only::<u32, O>(),
        DataType::I64 | DataType::U64 => scalar_only::<u64, O>(),
        DataType::F16 => scalar_only::<f16, O>(),
        DataType::BF16 => scalar_only::<element::bf16, O>(),
        DataType::F32 => scalar_only::<f32, O>(),
        DataType::F64 => scalar_only::<f64, O>(),
        DataType::F8E4M3 => scalar_only::<F8E4M3, O>(),
        DataType::F8E5M2 => scalar_only::<F8E5M2, O>(),
        _ => return None,
    })
}

trait Located: Op<LocF32> + Op<LocF64> + Op<LocI32> + Op<LocI64> {}
impl<O: Op<LocF32> + Op<LocF64> + Op<LocI32> + Op<LocI64>> Located for O {}

fn located<O: Located>(dtype: DataType) -> Option<Run> {
    Some(match dtype {
        DataType::LocF32 => scalar_only::<LocF32, O>(),
        DataType::LocF64 => scalar_only::<LocF64, O>(),
        DataType::LocI32 => scalar_only::<LocI32, O>(),
        DataType::LocI64 => scalar_only::<LocI64, O>(),
        _ => return None,
    })
}
