//! Conversion between float types, for contributions that travel in a narrower type than their
//! buffer's. Elements pass through a small f32 array in the nearest cache, so any alignment is
//! allowed.
//! Law: every value is rounded once, to nearest even; NaN stays NaN.

use core::ops::Range;

use bytemuck::{Pod, cast_slice_mut};
use half::slice::HalfFloatSliceExt;

use super::copy::copy;
use crate::element::{DataType, F8E4M3, F8E5M2, bf16, f16};
use crate::memory::{Dst, Src};

/// Elements converted at a time.
const PIECE: usize = 256;

/// Converts `count` elements from one type to another, both f32 or floats of 16 or 8 bits, and
/// multiplies each by `scale` if there is one. The closures return the memory of a range of bytes.
///
/// # Panics
/// If a type is another one: a bug of the caller.
pub fn convert<'s, 'd>(
    count: usize,
    scale: Option<f32>,
    (from, source): (DataType, impl Fn(Range<usize>) -> Src<'s>),
    (to, target): (DataType, impl Fn(Range<usize>) -> Dst<'d>),
) {
    let mut buf = [0.0_f32; PIECE];
    for at in (0..count).step_by(PIECE) {
        let elements = at..count.min(at + PIECE);
        let bytes = |dtype: DataType| elements.start * dtype.size()..elements.end * dtype.size();
        let buf = &mut buf[..elements.len()];
        let mine = source(bytes(from));
        match from {
            DataType::F32 => copy(Dst::from(cast_slice_mut(&mut *buf)), None, mine),
            DataType::F16 => load(mine, buf, |from: &[f16], to| from.convert_to_f32_slice(to)),
            DataType::BF16 => load(mine, buf, |from: &[bf16], to| from.convert_to_f32_slice(to)),
            DataType::F8E4M3 => load(mine, buf, |from, to| each(from, to, F8E4M3::to_f32)),
            DataType::F8E5M2 => load(mine, buf, |from, to| each(from, to, F8E5M2::to_f32)),
            _ => unreachable!("{from} does not travel as another type"),
        }
        if let Some(scale) = scale {
            buf.iter_mut().for_each(|value| *value *= scale);
        }
        let out = target(bytes(to));
        match to {
            DataType::F32 => copy(out, None, Src::from(bytemuck::cast_slice(buf))),
            DataType::F16 => {
                store(out, buf, |from, to: &mut [f16]| to.convert_from_f32_slice(from))
            }
            DataType::BF16 => {
                store(out, buf, |from, to: &mut [bf16]| to.convert_from_f32_slice(from));
            }
            DataType::F8E4M3 => store(out, buf, |from, to| each(from, to, F8E4M3::from_f32)),
            DataType::F8E5M2 => store(out, buf, |from, to| each(from, to, F8E5M2::from_f32)),
            _ => unreachable!("nothing travels as {to}"),
        }
    }
}

fn load<T: Pod>(from: Src<'_>, to: &mut [f32], by: impl Fn(&[T], &mut [f32])) {
    let mut buf = [T::zeroed(); PIECE];
    let buf = &mut buf[..to.len()];
    copy(Dst::from(cast_slice_mut(&mut *buf)), None, from);
    by(buf, to);
}

fn store<T: Pod>(to: Dst<'_>, from: &[f32], by: impl Fn(&[f32], &mut [T])) {
    let mut buf = [T::zeroed(); PIECE];
    let buf = &mut buf[..from.len()];
    by(from, buf);
    copy(to, None, Src::from(bytemuck::cast_slice(buf)));
}

fn each<A: Copy, B>(from: &[A], to: &mut [B], by: impl Fn(A) -> B) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = by(from);
    }
}
