//! Batch norm with its rectifier (Ioffe and Szegedy 2015): the values of a channel are shifted and
//! scaled to mean 0 and variance 1, then by the bias and the weight of the channel.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::{Activation, elements, tensor, with_elements};
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

/// The channels of images, and the values of each.
fn sizes(shape: &Shape) -> (usize, usize) {
    let channels = shape.dims().get(1).copied().unwrap_or(1);
    (channels, shape.dims().iter().skip(2).product())
}

/// The sum of `value` over the values of a plane, in lanes that the processor adds up at once.
fn sum(plane: &[f32], value: impl Fn(usize, f32) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    let whole = plane.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += value(start + lane, plane[start + lane]);
        }
    }
    let rest: f64 = (whole..plane.len()).map(|at| value(at, plane[at])).sum();
    lanes.iter().sum::<f64>() + rest
}

/// The sum and the sum of squares of each channel, then the values of a channel.
pub(crate) fn sums(images: &Tensor) -> Result<Vec<f64>> {
    let (channels, area) = sizes(images.shape());
    with_elements([images], |[values]| {
        let mut sums = vec![0.0; 2 * channels + 1];
        for (at, plane) in values.chunks_exact(area.max(1)).enumerate() {
            sums[at % channels] += sum(plane, |_, it| f64::from(it));
            sums[channels + at % channels] += sum(plane, |_, it| f64::from(it) * f64::from(it));
        }
        sums[2 * channels] = (values.len() / channels.max(1)) as f64;
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
        let planes = images.chunks_exact(area.max(1)).zip(outputs.chunks_exact_mut(area.max(1)));
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
        let area = area.max(1);
        let Moments { mean, scale } = &self.moments;
        let (mut values, mut sums) =
            with_elements([images, outputs, &gradient.contiguous()?], |[images, outputs, it]| {
                let values = self.activation.backward(outputs, it);
                let mut sums = vec![0.0; 2 * channels];
                let planes = values.chunks_exact(area).zip(images.chunks_exact(area));
                for (at, (gradient, image)) in planes.enumerate() {
                    let channel = at % channels;
                    let (mean, scale) = (mean[channel], scale[channel]);
                    let normal = |at: usize| f64::from((image[at] - mean) * scale);
                    sums[channel] += sum(gradient, |_, it| f64::from(it));
                    sums[channels + channel] += sum(gradient, |at, it| f64::from(it) * normal(at));
                }
                Ok((values, sums))
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
        with_elements([images, weight], |[images, weight]| {
            for (at, (gradient, image)) in
                values.chunks_exact_mut(area).zip(images.chunks_exact(area)).enumerate()
            {
                let channel = at % channels;
                let (mean, scale) = (mean[channel], scale[channel]);
                let slope = weight[channel] * scale;
                let part = |sum: f64| {
                    self.of_batch.as_ref().map_or(0.0, |batch| (sum / batch.count) as f32)
                };
                let (flat, along) = (part(sums[channel]), part(sums[channels + channel]) * scale);
                for (gradient, value) in gradient.iter_mut().zip(image) {
                    *gradient = slope * (*gradient - flat - (value - mean) * along);
                }
            }
            Ok(())
        })?;
        Ok((Some(tensor(values, images.shape())?), of_weight, of_bias))
    }
}
