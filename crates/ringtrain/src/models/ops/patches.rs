//! Images as matrices for convolutions, and back ("im2col", Chellapilla et al. 2006): each column
//! has the values under the kernel at one place of the output.

use core::ops::Range;

use candle_core::{Error, Layout, Result};

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) channels: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    pub(super) out_rows: usize,
    pub(super) out_columns: usize,
}

impl Sizes {
    pub(super) fn new(
        images: &Layout,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let (_, channels, rows, columns) = images.shape().dims4()?;
        // A kernel of one pixel knows nothing of rows.
        let is_pointwise = kernel == 1 && stride == 1 && padding == 0;
        let (rows, columns) = if is_pointwise { (1, rows * columns) } else { (rows, columns) };
        let out = |size: usize| match (size + 2 * padding).checked_sub(kernel) {
            Some(steps) => Ok(steps / stride + 1),
            None => {
                let text = format!("an image of {rows}x{columns} is smaller than a kernel");
                Err(Error::Msg(text).bt())
            }
        };
        let (out_rows, out_columns) = (out(rows)?, out(columns)?);
        Ok(Self { channels, rows, columns, kernel, stride, padding, out_rows, out_columns })
    }

    /// True if the matrix of an image is the image.
    pub(super) fn is_pointwise(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.padding == 0
    }

    /// The values of an image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.rows * self.columns
    }

    /// The rows of the matrix.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.kernel * self.kernel
    }

    /// The columns of the matrix, for one image.
    pub(super) fn places(&self) -> usize {
        self.out_rows * self.out_columns
    }

    /// The places of the output at which the value `at` of the kernel is over a pixel.
    fn valid(&self, at: usize, size: usize, out: usize) -> Range<usize> {
        let start = self.padding.saturating_sub(at).div_ceil(self.stride);
        let end = (size + self.padding).saturating_sub(at).div_ceil(self.stride).min(out);
        start.min(end)..end
    }

    /// Calls `work` for each row of places, with those of the matrix and the pixels under them: the
    /// start of both and their number. Neighbouring pixels are `stride` apart.
    fn for_each(&self, images: usize, mut work: impl FnMut(usize, usize, usize)) {
        let width = images * self.places();
        for row in 0..self.depth() {
            let (channel, at) =
                (row / (self.kernel * self.kernel), row % (self.kernel * self.kernel));
            let (ky, kx) = (at / self.kernel, at % self.kernel);
            let ys = self.valid(ky, self.rows, self.out_rows);
            let xs = self.valid(kx, self.columns, self.out_columns);
            if xs.is_empty() {
                continue;
            }
            for image in 0..images {
                let plane = (image * self.channels + channel) * self.rows * self.columns;
                for y in ys.clone() {
                    let from = plane
                        + (y * self.stride + ky - self.padding) * self.columns
                        + (xs.start * self.stride + kx - self.padding);
                    let to = row * width + image * self.places() + y * self.out_columns + xs.start;
                    work(to, from, xs.len());
                }
            }
        }
    }

    /// Writes the matrix of these images (depth x images x places), which holds 0 where the kernel
    /// is beyond the edge.
    pub(super) fn gather(&self, pixels: &[f32], matrix: &mut Vec<f32>) {
        let images = pixels.len() / self.image();
        matrix.clear();
        matrix.resize(self.depth() * images * self.places(), 0.0);
        let stride = self.stride;
        self.for_each(images, |to, from, count| {
            let to = &mut matrix[to..to + count];
            match stride {
                1 => to.copy_from_slice(&pixels[from..from + count]),
                _ => {
                    let from = pixels[from..].iter().step_by(stride);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        });
    }

    /// Adds the values of a matrix to the pixels that [`Self::gather`] takes them from.
    pub(super) fn scatter(&self, matrix: &[f32], pixels: &mut [f32]) {
        let images = pixels.len() / self.image();
        let stride = self.stride;
        self.for_each(images, |from, to, count| {
            let from = &matrix[from..from + count];
            match stride {
                1 => {
                    let to = &mut pixels[to..to + count];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
                _ => {
                    let to = pixels[to..].iter_mut().step_by(stride);
                    to.zip(from).for_each(|(to, from)| *to += from);
                }
            }
        });
    }
}
