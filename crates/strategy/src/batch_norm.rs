//! Batch normalization over the samples of all ranks (Ioffe and Szegedy, 2015; synchronised as in
//! `MegDet`, Peng et al., 2018). Law: the results are those of one rank that has the whole batch,
//! whatever the lengths of the parts.

use std::sync::{Mutex, PoisonError};

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
    /// The values of each channel, over all ranks.
    pub count: f64,
}

impl BatchStatistics {
    /// The variance without bias, which running averages take; the biased one of a single value.
    #[must_use]
    pub fn unbiased_variance(&self) -> Vec<f64> {
        let scale = self.count / (self.count - 1.0).max(1.0);
        self.variance.iter().map(|it| it * scale).collect()
    }
}

/// What the backward pass of a batch normalization gives.
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
        let channels = shape.channels;
        let mut sums = vec![0.0; 2 * channels + 1];
        for (channel, area) in shape.areas(values) {
            let (sum, squares) = sum_of_pairs(area, area);
            sums[channel] += sum;
            sums[channels + channel] += squares;
        }
        sums[2 * channels] = (shape.samples * shape.area) as f64;
        self.add_up(&mut sums)?;
        let count = sums[2 * channels];
        let mean: Vec<f64> = sums[..channels].iter().map(|sum| sum / count.max(1.0)).collect();
        let variance = mean.iter().zip(&sums[channels..]);
        let variance = variance.map(|(mean, squares)| squares / count.max(1.0) - mean * mean);
        Ok(BatchStatistics { variance: variance.map(|it| it.max(0.0)).collect(), mean, count })
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
        // The mean is subtracted first, as f32, and what it lacks is a part of the constant: so a
        // mean that is large beside the deviation costs no digits.
        let factors: Vec<[f32; 3]> = (0..shape.channels)
            .map(|channel| {
                let scale =
                    f64::from(weight[channel]) * self.inverse_deviation(statistics, channel);
                let (mean, lacking) = rounded(statistics.mean[channel]);
                let constant = f64::from(bias[channel]) - lacking * scale;
                [mean, scale as f32, constant as f32]
            })
            .collect();
        let mut normalized = Vec::with_capacity(values.len());
        for (channel, area) in shape.areas(values) {
            let [mean, scale, constant] = factors[channel];
            normalized.extend(area.iter().map(|value| (value - mean) * scale + constant));
        }
        Ok(normalized)
    }

    fn inverse_deviation(&self, statistics: &BatchStatistics, channel: usize) -> f64 {
        (statistics.variance[channel] + self.epsilon).sqrt().recip()
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
        let channels = shape.channels;
        // The sums of gradients, and of gradients x values.
        let mut sums = vec![0.0; 2 * channels];
        for ((channel, area), (_, gradient)) in shape.areas(values).zip(shape.areas(gradient)) {
            let (sum, products) = sum_of_pairs(gradient, area);
            sums[channel] += sum;
            sums[channels + channel] += products;
        }
        let deviation: Vec<f64> =
            (0..channels).map(|channel| self.inverse_deviation(statistics, channel)).collect();
        // The sums of gradients x normalized values.
        for channel in 0..channels {
            let centered = sums[channels + channel] - statistics.mean[channel] * sums[channel];
            sums[channels + channel] = centered * deviation[channel];
        }
        let floats = |sums: &[f64]| sums.iter().map(|it| *it as f32).collect::<Vec<f32>>();
        let (bias, of_weight) = (floats(&sums[..channels]), floats(&sums[channels..]));
        self.add_up(&mut sums)?;
        // weight x deviation x (gradient - mean gradient - normalized x mean of the products), as
        // factors of the gradient and the centered value, and a constant.
        let factors: Vec<[f32; 4]> = (0..channels)
            .map(|channel| {
                let scale = f64::from(weight[channel]) * deviation[channel];
                let of_all = |at: usize| sums[at] / statistics.count.max(1.0);
                let (mean, lacking) = rounded(statistics.mean[channel]);
                let by_value = scale * of_all(channels + channel) * deviation[channel];
                let constant = by_value * lacking - scale * of_all(channel);
                [mean, scale as f32, by_value as f32, constant as f32]
            })
            .collect();
        let mut input = Vec::with_capacity(values.len());
        for ((channel, area), (_, gradient)) in shape.areas(values).zip(shape.areas(gradient)) {
            let [mean, scale, by_value, constant] = factors[channel];
            let pairs = area.iter().zip(gradient);
            input
                .extend(pairs.map(|(value, it)| scale * it - by_value * (value - mean) + constant));
        }
        Ok(BatchGradients { input, weight: of_weight, bias })
    }
}

impl BatchShape {
    /// The channel of each run of `area` values.
    fn areas<'a>(&self, values: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let channels = self.channels.max(1);
        let areas = values.chunks_exact(self.area.max(1)).enumerate();
        areas.map(move |(at, area)| (at % channels, area))
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
