//! Element types and reductions: the content of a buffer, and how two elements combine.
//!
//! One table says which reduction is defined for which type, [`ReduceOp::is_defined_for`];
//! docs/numerics.md says which bits each gives. A table in ARCHITECTURE.md lists the files that a
//! new element type or reduction touches.

mod float8;
mod loc;
mod names;
mod reduction;
mod wire;

pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use loc::{LocF32, LocF64, LocI32, LocI64};
pub use names::UnknownName;
pub(crate) use names::{by_name, named};
pub use num_complex::Complex;
pub(crate) use reduction::ReductionKind;
pub use reduction::{LARGEST, Order, ReduceOp, Reduction};
pub use wire::{BlockFormat, Wire};

/// Classes of types, by the reductions that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Complex,
    Loc,
}

mod sealed {
    /// Restricts [`Element`](super::Element) to the types that kernels know.
    #[allow(unnameable_types, reason = "a sealed trait cannot be named: that is its point")]
    pub trait Sealed {}
}

/// A Rust type whose slices can be passed to collectives.
pub trait Element: bytemuck::Pod + sealed::Sealed + Send + Sync {
    /// The type as a value.
    const DTYPE: DataType;
}

macro_rules! data_types {
    ($($(#[$doc:meta])* $dtype:ident: $rust:ty, $class:ident, $name:literal;)*) => {
        /// The type of a buffer's elements, as a value, for callers that know it only at run time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DataType {
            $($(#[$doc])* $dtype,)*
        }

        impl DataType {
            /// All types, in the order of their discriminants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$dtype),*];

            /// Bytes of one element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => size_of::<$rust>(),)*
                }
            }

            /// The name of the type, by nccl-tests (`float`, `int8`, `half`, ...) where it has it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$dtype => $name,)*
                }
            }

            const fn class(self) -> Class {
                match self {
                    $(Self::$dtype => Class::$class,)*
                }
            }
        }

        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: DataType = DataType::$dtype;
            }
        )*
    };
}

data_types! {
    /// 8-bit signed integer.
    I8: i8, Integer, "int8";
    /// 8-bit unsigned integer.
    U8: u8, Integer, "uint8";
    /// 16-bit signed integer.
    I16: i16, Integer, "int16";
    /// 16-bit unsigned integer.
    U16: u16, Integer, "uint16";
    /// 32-bit signed integer.
    I32: i32, Integer, "int32";
    /// 32-bit unsigned integer.
    U32: u32, Integer, "uint32";
    /// 64-bit signed integer.
    I64: i64, Integer, "int64";
    /// 64-bit unsigned integer.
    U64: u64, Integer, "uint64";
    /// IEEE 754 binary16.
    F16: f16, Float, "half";
    /// bfloat16: the upper half of a binary32.
    BF16: bf16, Float, "bfloat16";
    /// IEEE 754 binary32.
    F32: f32, Float, "float";
    /// IEEE 754 binary64.
    F64: f64, Float, "double";
    /// OCP 8-bit float with 4 bits of exponent and 3 of mantissa: no infinities, up to 448.
    F8E4M3: F8E4M3, Float, "f8e4m3";
    /// OCP 8-bit float with 5 bits of exponent and 2 of mantissa: up to 57,344.
    F8E5M2: F8E5M2, Float, "f8e5m2";
    /// Complex number of two binary32, the real part first.
    C64: Complex<f32>, Complex, "complex64";
    /// Complex number of two binary64, the real part first.
    C128: Complex<f64>, Complex, "complex128";
    /// A binary32 and its index.
    LocF32: LocF32, Loc, "float_loc";
    /// A binary64 and its index.
    LocF64: LocF64, Loc, "double_loc";
    /// A 32-bit signed integer and its index.
    LocI32: LocI32, Loc, "int32_loc";
    /// A 64-bit signed integer and its index.
    LocI64: LocI64, Loc, "int64_loc";
}

impl DataType {
    /// True for a float of 16 or 8 bits, which is reduced as f32.
    #[must_use]
    pub const fn is_narrow_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F8E4M3 | Self::F8E5M2)
    }
}
