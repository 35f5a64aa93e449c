//! Conversion between f32 and the forms in which contributions travel or lie in their buffers.
//! Law: every value is rounded once, to nearest even; NaN stays NaN.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;

use super::copy::copy;
use super::level::Level;
use crate::element::{BlockFormat, DataType, F8E4M3, F8E5M2, Wire, bf16, f16};
use crate::memory::{Dst, Src};

/// The most elements that are converted by one call: few enough for the nearest cache, and whole
/// blocks.
pub const CONVERTED: usize = 8 * BlockFormat::LEN;

/// Bytes of as many elements in blocks.
const BLOCK_BYTES: usize = CONVERTED / BlockFormat::LEN * BlockFormat::BYTES;

/// Converts elements at any alignment to f32. The last block may have more elements than `to`.
///
/// # Panics
/// If the type is neither f32 nor a float of 16 or 8 bits, if lengths differ, or if there are more
/// than [`CONVERTED`] elements: a bug of the caller.
pub fn widen(wire: Wire, from: Src<'_>, to: &mut [f32]) {
    match wire {
        Wire::Type(DataType::F32) => copy(Dst::from(cast_slice_mut(to)), None, from),
        Wire::Type(DataType::F16) => {
            load(from, to, |from: &[f16], to| from.convert_to_f32_slice(to));
        }
        Wire::Type(DataType::BF16) => {
            load(from, to, |from: &[bf16], to| from.convert_to_f32_slice(to));
        }
        Wire::Type(DataType::F8E4M3) => load(from, to, |from, to| each(from, to, F8E4M3::to_f32)),
        Wire::Type(DataType::F8E5M2) => load(from, to, |from, to| each(from, to, F8E5M2::to_f32)),
        Wire::Blocks(format) => widen_blocks(format, from, to),
        Wire::Type(_) => unreachable!("{wire} does not travel in another form"),
    }
}

/// Converts f32 to elements at any alignment. A last block that is not full is filled with zeros.
///
/// # Panics
/// As [`widen`].
pub fn narrow(wire: Wire, from: &[f32], to: Dst<'_>) {
    match wire {
        Wire::Type(DataType::F32) => copy(to, None, Src::from(cast_slice(from))),
        Wire::Type(DataType::F16) => {
            store(from, to, |from, to: &mut [f16]| to.convert_from_f32_slice(from));
        }
        Wire::Type(DataType::BF16) => {
            store(from, to, |from, to: &mut [bf16]| to.convert_from_f32_slice(from));
        }
        Wire::Type(DataType::F8E4M3) => {
            store(from, to, |from, to| each(from, to, F8E4M3::from_f32));
        }
        Wire::Type(DataType::F8E5M2) => {
            store(from, to, |from, to| each(from, to, F8E5M2::from_f32));
        }
        Wire::Blocks(format) => narrow_blocks(format, from, to),
        Wire::Type(_) => unreachable!("nothing travels as {wire}"),
    }
}

fn load<T: Pod>(from: Src<'_>, to: &mut [f32], by: impl Fn(&[T], &mut [f32])) {
    let mut buf = [T::zeroed(); CONVERTED];
    let buf = &mut buf[..to.len()];
    copy(Dst::from(cast_slice_mut(&mut *buf)), None, from);
    by(buf, to);
}

fn store<T: Pod>(from: &[f32], to: Dst<'_>, by: impl Fn(&[f32], &mut [T])) {
    let mut buf = [T::zeroed(); CONVERTED];
    let buf = &mut buf[..from.len()];
    by(from, buf);
    copy(to, None, Src::from(cast_slice(buf)));
}

fn each<A: Copy, B>(from: &[A], to: &mut [B], by: impl Fn(A) -> B) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = by(from);
    }
}

fn widen_blocks(format: BlockFormat, from: Src<'_>, to: &mut [f32]) {
    let (mut blocks, mut wide) = ([0; BLOCK_BYTES], [0.0; CONVERTED]);
    let blocks = &mut blocks[..from.len()];
    copy(Dst::from(&mut *blocks), None, from);
    // SAFETY: the CPU has the best of its levels.
    unsafe { (Level::best().conversions(format).widen)(blocks, &mut wide) };
    to.copy_from_slice(&wide[..to.len()]);
}

fn narrow_blocks(format: BlockFormat, from: &[f32], to: Dst<'_>) {
    let (mut wide, mut blocks) = ([0.0; CONVERTED], [0; BLOCK_BYTES]);
    wide[..from.len()].copy_from_slice(from);
    let blocks = &mut blocks[..from.len().div_ceil(BlockFormat::LEN) * BlockFormat::BYTES];
    // SAFETY: as above.
    unsafe { (Level::best().conversions(format).narrow)(&wide, blocks) };
    copy(to, None, Src::from(&*blocks));
}
