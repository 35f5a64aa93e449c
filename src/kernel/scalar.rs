//! The arithmetic of one element: what every kernel must equal (NaN payloads aside). An element at
//! a time it is also the portable kernel and the oracle of the tests.
//! May touch: element. Written without branches where a compiler should make vectors of it.

use super::generic::{Block, Isa, Many, One, Run, reduce};
use crate::element::{bf16, f16};

/// The portable level: one element at a time.
pub(super) struct Scalar;

impl Isa for Scalar {
    type Line<T: Lines> = One<T>;
    type F16 = One<f16>;
    type BF16 = One<bf16>;
    fn run<B: Block, O: Op>() -> Run {
        reduce::<B, O>
    }
}

/// A type that the operations know.
pub(super) trait Element: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// The sum over the world size.
    fn avg(self, other: Self, world: u64) -> Self;
}

/// An operation as a type, so that every loop is compiled for one.
pub(super) trait Op {
    fn apply<T: Element>(a: T, b: T, world: u64) -> T;
}

macro_rules! ops {
    ($($op:ident: |$a:ident, $b:ident, $world:ident| $apply:expr;)*) => {$(
        pub(super) struct $op;
        impl Op for $op {
            #[inline(always)]
            fn apply<T: Element>($a: T, $b: T, $world: u64) -> T {
                $apply
            }
        }
    )*};
}

ops! {
    Sum: |a, b, _world| a.sum(b);
    Prod: |a, b, _world| a.prod(b);
    Min: |a, b, _world| a.min(b);
    Max: |a, b, _world| a.max(b);
    Avg: |a, b, world| a.avg(b, world);
}

/// A type whose elements the compiler makes good vectors of.
pub(super) trait Lines: Element {
    /// A cache line of them, 64 bytes.
    type Line: Block;
}

macro_rules! lines {
    ($($type:ty),*) => {$(
        impl Lines for $type {
            type Line = Many<Self, { 64 / size_of::<Self>() }>;
        }
    )*};
}

lines!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);

macro_rules! integers {
    ($($int:ident: |$sum:ident, $world:ident| $avg:expr;)*) => {$(
        impl Element for $int {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn avg(self, other: Self, $world: u64) -> Self {
                let $sum = self.wrapping_add(other);
                $avg
            }
        }
    )*};
}

/// The truncated quotient by way of a float that holds every sum exactly: a quotient that is no
/// whole number lies further from the next one than the float rounds.
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
        impl Element for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
            /// The two orders of the machine's own minimum differ for zeros and NaN only: their
            /// union is -0 if either is, and a NaN if either is.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let less = |a: Self, b: Self| if a < b { a } else { b };
                Self::from_bits(less(self, other).to_bits() | less(other, self).to_bits())
            }
            /// Likewise: the intersection is +0 if either is.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let more = |a: Self, b: Self| if a > b { a } else { b };
                let both = more(self, other).to_bits() & more(other, self).to_bits();
                if self.is_nan() | other.is_nan() { Self::NAN } else { Self::from_bits(both) }
            }
            #[inline(always)]
            fn avg(self, other: Self, world: u64) -> Self {
                (self + other) / world as Self
            }
        }
    )*};
}

floats!(f32, f64);

#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
fn narrow(x: f32) -> bf16 {
    bf16::from_bits((round_to_upper(x) >> 16) as u16)
}

/// Rounds to the upper half, nearest even; what the lower half then holds means nothing. No
/// operation on bfloat16 gives a NaN with a bit set below, so none carries out of its NaN.
#[inline(always)]
pub(super) fn round_to_upper(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1)
}

/// 16-bit floats: as f32, rounded once.
macro_rules! half_floats {
    ($($half:ident: $widen:path, $narrow:path;)*) => {$(
        impl Element for $half {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $narrow($widen(self).sum($widen(other)))
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                $narrow($widen(self).prod($widen(other)))
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                $narrow(Element::min($widen(self), $widen(other)))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $narrow(Element::max($widen(self), $widen(other)))
            }
            #[inline(always)]
            fn avg(self, other: Self, world: u64) -> Self {
                $narrow($widen(self).avg($widen(other), world))
            }
        }
    )*};
}

half_floats! {
    f16: f16::to_f32_const, f16::from_f32_const;
    bf16: widen, narrow;
}
