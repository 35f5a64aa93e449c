//! Blocks of numbers that share a scale: each is as many bytes as numbers, after an f32 that they
//! are multiples of. A block is reduced as f32 and rounded once.
//! Law: a block that is widened and rounded again has the same bits, so data that is unchanged
//! stays so. A number that is not finite becomes NaN, and leaves the others of its block as they
//! are.

use core::marker::PhantomData;

use super::Params;
use super::block::{Block, One, item_by_item};
use super::scalar::Op;
use crate::element::{BlockFormat, F8E4M3};

const LEN: usize = BlockFormat::LEN;
const BYTES: usize = BlockFormat::BYTES;

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
/// The bits of the least scale, 2^-126, whose reciprocal is finite. Without a larger number a block
/// has this scale.
const LEAST_SCALE: u32 = 1 << 23;

/// The meaning of a block's bytes.
pub(super) trait Code: Copy {
    /// The scale of a block whose largest finite magnitude has these bits.
    fn scale(largest: u32) -> f32;
    /// The code of a number that was divided by the scale, to nearest, ties to even.
    fn encode(x: f32) -> u8;
    /// The number that is multiplied by the scale.
    fn decode(code: u8) -> f32;
}

/// Integers from -127 to 127; -128 is NaN.
#[derive(Clone, Copy)]
pub(super) struct Int8;

impl Code for Int8 {
    /// A 127th of the largest number, rounded to 17 bits: each multiple by an integer of 7 bits is
    /// then an f32, the largest number is 127 times the scale, and a 127th of that is the scale.
    #[inline(always)]
    fn scale(largest: u32) -> f32 {
        // 127 times the largest scale is finite.
        const LARGEST_SCALE: u32 = (f32::MAX / 127.0).to_bits() & !0x7f;
        let scale = (f32::from_bits(largest) / 127.0).to_bits();
        let rounded = (scale + 0x3f + (scale >> 7 & 1)) & !0x7f;
        f32::from_bits(rounded.clamp(LEAST_SCALE, LARGEST_SCALE))
    }

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        // In the sum with 3 x 2^22 the unit in the last place is 1, so the lowest byte is the
        // integer.
        let rounded = (x + 12_582_912.0).to_bits() as u8;
        if x.to_bits() & !SIGN < INFINITY { rounded } else { 0x80 }
    }

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        if code == 0x80 { f32::NAN } else { f32::from(code.cast_signed()) }
    }
}

impl Code for F8E4M3 {
    /// A power of two by which the largest number becomes 232 to 464, which is rounded to 240 to
    /// 448: a number from 240 to 448 has the same scale again.
    #[inline(always)]
    fn scale(largest: u32) -> f32 {
        // The exponent is one more for mantissas above 464 / 256. The largest scale is 2^119, so
        // that no product overflows.
        let exponent = (largest + 0x17_ffff) >> 23;
        f32::from_bits((exponent.clamp(9, 254) - 8) << 23)
    }

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        let is_finite = x.to_bits() & !SIGN < INFINITY;
        if is_finite { Self::from_f32(x) } else { Self::NAN }.to_bits()
    }

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        Self::from_bits(code).to_f32()
    }
}

/// The bytes of a block.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Scaled<C>([u8; BYTES], PhantomData<C>);

impl<C: Code> Block for Scaled<C> {
    type Lane = f32;
    type Wide = [f32; LEN];
    type Single = Self;

    #[inline(always)]
    fn widen(self) -> Self::Wide {
        let [a, b, c, d, ref codes @ ..] = self.0;
        let scale = f32::from_ne_bytes([a, b, c, d]);
        let mut wide = [0.0; LEN];
        for (x, &code) in wide.iter_mut().zip(codes) {
            *x = C::decode(code) * scale;
        }
        wide
    }

    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        let mut largest = 0;
        for x in &wide {
            let magnitude = x.to_bits() & !SIGN;
            // Signed integers, because more instruction sets have their maximum.
            let finite = if magnitude < INFINITY { magnitude.cast_signed() } else { 0 };
            largest = if finite > largest { finite } else { largest };
        }
        let scale = C::scale(largest.cast_unsigned());
        let factor = 1.0 / scale;
        let mut bytes = [0; BYTES];
        let (first, codes) = bytes.split_at_mut(BYTES - LEN);
        first.copy_from_slice(&scale.to_ne_bytes());
        for (code, &x) in codes.iter_mut().zip(&wide) {
            *code = C::encode(x * factor);
        }
        Self(bytes, PhantomData)
    }

    item_by_item!(One<f32>);
}

/// Conversions between f32 and blocks, compiled for one instruction set: of all whole blocks.
///
/// # Safety
/// For both: the CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Conversions {
    pub(super) widen: unsafe fn(&[u8], &mut [f32]),
    pub(super) narrow: unsafe fn(&[f32], &mut [u8]),
}

#[inline(always)]
pub(super) fn widen<C: Code>(from: &[u8], to: &mut [f32]) {
    for (block, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = Scaled::<C>(*block, PhantomData).widen();
    }
}

#[inline(always)]
pub(super) fn narrow<C: Code>(from: &[f32], to: &mut [u8]) {
    for (from, block) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *block = Scaled::<C>::narrow(*from).0;
    }
}

#[cfg(test)]
mod tests;
