//! The arithmetic of one element: the definition that every kernel must equal (NaN payloads aside),
//! and the portable kernel. It has no branches where a compiler should vectorise it.

use bytemuck::Pod;

use super::Params;
use crate::element::{Complex, LocF32, LocF64, LocI32, LocI64};

/// An operation as a type, so that each loop is compiled for one operation.
pub(super) trait Op<T> {
    /// True if `prepare` changes a contribution.
    const PREPARES: bool = false;
    /// Applied to each contribution first.
    #[inline(always)]
    fn prepare(a: T, _: &Params) -> T {
        a
    }
    fn combine(a: T, b: T) -> T;
    /// Applied to the result of all contributions.
    #[inline(always)]
    fn finish(a: T, _: &Params) -> T {
        a
    }
}

/// Numbers that can be added and multiplied.
pub(super) trait Number: Pod {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
}

/// Numbers that can be ordered, divided by the world size, and read as a truth value.
pub(super) trait Real: Number {
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn divided_by(self, world: u64) -> Self;
    fn is_true(self) -> bool;
    fn from_bool(truth: bool) -> Self;
}

/// Values with an index.
pub(super) trait Located: Copy {
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

macro_rules! ops {
    ($($op:ident<$bound:path>: |$a:ident, $b:ident| $combine:expr;)*) => {$(
        pub(super) struct $op;
        impl<T: $bound> Op<T> for $op {
            #[inline(always)]
            fn combine($a: T, $b: T) -> T {
                $combine
            }
        }
    )*};
}

ops! {
    Sum<Number>: |a, b| a.sum(b);
    Prod<Number>: |a, b| a.prod(b);
    Min<Real>: |a, b| a.min(b);
    Max<Real>: |a, b| a.max(b);
    MinLoc<Located>: |a, b| a.min(b);
    MaxLoc<Located>: |a, b| a.max(b);
}

pub(super) struct Avg;
impl<T: Real> Op<T> for Avg {
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        a.sum(b)
    }
    #[inline(always)]
    fn finish(a: T, params: &Params) -> T {
        a.divided_by(params.world)
    }
}

pub(super) struct PreMulSum;
impl<T: Number> Op<T> for PreMulSum {
    const PREPARES: bool = true;
    #[inline(always)]
    fn prepare(a: T, params: &Params) -> T {
        a.prod(bytemuck::pod_read_unaligned(&params.scalar[..size_of::<T>()]))
    }
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        a.sum(b)
    }
}

/// Bitwise operations on integers, done byte by byte.
macro_rules! bit_ops {
    ($($op:ident: $by:tt;)*) => {$(
        pub(super) struct $op;
        impl Op<u8> for $op {
            #[inline(always)]
            fn combine(a: u8, b: u8) -> u8 {
                a $by b
            }
        }
    )*};
}

bit_ops! { BitAnd: &; BitOr: |; BitXor: ^; }

macro_rules! logical_ops {
    ($($op:ident: $by:tt;)*) => {$(
        pub(super) struct $op;
        impl<T: Real> Op<T> for $op {
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                T::from_bool(a.is_true() $by b.is_true())
            }
            /// The result of a single contribution is a truth value too.
            #[inline(always)]
            fn finish(a: T, _: &Params) -> T {
                T::from_bool(a.is_true())
            }
        }
    )*};
}

logical_ops! { LogicalAnd: &; LogicalOr: |; LogicalXor: ^; }

macro_rules! integers {
    ($($int:ident: |$sum:ident, $world:ident| $over:expr;)*) => {$(
        impl Number for $int {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
        impl Real for $int {
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn divided_by(self, $world: u64) -> Self {
                let $sum = self;
                $over
            }
            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0
            }
            #[inline(always)]
            fn from_bool(truth: bool) -> Self {
                truth.into()
            }
        }
    )*};
}

/// The truncated quotient, computed in a float type that represents every sum exactly: a quotient
/// that is no integer is further from the next integer than the float's rounding error.
macro_rules! by_float {
    ($sum:ident / $world:ident in $float:ident) => {{
        let quotient = $sum as $float / $world as $float;
        // SAFETY: finite, and no larger than the sum was: the world is one rank or more.
        unsafe { quotient.to_int_unchecked() }
    }};
}

integers! {
    i8: |sum, world| by_float!(sum / world in f32);
    u8: |sum, world| by_float!(sum / world in f32);
    i16: |sum, world| by_float!(sum / world in f32);
    u16: |sum, world| by_float!(sum / world in f32);
    i32: |sum, world| by_float!(sum / world in f64);
    u32: |sum, world| by_float!(sum / world in f64);
    i64: |sum, world| sum / world as Self;
    u64: |sum, world| sum / world;
}

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
        }
        impl Real for $float {
            /// The two operand orders of the machine's minimum differ for zeros and NaN only. The
            /// bitwise OR of both is -0 if either operand is -0, and NaN if either is NaN.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let less = |a: Self, b: Self| if a < b { a } else { b };
                Self::from_bits(less(self, other).to_bits() | less(other, self).to_bits())
            }
            /// Likewise for the maximum: the bitwise AND is +0 if either operand is +0; NaN is
            /// handled apart.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let more = |a: Self, b: Self| if a > b { a } else { b };
                let both = more(self, other).to_bits() & more(other, self).to_bits();
                if self.is_nan() | other.is_nan() { Self::NAN } else { Self::from_bits(both) }
            }
            #[inline(always)]
            fn divided_by(self, world: u64) -> Self {
                self / world as Self
            }
            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0.0
            }
            #[inline(always)]
            fn from_bool(truth: bool) -> Self {
                u8::from(truth).into()
            }
        }
        impl Number for Complex<$float> {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            /// By the definition of the product, without C's Annex G rules for infinities.
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
        }
    )*};
}

floats!(f32, f64);

/// NaN precedes every number; then the value decides, then the lower index. Two elements equal in
/// all of this may differ in bits (-0 and +0, NaN payloads); the lesser bits are taken.
macro_rules! located {
    ($($loc:ident: $bits:ty, $is_nan:expr;)*) => {$(
        impl $loc {
            #[inline(always)]
            fn choose(self, other: Self, less: bool, more: bool) -> Self {
                let is_nan: fn($loc) -> bool = $is_nan;
                let bits = |a: Self| bytemuck::cast::<_, $bits>(a.value);
                let mine = match (is_nan(self), is_nan(other)) {
                    (true, false) => true,
                    (false, true) => false,
                    (false, false) if less != more => less,
                    _ => (self.index, bits(self)) <= (other.index, bits(other)),
                };
                if mine { self } else { other }
            }
        }
        impl Located for $loc {
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                self.choose(other, self.value < other.value, self.value > other.value)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                self.choose(other, self.value > other.value, self.value < other.value)
            }
        }
    )*};
}

located! {
    LocF32: u32, |a| a.value.is_nan();
    LocF64: u64, |a| a.value.is_nan();
    LocI32: u32, |_| false;
    LocI64: u64, |_| false;
}
