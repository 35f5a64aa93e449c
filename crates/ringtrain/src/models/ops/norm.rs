//! Batch norm with its rectifier (Ioffe and Szegedy 2015): the values of a channel are shifted and
//! scaled to mean 0 and variance 1, then by the bias and the weight of the channel.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use strategy::{BatchShape, BatchStatistics};

use super::{Activation, elements, tensor, with_elements};
use crate::models::batch_norm::{BatchMoments, EPSILON};
use crate::models::parameter::Target;

/// The operation on images (count x channels x any), weights (channels) and biases (channels).
pub(crate) struct Norm {
    pub(crate) activation: Activation,
    pub(crate) statistics: BatchStatistics,
    /// The ranks whose images the statistics are of, besides this one's.
    pub(crate) ranks: Option<Arc<dyn BatchMoments>>,
    pub(crate) weight: Target,
    pub(crate) bias: Target,
}

fn batch(shape: &Shape) -> BatchShape {
    let dims = shape.dims();
    let channels = dims.get(1).copied().unwrap_or(1);
    BatchShape { samples: dims[0], channels, area: dims.iter().skip(2).product() }
}

/// The sum and the sum of squares of each channel, then the values of a channel.
pub(crate) fn sums(images: &Tensor) -> Result<Vec<f64>> {
    with_elements([images], |[values]| Ok(batch(images.shape()).moment_sums(values)))
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
        let (weight, bias) = (elements(weight, weight_layout)?, elements(bias, bias_layout)?);
        let factors = self.statistics.forward(EPSILON, weight, bias);
        let (images, shape) = (elements(images, image_layout)?, batch(image_layout.shape()));
        let outputs = shape.normalized(images, &factors, |plane| self.activation.apply(plane));
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
        let shape = batch(images.shape());
        let gradient = self.activation.backward(outputs, gradient)?;
        let mut sums = with_elements([&gradient, images], |[gradient, images]| {
            Ok(shape.sums(gradient, images))
        })?;
        self.statistics.normalize_sums(EPSILON, &mut sums);
        // These gradients are this rank's alone: they are added up as all others are.
        let single = |sums: &[f64]| Ok(sums.iter().map(|sum| *sum as f32).collect());
        let of_bias = self.bias.take(bias, || single(&sums[..shape.channels]))?;
        let of_weight = self.weight.take(weight, || single(&sums[shape.channels..]))?;
        if let Some(ranks) = &self.ranks {
            ranks.add_up(&mut sums)?;
        }
        if !images.track_op() {
            return Ok((None, of_weight, of_bias));
        }
        let values = with_elements([images, weight, &gradient], |[images, weight, gradient]| {
            let factors = self.statistics.backward(EPSILON, weight, &sums);
            Ok(shape.gradients(images, gradient, &factors))
        })?;
        Ok((Some(tensor(values, images.shape())?), of_weight, of_bias))
    }
}
