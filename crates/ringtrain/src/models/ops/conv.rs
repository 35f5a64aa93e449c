//! Convolutions as products of matrices, some images at a time, so that the matrix of patches stays
//! in the cache. Images are count x channels x rows x columns, weights out x in x kernel x kernel.

use candle_core::{CpuStorage, CustomOp3, Error, Layout, Result, Shape, Tensor};

use super::gemm::Matrix;
use super::patches::Sizes;
use super::{Activation, elements, tensor, with_elements, with_storage};
use crate::models::parameter::Target;

/// The columns of a matrix with which a product is fast.
const COLUMNS: usize = 4096;
/// The values of a matrix that stay in a core's cache.
const CACHED: usize = 1 << 18;

/// The operation, and where the gradients of weights and bias go. A bias without
/// elements is none.
pub(crate) struct Conv {
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) activation: Activation,
    pub(crate) weight: Target,
    pub(crate) bias: Option<Target>,
}

/// The images in a product.
fn images_at_once(sizes: &Sizes) -> usize {
    let cached = CACHED / (sizes.depth() * sizes.places()).max(1);
    COLUMNS.div_ceil(sizes.places().max(1)).min(cached).max(1)
}

/// Planes of several images (images x planes x places) as rows (planes x images x places), or back.
fn swap(from: &[f32], (images, planes): (usize, usize), to: &mut Vec<f32>) {
    let places = from.len() / (images * planes).max(1);
    to.clear();
    for plane in 0..planes {
        for image in 0..images {
            to.extend_from_slice(&from[(image * planes + plane) * places..][..places]);
        }
    }
}

/// Calls `work` with the gradients of the outputs of some images at a time, as a matrix (planes x
/// images x places), the first of these images, and their number.
fn for_each_chunk(
    sizes: &Sizes,
    images: usize,
    (gradient, start): (&CpuStorage, usize),
    planes: usize,
    mut work: impl FnMut(Matrix<'_>, usize, usize) -> Result<()>,
) -> Result<()> {
    let CpuStorage::F32(all) = gradient else { return Ok(()) };
    let image = planes * sizes.places();
    let mut swapped = CpuStorage::F32(Vec::new());
    let at_once = images_at_once(sizes);
    for first in (0..images).step_by(at_once) {
        let count = at_once.min(images - first);
        let matrix = if count == 1 {
            Matrix::new(gradient, start + first * image, planes, sizes.places())
        } else {
            if let CpuStorage::F32(swapped) = &mut swapped {
                let gradient = &all[start + first * image..][..count * image];
                swap(gradient, (count, planes), swapped);
            }
            Matrix::new(&swapped, 0, planes, count * sizes.places())
        };
        work(matrix, first, count)?;
    }
    Ok(())
}

fn weight_gradient(
    sizes: &Sizes,
    images: usize,
    (storage, start): (&CpuStorage, usize),
    gradient: (&CpuStorage, usize),
    to: usize,
) -> Result<Vec<f32>> {
    let pixels = match storage {
        CpuStorage::F32(all) => &all[start..start + images * sizes.image()],
        _ => &[],
    };
    let mut sum = vec![0.0; to * sizes.depth()];
    let mut patches = CpuStorage::F32(Vec::new());
    for_each_chunk(sizes, images, gradient, to, |gradient, first, count| {
        let place = first * sizes.image();
        let patches = if sizes.is_pointwise() && count == 1 {
            Matrix::new(storage, start + place, sizes.depth(), sizes.places())
        } else {
            if let CpuStorage::F32(patches) = &mut patches {
                sizes.gather(&pixels[place..place + count * sizes.image()], patches);
            }
            Matrix::new(&patches, 0, sizes.depth(), count * sizes.places())
        };
        let product = gradient.times(patches.transposed())?;
        sum.iter_mut().zip(product).for_each(|(sum, it)| *sum += it);
        Ok(())
    })?;
    Ok(sum)
}

fn image_gradient(
    sizes: &Sizes,
    images: usize,
    weight: Matrix<'_>,
    gradient: (&CpuStorage, usize),
) -> Result<Vec<f32>> {
    let mut pixels = vec![0.0; images * sizes.image()];
    for_each_chunk(sizes, images, gradient, weight.rows(), |gradient, first, count| {
        let patches = weight.transposed().times(gradient)?;
        let pixels = &mut pixels[first * sizes.image()..][..count * sizes.image()];
        if sizes.is_pointwise() && count == 1 {
            pixels.copy_from_slice(&patches);
        } else {
            sizes.scatter(&patches, pixels);
        }
        Ok(())
    })?;
    Ok(pixels)
}

impl CustomOp3 for Conv {
    fn name(&self) -> &'static str {
        "conv"
    }

    fn cpu_fwd(
        &self,
        images: &CpuStorage,
        image_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (to, from, kernel, _) = weight_layout.shape().dims4()?;
        let sizes = Sizes::new(image_layout, kernel, self.stride, self.padding)?;
        if sizes.channels != from {
            let text = format!("images have {} channels, weights are for {from}", sizes.channels);
            return Err(Error::Msg(text).bt());
        }
        let (depth, places) = (sizes.depth(), sizes.places());
        let weight = Matrix::new(weight, weight_layout.start_offset(), to, depth);
        let pixels = elements(images, image_layout)?;
        let mut outputs = Vec::with_capacity(pixels.len() / sizes.image() * to * places);
        let mut patches = CpuStorage::F32(Vec::new());
        let mut swapped = Vec::new();
        let at_once = images_at_once(&sizes);
        for (chunk, pixels) in pixels.chunks(at_once * sizes.image()).enumerate() {
            let count = pixels.len() / sizes.image();
            let product = if sizes.is_pointwise() && count == 1 {
                let start = image_layout.start_offset() + chunk * at_once * sizes.image();
                weight.times(Matrix::new(images, start, depth, places))?
            } else {
                if let CpuStorage::F32(patches) = &mut patches {
                    sizes.gather(pixels, patches);
                }
                weight.times(Matrix::new(&patches, 0, depth, count * places))?
            };
            if count == 1 {
                outputs.extend_from_slice(&product);
            } else {
                swap(&product, (to, count), &mut swapped);
                outputs.extend_from_slice(&swapped);
            }
        }
        let biases = elements(bias, bias_layout)?.iter().cycle();
        for (plane, bias) in outputs.chunks_exact_mut(places.max(1)).zip(biases) {
            plane.iter_mut().for_each(|it| *it += bias);
        }
        self.activation.apply(&mut outputs);
        let (count, _, rows, columns) = image_layout.shape().dims4()?;
        let shape = match sizes.is_pointwise() {
            true => (count, to, rows, columns),
            false => (count, to, sizes.out_rows, sizes.out_columns),
        };
        Ok((CpuStorage::F32(outputs), Shape::from(shape)))
    }

    fn bwd(
        &self,
        images: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (to, _, kernel, _) = weight.dims4()?;
        let sizes = Sizes::new(images.layout(), kernel, self.stride, self.padding)?;
        let gradient = self.activation.backward(outputs, gradient)?;
        let of_bias = match &self.bias {
            Some(target) => target.take(bias, || {
                with_elements([&gradient], |[gradient]| {
                    let mut sums = vec![0.0; to];
                    for (at, plane) in gradient.chunks_exact(sizes.places()).enumerate() {
                        sums[at % to] += plane.iter().sum::<f32>();
                    }
                    Ok(sums)
                })
            })?,
            None => None,
        };
        let count = images.dim(0)?;
        let of_weight = self.weight.take(weight, || {
            with_storage([images, &gradient], |[images, gradient]| {
                weight_gradient(&sizes, count, images, gradient, to)
            })
        })?;
        if !images.track_op() {
            return Ok((None, of_weight, of_bias));
        }
        let pixels = with_storage([weight, &gradient], |[weight, gradient]| {
            let weight = Matrix::new(weight.0, weight.1, to, sizes.depth());
            image_gradient(&sizes, count, weight, gradient)
        })?;
        Ok((Some(tensor(pixels, images.shape())?), of_weight, of_bias))
    }
}
