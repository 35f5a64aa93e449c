//! Batch norm with its rectifier (Ioffe and Szegedy 2015): the values of a channel are shifted and
//! scaled to mean 0 and variance 1, then by the bias and the weight of the channel.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::{Activation, elements, tensor, with_elements, with_lanes};
use crate::models::batch_norm::BatchMoments;
use crate::models::parameter::Target;

/// The mean and 1 / standard deviation of each channel.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) mean: Vec<f32>,
    pub(crate) scale: Vec<f32>,
}

/// The moments of a batch.
#[derive(Clone)]
pub(crate) struct OfBatch {
    /// The values of a channel, over all ranks.
    pub(crate) count: f64,
    pub(crate) ranks: Option<Arc<dyn BatchMoments>>,
}

/// The operation on images (count x channels x any), weights (channels) and biases (channels).
pub(crate) struct Norm {
    pub(crate) activation: Activation,
    pub(crate) moments: Moments,
    /// None if the moments don't depend on the images.
    pub(crate) of_batch: Option<OfBatch>,
    pub(crate) weight: Target,
    pub(crate) bias: Target,
}

/// The channels of images and the values of a plane, at least 1 each.
fn sizes(shape: &Shape) -> (usize, usize) {
    let channels = shape.dims().get(1).copied().unwrap_or(1);
    (channels.max(1), shape.dims().iter().skip(2).product::<usize>().max(1))
}

/// The sum of a plane, and of its products with another one.
#[inline(always)]
fn sums_of(plane: &[f32], other: &[f32]) -> [f64; 2] {
    const LANES: usize = 8;
    let mut lanes = [[0.0_f64; LANES]; 2];
    let (whole, rest) = plane.as_chunks::<LANES>();
    let (whole_others, other_rest) = other.as_chunks::<LANES>();
    for (ones, others) in whole.iter().zip(whole_others) {
        for lane in 0..LANES {
            let one = f64::from(ones[lane]);
            lanes[0][lane] += one;
            lanes[1][lane] += one * f64::from(others[lane]);
        }
    }
    for (lane, (one, other)) in rest.iter().zip(other_rest).enumerate() {
        lanes[0][lane] += f64::from(*one);
        lanes[1][lane] += f64::from(*one) * f64::from(*other);
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// The sums of each channel of images, then of its products with other images.
fn sums_by_channel(images: &[f32], others: &[f32], channels: usize, area: usize) -> Vec<f64> {
    let mut sums = vec![0.0; 2 * channels];
    with_lanes(|| {
        let planes = images.chunks_exact(area).zip(others.chunks_exact(area));
        for (at, (plane, other)) in planes.enumerate() {
            let [sum, product] = sums_of(plane, other);
            sums[at % channels] += sum;
            sums[channels + at % channels] += product;
        }
    });
    sums
}

/// The sum and the sum of squares of each channel, then the values of a channel.
pub(crate) fn sums(images: &Tensor) -> Result<Vec<f64>> {
    let (channels, area) = sizes(images.shape());
    with_elements([images], |[values]| {
        let mut sums = sums_by_channel(values, values, channels, area);
        sums.push((values.len() / channels) as f64);
        Ok(sums)
    })
}

impl CustomOp3 for Norm {
    fn name(&self) -> &'static str {
        "batch-norm"
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
        let (channels, area) = sizes(image_layout.shape());
        let (weight, bias) = (elements(weight, weight_layout)?, elements(bias, bias_layout)?);
        let images = elements(images, image_layout)?;
        let mut outputs = vec![0.0; images.len()];
        let planes = images.chunks_exact(area).zip(outputs.chunks_exact_mut(area));
        for (at, (from, to)) in planes.enumerate() {
            let channel = at % channels;
            // The mean goes first, so that a large one costs no digits.
            let (mean, bias) = (self.moments.mean[channel], bias[channel]);
            let slope = weight[channel] * self.moments.scale[channel];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = (from - mean) * slope + bias);
            self.activation.apply(to);
        }
        Ok((CpuStorage::F32(outputs), image_layout.shape().clone()))
    }

    fn bwd(
        &self,
        images: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        outputs: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (channels, area) = sizes(images.shape());
        let Moments { mean, scale } = &self.moments;
        let gradient = self.activation.backward(outputs, gradient)?;
        let mut sums = with_elements([&gradient, images], |[gradient, images]| {
            let mut sums = sums_by_channel(gradient, images, channels, area);
            // The products are with normalised images.
            for channel in 0..channels {
                let shifted = sums[channels + channel] - f64::from(mean[channel]) * sums[channel];
                sums[channels + channel] = shifted * f64::from(scale[channel]);
            }
            Ok(sums)
        })?;
        // These gradients are this rank's alone: they are added up as all others are.
        let single = |sums: &[f64]| Ok(sums.iter().map(|sum| *sum as f32).collect());
        let of_bias = self.bias.take(bias, || single(&sums[..channels]))?;
        let of_weight = self.weight.take(weight, || single(&sums[channels..]))?;
        if let Some(ranks) = self.of_batch.as_ref().and_then(|batch| batch.ranks.as_ref()) {
            ranks.add_up(&mut sums)?;
        }
        if !images.track_op() {
            return Ok((None, of_weight, of_bias));
        }
        let values = with_elements([images, weight, &gradient], |[images, weight, gradient]| {
            let mut values = Vec::with_capacity(images.len());
            let planes = gradient.chunks_exact(area).zip(images.chunks_exact(area));
            for (at, (gradient, image)) in planes.enumerate() {
                let channel = at % channels;
                let (mean, scale) = (mean[channel], scale[channel]);
                let slope = weight[channel] * scale;
                let part = |sum: f64| {
                    self.of_batch.as_ref().map_or(0.0, |batch| (sum / batch.count) as f32)
                };
                let (flat, along) = (part(sums[channel]), part(sums[channels + channel]) * scale);
                let both = gradient.iter().zip(image);
                values.extend(both.map(|(it, value)| slope * (it - flat - (value - mean) * along)));
            }
            Ok(values)
        })?;
        Ok((Some(tensor(values, images.shape())?), of_weight, of_bias))
    }
}
