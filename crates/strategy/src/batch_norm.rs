//! Batch normalization over the samples of all ranks (Ioffe and Szegedy, 2015; synchronised as in
//! `MegDet`, Peng et al., 2018): pure functions, and the ranks' sums between them. Law: the results
//! are those of one rank that has the whole batch, whatever the lengths of the parts.
//!
//! ```text
//! forward:  sums of values and squares -> all ranks' -> statistics -> factors of each value
//! backward: sums of gradients and of gradients x normalized values -> all ranks' -> factors
//! ```

use std::sync::{Mutex, PoisonError};

use pulp::Arch;
use ringreduce::{Communicator, Error, ReduceOp, Result};

/// The lengths of activations in memory, the last one the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// The samples of this rank; 0 for a rank that has none and must still take part.
    pub samples: usize,
    /// Each channel has a mean, a variance, a weight and a bias.
    pub channels: usize,
    /// Rows x columns of an image; 1 behind a linear layer.
    pub area: usize,
}

/// The mean and the variance of each channel over the samples of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchStatistics {
    /// The mean, by channel.
    pub mean: Vec<f64>,
    /// The biased variance (the sum of squares divided by the count), by channel.
    pub variance: Vec<f64>,
    /// The values of each channel, over all ranks; infinite for statistics that do not depend on
    /// the batch.
    pub count: f64,
}

/// (value - `mean`) x `scale` + `constant`. The mean is subtracted first, as `f32`, and the part
/// that rounding removes from it is in the constant: so a mean that is large beside the deviation
/// costs no digits.
#[derive(Clone, Copy, Debug)]
pub struct ForwardFactors {
    mean: f32,
    scale: f32,
    constant: f32,
}

/// gradient x `scale` - (value - `mean`) x `by_value` + `constant`.
#[derive(Clone, Copy, Debug)]
pub struct BackwardFactors {
    mean: f32,
    scale: f32,
    by_value: f32,
    constant: f32,
}

impl ForwardFactors {
    /// The normalized value.
    #[inline(always)]
    #[must_use]
    pub fn normalized(&self, value: f32) -> f32 {
        (value - self.mean) * self.scale + self.constant
    }
}

impl BackwardFactors {
    /// The gradient of a value, from the gradient of its normalized value.
    #[inline(always)]
    #[must_use]
    pub fn gradient(&self, value: f32, gradient: f32) -> f32 {
        self.scale * gradient - self.by_value * (value - self.mean) + self.constant
    }
}

impl BatchStatistics {
    /// The statistics by the sums of [`BatchShape::moment_sums`] over all ranks. A variance that is
    /// not a number stays so.
    #[must_use]
    pub fn from_sums(sums: &[f64]) -> Self {
        let channels = sums.len() / 2;
        let count = sums.last().copied().unwrap_or_default();
        let mean: Vec<f64> = sums[..channels].iter().map(|sum| sum / count.max(1.0)).collect();
        let biased = |(mean, squares): (&f64, &f64)| squares / count.max(1.0) - mean * mean;
        let variance = mean.iter().zip(&sums[channels..]).map(biased);
        // Rounding may leave less than nothing.
        let variance = variance.map(|it| if it < 0.0 { 0.0 } else { it }).collect();
        Self { mean, variance, count }
    }

    /// The variance without bias, which running averages take; the biased one of a single value.
    #[must_use]
    pub fn unbiased_variance(&self) -> Vec<f64> {
        let scale = self.count / (self.count - 1.0).max(1.0);
        self.variance.iter().map(|it| it * scale).collect()
    }

    fn inverse_deviation(&self, epsilon: f64, channel: usize) -> f64 {
        (self.variance[channel] + epsilon).sqrt().recip()
    }

    /// (x - mean) / sqrt(variance + `epsilon`) x weight + bias, by channel.
    #[must_use]
    pub fn forward(&self, epsilon: f64, weight: &[f32], bias: &[f32]) -> Vec<ForwardFactors> {
        let factors = |channel: usize| {
            let scale = f64::from(weight[channel]) * self.inverse_deviation(epsilon, channel);
            let (mean, lacking) = rounded(self.mean[channel]);
            let constant = f64::from(bias[channel]) - lacking * scale;
            ForwardFactors { mean, scale: scale as f32, constant: constant as f32 }
        };
        (0..self.mean.len()).map(factors).collect()
    }

    /// Turns the sums of gradients, and of gradients x values, into those of gradients, and of
    /// gradients x normalized values. They are the gradients of biases and weights.
    pub fn normalize_sums(&self, epsilon: f64, sums: &mut [f64]) {
        let (gradients, products) = sums.split_at_mut(self.mean.len());
        for (channel, (sum, product)) in gradients.iter().zip(products).enumerate() {
            let centered = *product - self.mean[channel] * sum;
            *product = centered * self.inverse_deviation(epsilon, channel);
        }
    }

    /// weight x inverse deviation x (gradient - mean gradient - normalized x mean of the products),
    /// by channel, from the sums of [`Self::normalize_sums`] over all ranks.
    #[must_use]
    pub fn backward(&self, epsilon: f64, weight: &[f32], sums: &[f64]) -> Vec<BackwardFactors> {
        let channels = self.mean.len();
        let of_all = |at: usize| sums[at] / self.count.max(1.0);
        let factors = |channel: usize| {
            let deviation = self.inverse_deviation(epsilon, channel);
            let scale = f64::from(weight[channel]) * deviation;
            let (mean, lacking) = rounded(self.mean[channel]);
            let by_value = scale * of_all(channels + channel) * deviation;
            let constant = (by_value * lacking - scale * of_all(channel)) as f32;
            BackwardFactors { mean, scale: scale as f32, by_value: by_value as f32, constant }
        };
        (0..channels).map(factors).collect()
    }
}

/// The gradients from the backward pass of a batch normalization.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchGradients {
    /// Of the activations before the normalization: of the sum of all ranks' losses.
    pub input: Vec<f32>,
    /// Of the weights, from the samples of this rank: ranks add it up with their other gradients.
    pub weight: Vec<f32>,
    /// Of the biases, from the samples of this rank.
    pub bias: Vec<f32>,
}

/// Normalizes with the statistics of all ranks. Ranks make the same calls in the same order; one
/// forward and one backward pass of a layer are one call each.
#[derive(Debug)]
pub struct SyncBatchNorm {
    comm: Mutex<Communicator>,
    epsilon: f64,
}

impl SyncBatchNorm {
    /// Takes a communicator for these layers alone ([`Communicator::duplicate`]): buckets of
    /// gradients are under way on another one during the backward pass. `epsilon` is added to the
    /// variance, usually 1e-5.
    #[must_use]
    pub fn new(comm: Communicator, epsilon: f64) -> Self {
        Self { comm: Mutex::new(comm), epsilon }
    }

    /// Adds up sums over all ranks, for a framework that normalizes itself: in the forward pass the
    /// sums and sums of squares of all channels and the count of a channel's values, in the
    /// backward pass the sums of gradients and of gradients x normalized values.
    ///
    /// # Errors
    /// If a peer is lost or has other channels.
    pub fn add_up(&self, sums: &mut [f64]) -> Result<()> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner).all_reduce(sums, ReduceOp::Sum)
    }

    /// The statistics of a training step: one all-reduce of 2 `channels` + 1 numbers. The sums are
    /// `f64`, where the variance by sums of squares is as exact as that of `f32` values needs.
    ///
    /// # Errors
    /// If there are not as many values as the shape says; and if a peer is lost or has other
    /// channels.
    pub fn statistics(&self, values: &[f32], shape: BatchShape) -> Result<BatchStatistics> {
        shape.check("SyncBatchNorm::statistics", "values", values)?;
        let mut sums = shape.moment_sums(values);
        self.add_up(&mut sums)?;
        Ok(BatchStatistics::from_sums(&sums))
    }

    /// (x - mean) / sqrt(variance + epsilon) x weight + bias: without communication, so an
    /// evaluation uses it with the running averages.
    ///
    /// # Errors
    /// If there are not as many values, weights or biases as the shape says.
    pub fn normalize(
        &self,
        values: &[f32],
        shape: BatchShape,
        statistics: &BatchStatistics,
        [weight, bias]: [&[f32]; 2],
    ) -> Result<Vec<f32>> {
        let call = "SyncBatchNorm::normalize";
        shape.check(call, "values", values)?;
        shape.check_channels(call, "weight", weight)?;
        shape.check_channels(call, "bias", bias)?;
        let factors = statistics.forward(self.epsilon, weight, bias);
        Ok(shape.normalized(values, &factors, |_| {}))
    }

    /// The gradients of a training step, from the values before the normalization and the gradient
    /// of its results: one all-reduce of 2 `channels` numbers.
    ///
    /// # Errors
    /// As [`Self::statistics`].
    pub fn backward(
        &self,
        values: &[f32],
        shape: BatchShape,
        statistics: &BatchStatistics,
        weight: &[f32],
        gradient: &[f32],
    ) -> Result<BatchGradients> {
        let call = "SyncBatchNorm::backward";
        shape.check(call, "values", values)?;
        shape.check(call, "gradient", gradient)?;
        shape.check_channels(call, "weight", weight)?;
        let mut sums = shape.sums(gradient, values);
        statistics.normalize_sums(self.epsilon, &mut sums);
        let mut bias: Vec<f32> = sums.iter().map(|it| *it as f32).collect();
        let of_weight = bias.split_off(shape.channels);
        self.add_up(&mut sums)?;
        let factors = statistics.backward(self.epsilon, weight, &sums);
        let input = shape.gradients(values, gradient, &factors);
        Ok(BatchGradients { input, weight: of_weight, bias })
    }
}

impl BatchShape {
    /// The channel and the values of each run of `area` values.
    pub fn planes<'a>(&self, values: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let channels = self.channels.max(1);
        let planes = values.chunks_exact(self.area.max(1)).enumerate();
        planes.map(move |(at, plane)| (at % channels, plane))
    }

    /// The sum of each channel's values, then the sum of each channel's products with others.
    #[must_use]
    pub fn sums(&self, values: &[f32], others: &[f32]) -> Vec<f64> {
        let mut sums = vec![0.0; 2 * self.channels];
        Arch::new().dispatch(|| {
            for ((channel, plane), (_, other)) in self.planes(values).zip(self.planes(others)) {
                let (sum, product) = sum_of_pairs(plane, other);
                sums[channel] += sum;
                sums[self.channels + channel] += product;
            }
        });
        sums
    }

    /// The sum and the sum of squares of each channel's values, then how many values a channel has.
    #[must_use]
    pub fn moment_sums(&self, values: &[f32]) -> Vec<f64> {
        let mut sums = self.sums(values, values);
        sums.push((self.samples * self.area) as f64);
        sums
    }

    /// The normalized values. `finish` gets those of each plane while they are in the cache.
    #[must_use]
    pub fn normalized(
        &self,
        values: &[f32],
        factors: &[ForwardFactors],
        finish: impl Fn(&mut [f32]),
    ) -> Vec<f32> {
        let mut all = Vec::with_capacity(values.len());
        for (channel, plane) in self.planes(values) {
            let (start, factors) = (all.len(), factors[channel]);
            all.extend(plane.iter().map(|value| factors.normalized(*value)));
            finish(&mut all[start..]);
        }
        all
    }

    /// The gradients of values, from those of their normalized values.
    #[must_use]
    pub fn gradients(
        &self,
        values: &[f32],
        gradients: &[f32],
        factors: &[BackwardFactors],
    ) -> Vec<f32> {
        let mut all = Vec::with_capacity(values.len());
        for ((channel, plane), (_, gradients)) in self.planes(values).zip(self.planes(gradients)) {
            let (both, factors) = (plane.iter().zip(gradients), factors[channel]);
            all.extend(both.map(|(value, gradient)| factors.gradient(*value, *gradient)));
        }
        all
    }

    fn check(&self, call: &'static str, argument: &'static str, values: &[f32]) -> Result<()> {
        if values.len() == self.samples * self.channels * self.area {
            return Ok(());
        }
        let given = format!("{} values", values.len());
        Err(Error::argument(call, argument, given, format!("as many as {self:?} has")))
    }

    fn check_channels(
        &self,
        call: &'static str,
        argument: &'static str,
        values: &[f32],
    ) -> Result<()> {
        if values.len() == self.channels {
            return Ok(());
        }
        let given = format!("{} values", values.len());
        Err(Error::argument(call, argument, given, format!("one for each of {self:?}")))
    }
}

/// A number as `f32`, and what the rounding has taken from it.
fn rounded(it: f64) -> (f32, f64) {
    let rounded = it as f32;
    (rounded, it - f64::from(rounded))
}

/// The sum of `one`, and of its products with `other`. Eight sums each let the compiler use
/// vectors.
#[inline(always)]
fn sum_of_pairs(one: &[f32], other: &[f32]) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut sums, mut products) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    let (ones, one_rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in ones.iter().zip(others) {
        for lane in 0..LANES {
            let it = f64::from(one[lane]);
            sums[lane] += it;
            products[lane] += it * f64::from(other[lane]);
        }
    }
    for (one, other) in one_rest.iter().zip(other_rest) {
        sums[0] += f64::from(*one);
        products[0] += f64::from(*one) * f64::from(*other);
    }
    (sums.iter().sum(), products.iter().sum())
}
