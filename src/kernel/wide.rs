//! The type in which each element type is reduced: f32 for floats of 16 and 8 bits, the type itself
//! for all others. Written without branches, so that the compiler vectorises it.

use crate::element::{
    Complex, DataType, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, bf16, f16,
};

/// An element type of the kernels.
pub(super) trait KernelElement: Copy {
    /// The type in which it is reduced.
    type Wide: Copy;
    fn widen(self) -> Self::Wide;
    /// Rounds to nearest, ties to even.
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! elements {
    ($($type:ty as $wide:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl KernelElement for $type {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
        }
    )*};
}

macro_rules! unchanged {
    ($($type:ty),*) => {
        elements!($($type as Self: |x| x, |x| x;)*);
    };
}

unchanged!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, Complex<f32>, Complex<f64>);
unchanged!(LocF32, LocF64, LocI32, LocI64);

elements! {
    f16 as f32: Self::to_f32_const, Self::from_f32_const;
    bf16 as f32: widen_bf16, |x| Self::from_bits((round_to_upper(x) >> 16) as u16);
    F8E4M3 as f32: Self::to_f32, Self::from_f32;
    F8E5M2 as f32: Self::to_f32, Self::from_f32;
}

#[inline(always)]
fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to bfloat16 in the upper half, to nearest even; the lower half of the result is
/// meaningless. No operation on bfloat16 gives a NaN with a lower bit set, so the addition never
/// carries out of a NaN.
#[inline(always)]
pub(super) fn round_to_upper(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1)
}

/// The bytes of one element in the type in which it is reduced.
pub(super) fn widen_bytes(dtype: DataType, bytes: [u8; 16]) -> [u8; 16] {
    let first = [bytes[0], bytes[1]];
    let wide: f32 = match dtype {
        DataType::F16 => f16::from_ne_bytes(first).widen(),
        DataType::BF16 => bf16::from_ne_bytes(first).widen(),
        DataType::F8E4M3 => F8E4M3::from_bits(bytes[0]).widen(),
        DataType::F8E5M2 => F8E5M2::from_bits(bytes[0]).widen(),
        _ => return bytes,
    };
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&wide.to_ne_bytes());
    bytes
}
