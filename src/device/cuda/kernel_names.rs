//! The kernel for each type and reduction, as a rule for the names in `kernels/list.cuh`.
//! Reductions that do the same to the same bits share a kernel.

use crate::element::{DataType, ReduceOp};

/// A reduction, as a kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelReduction {
    Plain(ReduceOp),
    /// The sum of all contributions, each multiplied by the scalar.
    PreMulSum,
    /// A step of a ring: the sum so far, and one contribution that is multiplied and rounded first.
    PreMulStep,
}

/// The scalar parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelScalar {
    Nothing,
    /// The factor of contributions, of the buffer's type.
    Factor,
    /// The number 1 of the buffer's type, as little-endian bits.
    One(u64),
}

/// A kernel, and how many of its elements are in one element of the type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelChoice {
    pub(crate) kernel: String,
    pub(crate) elements: usize,
    pub(crate) scalar: KernelScalar,
}

/// The kernel for a type; `None` where the reduction is not defined for it.
pub(crate) fn kernel_for(dtype: DataType, wanted: KernelReduction) -> Option<KernelChoice> {
    use ReduceOp::{Avg, BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Sum};
    let (op, defined) = match wanted {
        KernelReduction::Plain(op) => (op.name(), op.is_defined_for(dtype)),
        KernelReduction::PreMulSum => ("premul_sum", Sum.is_defined_for(dtype)),
        KernelReduction::PreMulStep => ("premul_step", Sum.is_defined_for(dtype)),
    };
    let (kind, elements) = match (wanted, dtype) {
        (KernelReduction::Plain(BitAnd | BitOr | BitXor), _) => ("u8", dtype.size()),
        (KernelReduction::Plain(LogicalAnd | LogicalOr | LogicalXor), _) => (unsigned(dtype), 1),
        (KernelReduction::Plain(Sum | Avg), DataType::C64) => ("f32", 2),
        (KernelReduction::Plain(Sum | Avg), DataType::C128) => ("f64", 2),
        (KernelReduction::Plain(Avg | Min | Max), _) => (name(dtype), 1),
        (_, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64) => (unsigned(dtype), 1),
        _ => (name(dtype), 1),
    };
    let scalar = match wanted {
        KernelReduction::Plain(LogicalAnd | LogicalOr | LogicalXor) => {
            KernelScalar::One(one(dtype))
        }
        KernelReduction::Plain(_) => KernelScalar::Nothing,
        _ => KernelScalar::Factor,
    };
    defined.then(|| KernelChoice { kernel: format!("rr_fold_{kind}_{op}"), elements, scalar })
}

/// The unsigned integer of the same size.
fn unsigned(dtype: DataType) -> &'static str {
    match dtype.size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// The bits of 1, which is true, in a type that has truth values.
fn one(dtype: DataType) -> u64 {
    match dtype {
        DataType::F16 => 0x3c00,
        DataType::BF16 => 0x3f80,
        DataType::F32 => 0x3f80_0000,
        DataType::F64 => 0x3ff0_0000_0000_0000,
        DataType::F8E4M3 => 0x38,
        DataType::F8E5M2 => 0x3c,
        _ => 1,
    }
}

/// The types in kernels' names, in the order of [`DataType::ALL`].
const NAMES: [&str; DataType::ALL.len()] = [
    "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "e4m3",
    "e5m2", "c64", "c128", "loc_f32", "loc_f64", "loc_i32", "loc_i64",
];

fn name(dtype: DataType) -> &'static str {
    NAMES[dtype as usize]
}
