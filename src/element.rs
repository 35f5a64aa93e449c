//! Element types and reduction operations: what a buffer is made of and how two of them combine.
//! May touch: nothing but `core`, `half` and `bytemuck`. Pure.

use core::fmt;
use core::str::FromStr;

pub use half::{bf16, f16};

/// The type of one element of a buffer, as data (for callers that know it only at run time).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// 8-bit signed integer.
    I8 = 0,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit signed integer.
    I16,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl DataType {
    /// Every type, in the order of its discriminant.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The name nccl-tests prints and takes (`float`, `int8`, `half`, ...).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::U16 => "uint16",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F16 => "half",
            Self::BF16 => "bfloat16",
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }
}

/// How two elements combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum = 0,
    /// a * b; integers wrap.
    Prod,
    /// The smaller; a NaN on either side gives NaN.
    Min,
    /// The larger; a NaN on either side gives NaN.
    Max,
    /// The sum divided by the world size; integers wrap in the sum, then truncate towards zero.
    Avg,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// The name nccl-tests prints and takes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }
}

/// A name that is no [`DataType`], [`ReduceOp`] or [`Algorithm`](crate::schedule::Algorithm).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`: one of {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

pub(crate) fn by_name<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|&x| name_of(x) == name).ok_or_else(|| UnknownName {
        kind,
        name: name.into(),
        known: all.iter().map(|&x| name_of(x)).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for DataType {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("data type", &Self::ALL, Self::name, name)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("reduction", &Self::ALL, Self::name, name)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    /// Only types that the kernels know may be elements.
    #[allow(unnameable_types, reason = "a sealed trait cannot be named: that is its point")]
    pub trait Sealed {}
}

/// A Rust type whose slices the collectives take.
pub trait Element: bytemuck::Pod + sealed::Sealed + Send + Sync {
    /// The same type as data.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

elements! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}
