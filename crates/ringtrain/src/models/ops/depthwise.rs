//! Convolutions of each channel with a kernel of its own, of 3x3 values, at stride 1 or 2 with one
//! pixel of padding. A plane is laid out with its padding in one vector, so that each of the nine
//! values of a kernel meets its pixels by one shift of the whole plane: small planes too fill the
//! lanes of a processor. With stride 2 there is a plane for each parity of row and column.

use candle_core::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor};

use super::{elements, tensor, with_elements, with_lanes};
use crate::models::parameter::Target;

/// The values that a loop takes at once.
const LANES: usize = 8;
const TAPS: usize = 9;

/// The operation, and where the gradient of the weights (channels x 1 x 3 x 3) goes.
pub(crate) struct Depthwise {
    pub(crate) stride: usize,
    pub(crate) weight: Target,
}

/// How a plane is laid out with its padding.
#[derive(Clone, Copy)]
struct Planes {
    columns: usize,
    stride: usize,
    out_rows: usize,
    out_columns: usize,
    /// From one row to the next one, in padded planes.
    width: usize,
    /// From the start of one padded plane to the next one.
    plane: usize,
}

impl Planes {
    fn new(rows: usize, columns: usize, stride: usize) -> Self {
        let (out_rows, out_columns) = (rows.div_ceil(stride), columns.div_ceil(stride));
        let border = if stride == 1 { 2 } else { 1 };
        let width = out_columns + border;
        let plane = (out_rows + border) * width;
        Self { columns, stride, out_rows, out_columns, width, plane }
    }

    /// The values of outputs with gaps between rows.
    fn spaced(&self) -> usize {
        (self.out_rows * self.width).next_multiple_of(LANES)
    }

    /// The values of all padded planes, with room for a shift of the last one.
    fn padded(&self) -> usize {
        self.plane * self.stride * self.stride + 3 * LANES
    }

    /// The start of the row `row` of the image, and the parity of its pixels' planes.
    #[inline(always)]
    fn row(&self, row: usize) -> usize {
        match self.stride {
            1 => (row + 1) * self.width,
            _ => (row + 1) % 2 * 2 * self.plane + row.div_ceil(2) * self.width,
        }
    }

    /// The shift of each value of the kernel.
    fn shifts(&self) -> [usize; TAPS] {
        core::array::from_fn(|tap| {
            let (y, x) = (tap / 3, tap % 3);
            match self.stride {
                1 => y * self.width + x,
                _ => (y % 2 * 2 + x % 2) * self.plane + y / 2 * self.width + x / 2,
            }
        })
    }

    /// Copies an image's plane between its padding.
    #[inline(always)]
    fn pad(&self, image: &[f32], padded: &mut [f32]) {
        for (row, pixels) in image.chunks_exact(self.columns).enumerate() {
            let start = self.row(row);
            if self.stride == 1 {
                padded[start + 1..][..self.columns].copy_from_slice(pixels);
                continue;
            }
            let (even, odd) = padded[start..].split_at_mut(self.plane);
            for (to, from) in odd.iter_mut().zip(pixels.iter().step_by(2)) {
                *to = *from;
            }
            for (to, from) in even[1..].iter_mut().zip(pixels[1..].iter().step_by(2)) {
                *to = *from;
            }
        }
    }

    /// Copies a plane out of its padding.
    #[inline(always)]
    fn unpad(&self, padded: &[f32], image: &mut [f32]) {
        for (row, pixels) in image.chunks_exact_mut(self.columns).enumerate() {
            let start = self.row(row);
            if self.stride == 1 {
                pixels.copy_from_slice(&padded[start + 1..][..self.columns]);
                continue;
            }
            let (even, odd) = padded[start..].split_at(self.plane);
            for (to, from) in pixels.iter_mut().step_by(2).zip(odd) {
                *to = *from;
            }
            for (to, from) in pixels[1..].iter_mut().step_by(2).zip(&even[1..]) {
                *to = *from;
            }
        }
    }

    /// Copies the rows of an output's plane to their places with gaps, which hold 0.
    #[inline(always)]
    fn space(&self, plane: &[f32], spaced: &mut [f32]) {
        let rows = plane.chunks_exact(self.out_columns);
        for (from, to) in rows.zip(spaced.chunks_exact_mut(self.width)) {
            to[..self.out_columns].copy_from_slice(from);
        }
    }
}

/// The outputs, with gaps, of a padded plane.
#[inline(always)]
fn convolve(padded: &[f32], shifts: &[usize; TAPS], kernel: &[f32], spaced: &mut [f32]) {
    let len = spaced.len();
    let taps = shifts.map(|shift| padded[shift..][..len].as_chunks::<LANES>().0);
    for (at, outputs) in spaced.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let mut sums = [0.0; LANES];
        for (tap, weight) in taps.iter().zip(kernel) {
            for (sum, pixel) in sums.iter_mut().zip(&tap[at]) {
                *sum += weight * pixel;
            }
        }
        *outputs = sums;
    }
}

/// Adds the products of a padded plane with the gradients of its outputs to those of the kernel.
#[inline(always)]
fn correlate(padded: &[f32], shifts: &[usize; TAPS], spaced: &[f32], sums: &mut [f64]) {
    let len = spaced.len();
    for (shift, sum) in shifts.iter().zip(sums) {
        let mut lanes = [0.0; LANES];
        let pixels = padded[*shift..][..len].as_chunks::<LANES>().0;
        for (pixels, gradients) in pixels.iter().zip(spaced.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                lanes[lane] += pixels[lane] * gradients[lane];
            }
        }
        *sum += f64::from(lanes.iter().sum::<f32>());
    }
}

/// The gradient of a padded plane.
#[inline(always)]
fn spread(padded: &mut [f32], shifts: &[usize; TAPS], kernel: &[f32], spaced: &[f32]) {
    padded.fill(0.0);
    for (shift, weight) in shifts.iter().zip(kernel) {
        let pixels = &mut padded[*shift..][..spaced.len()];
        pixels.iter_mut().zip(spaced).for_each(|(pixel, it)| *pixel += weight * it);
    }
}

impl CustomOp2 for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise-conv"
    }

    fn cpu_fwd(
        &self,
        images: &CpuStorage,
        image_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (count, channels, rows, columns) = image_layout.shape().dims4()?;
        if weight_layout.dims() != [channels, 1, 3, 3] || !matches!(self.stride, 1 | 2) {
            let (weights, stride) = (weight_layout.shape(), self.stride);
            let text = format!("weights of {weights:?}, stride {stride} for {channels} channels");
            return Err(Error::Msg(text).bt());
        }
        let planes = Planes::new(rows, columns, self.stride);
        let (images, weight) = (elements(images, image_layout)?, elements(weight, weight_layout)?);
        let area = planes.out_rows * planes.out_columns;
        let mut outputs = vec![0.0; count * channels * area];
        with_lanes(|| {
            let shifts = planes.shifts();
            let (mut padded, mut spaced) = (vec![0.0; planes.padded()], vec![0.0; planes.spaced()]);
            let both = images.chunks_exact(rows * columns).zip(outputs.chunks_exact_mut(area));
            for ((image, outputs), kernel) in both.zip(weight.chunks_exact(TAPS).cycle()) {
                planes.pad(image, &mut padded);
                convolve(&padded, &shifts, kernel, &mut spaced);
                let rows = outputs.chunks_exact_mut(planes.out_columns);
                for (to, from) in rows.zip(spaced.chunks_exact(planes.width)) {
                    to.copy_from_slice(&from[..planes.out_columns]);
                }
            }
        });
        let shape = (count, channels, planes.out_rows, planes.out_columns);
        Ok((CpuStorage::F32(outputs), Shape::from(shape)))
    }

    fn bwd(
        &self,
        images: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (_, channels, rows, columns) = images.dims4()?;
        let planes = Planes::new(rows, columns, self.stride);
        let (area, shifts) = (planes.out_rows * planes.out_columns, planes.shifts());
        let gradient = gradient.contiguous()?;
        let of_weight = self.weight.take(weight, || {
            with_elements([images, &gradient], |[images, gradient]| {
                let mut sums = vec![0.0_f64; channels * TAPS];
                with_lanes(|| {
                    let mut padded = vec![0.0; planes.padded()];
                    let mut spaced = vec![0.0; planes.spaced()];
                    let both = images.chunks_exact(rows * columns).zip(gradient.chunks_exact(area));
                    for (at, (image, gradient)) in both.enumerate() {
                        planes.pad(image, &mut padded);
                        planes.space(gradient, &mut spaced);
                        let sums = &mut sums[at % channels * TAPS..][..TAPS];
                        correlate(&padded, &shifts, &spaced, sums);
                    }
                });
                Ok(sums.into_iter().map(|sum| sum as f32).collect())
            })
        })?;
        if !images.track_op() {
            return Ok((None, of_weight));
        }
        let pixels = with_elements([weight, &gradient], |[weight, gradient]| {
            let mut pixels = vec![0.0; images.elem_count()];
            with_lanes(|| {
                let mut padded = vec![0.0; planes.padded()];
                let mut spaced = vec![0.0; planes.spaced()];
                let images = pixels.chunks_exact_mut(rows * columns);
                let both = images.zip(gradient.chunks_exact(area));
                for ((image, gradient), kernel) in both.zip(weight.chunks_exact(TAPS).cycle()) {
                    planes.space(gradient, &mut spaced);
                    spread(&mut padded, &shifts, kernel, &spaced);
                    planes.unpad(&padded, image);
                }
            });
            Ok(pixels)
        })?;
        Ok((Some(tensor(pixels, images.shape())?), of_weight))
    }
}
