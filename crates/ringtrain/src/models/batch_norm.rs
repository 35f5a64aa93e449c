//! Batch norm (Ioffe and Szegedy 2015): the moments of a batch in training, running moments else.

use std::sync::Arc;

use candle_core::{Tensor, Var};

use super::layers::Layer;
use super::ops::{self, Activation, Moments, OfBatch};
use super::parameter::{Parameter, Pass};
use super::training::{read, write};
use crate::error::{Error, Result};

/// What is added to a variance, so that its root is not 0.
const EPSILON: f64 = 1e-5;
/// The weight of a batch's moments in the running ones.
const MOMENTUM: f64 = 0.1;

/// Adds up what batch norm needs to know of a batch over the ranks that share it.
pub trait BatchMoments: Send + Sync {
    /// Replaces sums over this rank's samples by those over the samples of all ranks. Every rank
    /// calls this with as many sums, twice per layer and step: in the forward pass (the sum and the
    /// sum of squares of each channel, and the number of values of a channel), and in the backward
    /// pass (two sums of each channel).
    ///
    /// # Errors
    /// If a peer is lost.
    fn add_up(&self, sums: &mut [f64]) -> candle_core::Result<()>;
}

/// Batch norm of count x channels x rows x columns, then a rectifier.
pub(super) struct BatchNorm {
    pub(super) name: String,
    pub(super) weight: Arc<Parameter>,
    pub(super) bias: Arc<Parameter>,
    /// Running moments.
    pub(super) mean: Var,
    pub(super) variance: Var,
    pub(super) activation: Activation,
}

impl BatchNorm {
    /// The moments of these images over all ranks, which become part of the running ones.
    fn of_batch(&self, images: &Tensor, pass: &Pass) -> Result<(Moments, OfBatch)> {
        let mut sums = ops::sums(images)?;
        if let Some(ranks) = &pass.moments {
            ranks.add_up(&mut sums)?;
        }
        let channels = sums.len() / 2;
        let count = sums[2 * channels];
        if count < 2.0 {
            return Err(Error::Unfit(format!(
                "{}: a batch of {count} values per channel has no variance; make batches larger",
                self.name
            )));
        }
        let mean: Vec<f64> = sums[..channels].iter().map(|sum| sum / count).collect();
        // NaN stays NaN.
        let variance: Vec<f64> = sums[channels..2 * channels]
            .iter()
            .zip(&mean)
            .map(|(squares, mean)| squares / count - mean * mean)
            .map(|variance| if variance < 0.0 { 0.0 } else { variance })
            .collect();
        // The running variance is the estimate for all images, from a sample of them.
        let unbiased: Vec<f64> = variance.iter().map(|it| it * count / (count - 1.0)).collect();
        record(&self.mean, &mean)?;
        record(&self.variance, &unbiased)?;
        Ok((moments(&mean, &variance), OfBatch { count, ranks: pass.moments.clone() }))
    }

    fn running(&self) -> Result<Moments> {
        let values = |var: &Var| -> Result<Vec<f64>> {
            Ok(var.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
        };
        Ok(moments(&values(&self.mean)?, &values(&self.variance)?))
    }
}

fn moments(mean: &[f64], variance: &[f64]) -> Moments {
    Moments {
        mean: mean.iter().map(|it| *it as f32).collect(),
        scale: variance.iter().map(|it| (1.0 / (it + EPSILON).sqrt()) as f32).collect(),
    }
}

/// Moves running moments towards those of a batch.
fn record(running: &Var, batch: &[f64]) -> Result<()> {
    let mut values = vec![0.0; batch.len()];
    read(running, &mut values)?;
    for (value, batch) in values.iter_mut().zip(batch) {
        *value = (f64::from(*value) * (1.0 - MOMENTUM) + batch * MOMENTUM) as f32;
    }
    write(running, &values)
}

impl Layer for BatchNorm {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, inputs: &Tensor, pass: &Pass) -> Result<Tensor> {
        let inputs = inputs.contiguous()?;
        let (moments, of_batch) = match pass.is_training && !self.weight.is_frozen() {
            true => self.of_batch(&inputs, pass).map(|(moments, batch)| (moments, Some(batch)))?,
            false => (self.running()?, None),
        };
        let (weight, bias) = (self.weight.target(pass), self.bias.target(pass));
        let activation = self.activation;
        let operation = ops::Norm { activation, moments, of_batch, weight, bias };
        Ok(inputs.apply_op3(&self.weight.tensor(), &self.bias.tensor(), operation)?)
    }
}
