//! Which blocks and which arithmetic do the work of each type and reduction, for any instruction
//! set. May touch: block, pass, scalar, element.

use super::block::{Block, Many, One};
use super::pass::{self, Run, RunFold, RunPair};
use super::scalar::{self, Number, Op, Real};
use super::wide::Element;
use crate::element::{
    self, Complex, DataType, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, ReduceOp, f16,
};

/// An instruction set: its blocks, and the loops compiled for it.
pub(super) trait Isa {
    type Line<T: Lines>: Block<Lane = T::Wide>;
    type F16: Block<Lane = f32>;
    type BF16: Block<Lane = f32>;
    fn pair<B: Block, O: Op<B::Lane>>() -> RunPair;
    fn fold<B: Block, O: Op<B::Lane>>() -> RunFold;
}

/// The portable level: one element at a time.
pub(super) struct Portable;

impl Isa for Portable {
    type Line<T: Lines> = One<T>;
    type F16 = One<f16>;
    type BF16 = One<element::bf16>;
    fn pair<B: Block, O: Op<B::Lane>>() -> RunPair {
        pass::pair::<B, O>
    }
    fn fold<B: Block, O: Op<B::Lane>>() -> RunFold {
        pass::fold::<B, O>
    }
}

/// A type whose elements the compiler makes good vectors of.
pub(super) trait Lines: Element {
    /// As many of them as are a cache line when they are reduced.
    type Line: Block<Lane = Self::Wide>;
}

macro_rules! lines {
    ($($type:ty),*) => {$(
        impl Lines for $type {
            type Line = Many<Self, { 64 / size_of::<<Self as Element>::Wide>() }>;
        }
    )*};
}

lines!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);
lines!(F8E4M3, F8E5M2, Complex<f32>, Complex<f64>);

fn run<I: Isa, B: Block, O: Op<B::Lane>>() -> Run {
    Run { pair: I::pair::<B, O>(), fold: I::fold::<B, O>() }
}

/// What is asked of the arithmetic: a plain operation, or the sum of scaled contributions.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Plain(ReduceOp),
    PreMulSum,
}

/// The kernel of one instruction set; `None` where the reduction is not defined for the type.
pub(super) fn of<I: Isa>(dtype: DataType, wanted: Wanted) -> Option<Run> {
    match wanted {
        Wanted::Plain(op) => plain::<I>(dtype, op),
        Wanted::PreMulSum => premul_sum::<I>(dtype),
    }
}

/// The same for bfloat16 alone, which has an instruction set of its own.
pub(super) fn bf16<I: Isa>(wanted: Wanted) -> Option<Run> {
    match wanted {
        Wanted::Plain(op) => real::<I, I::BF16>(op),
        Wanted::PreMulSum => Some(scaled::<I, I::BF16>()),
    }
}

fn plain<I: Isa>(dtype: DataType, op: ReduceOp) -> Option<Run> {
    match op {
        _ if !op.is_defined_for(dtype) => None,
        ReduceOp::BitAnd => Some(run::<I, I::Line<u8>, scalar::BitAnd>()),
        ReduceOp::BitOr => Some(run::<I, I::Line<u8>, scalar::BitOr>()),
        ReduceOp::BitXor => Some(run::<I, I::Line<u8>, scalar::BitXor>()),
        _ => match with_the_same_bits(dtype, op) {
            DataType::I8 => signed::<I, I::Line<i8>>(op),
            DataType::U8 => real::<I, I::Line<u8>>(op),
            DataType::I16 => signed::<I, I::Line<i16>>(op),
            DataType::U16 => real::<I, I::Line<u16>>(op),
            DataType::I32 => signed::<I, I::Line<i32>>(op),
            DataType::U32 => real::<I, I::Line<u32>>(op),
            DataType::I64 => signed::<I, I::Line<i64>>(op),
            DataType::U64 => real::<I, I::Line<u64>>(op),
            DataType::F16 => real::<I, I::F16>(op),
            DataType::BF16 => real::<I, I::BF16>(op),
            DataType::F32 => real::<I, I::Line<f32>>(op),
            DataType::F64 => real::<I, I::Line<f64>>(op),
            DataType::F8E4M3 => real::<I, I::Line<F8E4M3>>(op),
            DataType::F8E5M2 => real::<I, I::Line<F8E5M2>>(op),
            DataType::C64 => Some(run::<I, I::Line<Complex<f32>>, scalar::Prod>()),
            DataType::C128 => Some(run::<I, I::Line<Complex<f64>>, scalar::Prod>()),
            DataType::LocF32 => located::<I, One<LocF32>>(op),
            DataType::LocF64 => located::<I, One<LocF64>>(op),
            DataType::LocI32 => located::<I, One<LocI32>>(op),
            DataType::LocI64 => located::<I, One<LocI64>>(op),
        },
    }
}

fn premul_sum<I: Isa>(dtype: DataType) -> Option<Run> {
    Some(match with_the_same_bits(dtype, ReduceOp::Prod) {
        DataType::U8 => scaled::<I, I::Line<u8>>(),
        DataType::U16 => scaled::<I, I::Line<u16>>(),
        DataType::U32 => scaled::<I, I::Line<u32>>(),
        DataType::U64 => scaled::<I, I::Line<u64>>(),
        DataType::F16 => scaled::<I, I::F16>(),
        DataType::BF16 => scaled::<I, I::BF16>(),
        DataType::F32 => scaled::<I, I::Line<f32>>(),
        DataType::F64 => scaled::<I, I::Line<f64>>(),
        DataType::F8E4M3 => scaled::<I, I::Line<F8E4M3>>(),
        DataType::F8E5M2 => scaled::<I, I::Line<F8E5M2>>(),
        DataType::C64 => scaled::<I, I::Line<Complex<f32>>>(),
        DataType::C128 => scaled::<I, I::Line<Complex<f64>>>(),
        _ => return None,
    })
}

/// A type for which the operation does the same to the same bytes, so that one kernel serves both.
fn with_the_same_bits(dtype: DataType, op: ReduceOp) -> DataType {
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

/// What the sign of integers makes a difference to.
fn signed<I: Isa, B: Block<Lane: Real>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Min => run::<I, B, scalar::Min>(),
        ReduceOp::Max => run::<I, B, scalar::Max>(),
        ReduceOp::Avg => run::<I, B, scalar::Avg>(),
        _ => return None,
    })
}

fn real<I: Isa, B: Block<Lane: Real>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::Sum => run::<I, B, scalar::Sum>(),
        ReduceOp::Prod => run::<I, B, scalar::Prod>(),
        // One by one: nobody waits for these.
        ReduceOp::LogicalAnd => run::<I, B::Single, scalar::LogicalAnd>(),
        ReduceOp::LogicalOr => run::<I, B::Single, scalar::LogicalOr>(),
        ReduceOp::LogicalXor => run::<I, B::Single, scalar::LogicalXor>(),
        _ => return signed::<I, B>(op),
    })
}

fn scaled<I: Isa, B: Block<Lane: Number>>() -> Run {
    run::<I, B, scalar::PreMulSum>()
}

fn located<I: Isa, B: Block<Lane: scalar::Located>>(op: ReduceOp) -> Option<Run> {
    Some(match op {
        ReduceOp::MinLoc => run::<I, B, scalar::MinLoc>(),
        ReduceOp::MaxLoc => run::<I, B, scalar::MaxLoc>(),
        _ => return None,
    })
}
