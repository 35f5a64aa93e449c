//! The 8-bit floats of the Open Compute Project (OFP8 1.0): e4m3, without infinities, and e5m2.
//! Conversions have no branches, so that the compiler vectorises them.
//! Law: a value is rounded once, to nearest, ties to even; one too large becomes the largest.

use core::cmp::Ordering;
use core::fmt;
use core::ops::Neg;

use bytemuck::{Pod, Zeroable};

macro_rules! floats {
    ($($(#[$doc:meta])* $float:ident: $format:ident, $widen:path, $nan:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Zeroable, Pod)]
        #[repr(transparent)]
        pub struct $float(u8);

        impl $float {
            /// The largest number.
            pub const MAX: Self = Self($format.largest as u8);
            /// Not a number.
            pub const NAN: Self = Self($format.nan as u8);

            /// The number with these bits: sign, exponent, mantissa.
            #[must_use]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bits of the number: sign, exponent, mantissa.
            #[must_use]
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest number, ties to even. Infinity and values too large become the largest
            /// number of their sign, as in CUDA's saturating conversions; NaN stays NaN.
            #[inline(always)]
            #[must_use]
            pub fn from_f32(x: f32) -> Self {
                Self(narrow(x, &$format))
            }

            /// The number as an `f32`, which has all values of this type.
            #[inline(always)]
            #[must_use]
            pub fn to_f32(self) -> f32 {
                $widen(self.0)
            }

            /// True if it is NaN.
            #[must_use]
            pub const fn is_nan(self) -> bool {
                self.0 & 0x7f > $nan
            }
        }

        impl PartialEq for $float {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $float {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl Neg for $float {
            type Output = Self;
            fn neg(self) -> Self {
                Self(self.0 ^ 0x80)
            }
        }

        impl fmt::Debug for $float {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Display for $float {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    )*};
}

floats! {
    /// 8-bit float with 4 bits of exponent and 3 of mantissa: magnitudes from 2^-9 to 448, no
    /// infinities, one NaN.
    F8E4M3: E4M3, widen_e4m3, 0x7e;
    /// 8-bit float with 5 bits of exponent and 2 of mantissa: magnitudes from 2^-16 to 57,344, with
    /// infinities and NaN.
    F8E5M2: E5M2, widen_e5m2, 0x7c;
}

/// The parameters of an 8-bit float.
struct Format {
    /// Bits of an f32's mantissa that the format lacks.
    shift: u32,
    /// Difference between the exponent biases of an f32 and the format.
    bias: u32,
    /// The bits of the largest number, and of NaN.
    largest: u32,
    nan: u32,
}

const E4M3: Format = Format { shift: 20, bias: 120, largest: 0x7e, nan: 0x7f };
const E5M2: Format = Format { shift: 21, bias: 112, largest: 0x7b, nan: 0x7f };

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;

/// Rounds to the format; a value too large, or infinity, becomes the largest number.
#[inline(always)]
fn narrow(x: f32, format: &Format) -> u8 {
    let Format { shift, bias, largest, nan } = *format;
    let magnitude = x.to_bits() & !SIGN;
    let rounded = magnitude + ((1 << (shift - 1)) - 1) + ((magnitude >> shift) & 1);
    let normal = (rounded >> shift).wrapping_sub(bias << (23 - shift)).min(largest);
    // The sum with this power of two has the unit of the format's subnormals: it rounds to them.
    let unit = f32::from_bits((bias + 1 + shift) << 23);
    let subnormal = (f32::from_bits(magnitude) + unit).to_bits().wrapping_sub(unit.to_bits());
    let is_subnormal = magnitude < (bias + 1) << 23;
    let finite = if is_subnormal { subnormal } else { normal };
    let bits = if magnitude > INFINITY { nan } else { finite };
    (bits | (x.to_bits() & SIGN) >> 24) as u8
}

/// Widens a finite number.
#[inline(always)]
fn widen(bits: u32, format: &Format) -> u32 {
    let Format { shift, bias, .. } = *format;
    let magnitude = (bits & 0x7f) << shift;
    let normal = magnitude + (bias << 23);
    // A subnormal is widened as if it had a leading one, which is then subtracted.
    let one = (bias + 1) << 23;
    let subnormal = (f32::from_bits(magnitude + one) - f32::from_bits(one)).to_bits();
    if magnitude < 1 << 23 { subnormal } else { normal }
}

#[inline(always)]
fn widen_e4m3(bits: u8) -> f32 {
    let bits = u32::from(bits);
    let magnitude = if bits & 0x7f == 0x7f { f32::NAN.to_bits() } else { widen(bits, &E4M3) };
    f32::from_bits(magnitude | (bits & 0x80) << 24)
}

#[inline(always)]
fn widen_e5m2(bits: u8) -> f32 {
    let bits = u32::from(bits);
    // The bits of infinity become infinity with a full exponent; NaN keeps a bit of its mantissa.
    let special = INFINITY | (bits & 3) << 21;
    let magnitude = if bits & 0x7c == 0x7c { special } else { widen(bits, &E5M2) };
    f32::from_bits(magnitude | (bits & 0x80) << 24)
}
