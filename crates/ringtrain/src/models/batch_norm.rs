//! Batch norm (Ioffe and Szegedy 2015): the moments of a batch in training, running moments else.

use std::sync::Arc;

use candle_core::{Tensor, Var};
use strategy::{BatchStatistics, SyncBatchNorm};

use super::layers::Layer;
use super::ops::{self, Activation};
use super::parameter::{Parameter, Pass};
use super::training::{read, write};
use crate::error::{Error, Result, in_model};

/// The number that is added to a variance, so that its root is not 0.
pub(crate) const EPSILON: f64 = 1e-5;
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

impl BatchMoments for SyncBatchNorm {
    fn add_up(&self, sums: &mut [f64]) -> candle_core::Result<()> {
        Self::add_up(self, sums).map_err(in_model)
    }
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
    fn of_batch(&self, images: &Tensor, pass: &Pass) -> Result<BatchStatistics> {
        let mut sums = ops::sums(images)?;
        if let Some(ranks) = &pass.moments {
            ranks.add_up(&mut sums)?;
        }
        let statistics = BatchStatistics::from_sums(&sums);
        let count = statistics.count;
        if count < 2.0 {
            return Err(Error::Unfit(format!(
                "{}: a batch of {count} values per channel has no variance; make batches larger",
                self.name
            )));
        }
        record(&self.mean, &statistics.mean)?;
        record(&self.variance, &statistics.unbiased_variance())?;
        Ok(statistics)
    }

    fn running(&self) -> Result<BatchStatistics> {
        let values = |var: &Var| -> Result<Vec<f64>> {
            Ok(var.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
        };
        let (mean, variance) = (values(&self.mean)?, values(&self.variance)?);
        Ok(BatchStatistics { mean, variance, count: f64::INFINITY })
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
        let (statistics, ranks) = match pass.is_training && !self.weight.is_frozen() {
            true => (self.of_batch(&inputs, pass)?, pass.moments.clone()),
            false => (self.running()?, None),
        };
        let (weight, bias) = (self.weight.target(pass), self.bias.target(pass));
        let operation = ops::Norm { activation: self.activation, statistics, ranks, weight, bias };
        Ok(inputs.apply_op3(&self.weight.tensor(), &self.bias.tensor(), operation)?)
    }
}
