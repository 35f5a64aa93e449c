//! A job: the model to train, and its data.
//! Law: settings that do not fit together are refused before any rank computes, with a remedy.

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::Weights;
use crate::cli::{DataArgs, OptimizerName, Settings, name};
use crate::data::{Dataset, Generated, Source};
use crate::error::{Error, Result};
use crate::models::Network;

/// The images and the settings of a training.
#[derive(Clone, Debug)]
pub struct Job {
    pub data: Dataset,
    pub settings: Settings,
    /// The parameters with which it begins; none for random ones.
    weights: Option<Arc<Weights>>,
}

impl Job {
    /// A training whose first weights are random.
    #[must_use]
    pub const fn new(data: Dataset, settings: Settings) -> Self {
        Self { data, settings, weights: None }
    }

    /// Loads the images. `generated` is for trainings without a folder.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn load(args: &DataArgs, generated: Generated, settings: Settings) -> Result<Self> {
        let source = match &args.data {
            Some(dir) => Source::detect(dir)?,
            None => Source::Generated(generated),
        };
        let mut data = Dataset::load(&source, args.side)?;
        if let Some(limit) = args.limit {
            data.limit(limit);
        }
        let load = |path: &PathBuf| Weights::load(path, &settings).map(Arc::new);
        let weights = settings.weights.as_ref().map(load).transpose()?;
        Ok(Self { data, settings, weights })
    }

    /// The network, whose first weights are the same at all ranks.
    pub(crate) fn network(&self) -> Result<Network> {
        let (data, settings) = (&self.data, &self.settings);
        let mut network =
            Network::new(settings.model, data.shape, data.classes.len(), settings.seed)?;
        if let Some(weights) = self.weights() {
            weights.give(&network, &settings.weights_except)?;
        }
        for prefix in &settings.freeze {
            if network.freeze(prefix) == 0 {
                let layers: Vec<&str> = network.layers().iter().map(|layer| layer.name()).collect();
                return Err(Error::Unfit(format!(
                    "--freeze {prefix} is the beginning of no parameter's name: the layers are {}",
                    layers.join(", ")
                )));
            }
        }
        if network.vars().is_empty() {
            let prefixes = settings.freeze.join(" --freeze ");
            return Err(Error::Unfit(format!(
                "--freeze {prefixes} leaves nothing to train: freeze fewer layers"
            )));
        }
        Ok(network)
    }

    pub(crate) fn weights(&self) -> Option<&Weights> {
        self.weights.as_deref()
    }

    /// Keeps the first `count` test images only.
    pub fn limit_tests(&mut self, count: usize) {
        self.data.limit_tests(count);
    }

    /// The steps of an epoch; the last one may be of a smaller batch.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        self.data.train.len().div_ceil(self.settings.batch)
    }

    /// The bytes of so many values of each training image.
    pub(crate) fn bytes_per_epoch(&self, values: usize) -> u64 {
        4 * self.data.train.len() as u64 * values as u64
    }

    /// The steps of the whole training.
    #[must_use]
    pub fn steps(&self) -> u64 {
        (self.steps_per_epoch() as u64).saturating_mul(self.settings.epochs as u64)
    }

    /// Refuses settings that do not fit the data, each other or `size` ranks.
    ///
    /// # Errors
    /// [`Error::Unfit`], which says what to change.
    pub fn check(&self, size: usize) -> Result<()> {
        let Settings { batch, strategy, optimizer, model, sync_batch_norm, .. } = self.settings;
        let count = self.data.train.len();
        if batch > count {
            return unfit(format!(
                "--batch {batch} is more than the {count} training images: make it smaller"
            ));
        }
        let warmup = self.settings.warmup as u64;
        if warmup > self.steps() {
            return unfit(format!(
                "--warmup {warmup} is more than the {} steps of the training, whose learning rate \
                 would never be the whole one: make it smaller, or --epochs larger",
                self.steps()
            ));
        }
        if sync_batch_norm && !model.has_batch_norm() {
            return unfit(format!(
                "--sync-batch-norm is for a model with batch norm, and {} has none: leave it out, \
                 or take --model mobilenet",
                name(&model)
            ));
        }
        if !self.suits_optimizer() {
            return unfit(format!(
                "--optimizer {} needs whole parameters, which --strategy {} splits: take sgd or \
                 adam, or --strategy mirrored",
                name(&optimizer),
                name(&strategy)
            ));
        }
        (strategy.way().check)(self, size)
    }

    /// Whether the optimizer gets whole parameters if it needs them.
    #[must_use]
    pub(crate) fn suits_optimizer(&self) -> bool {
        !self.settings.strategy.way().splits_parameters
            || !matches!(self.settings.optimizer, OptimizerName::Lars | OptimizerName::Lamb)
    }

    /// Each of `size` ranks needs images of its own.
    pub(crate) fn check_share(&self, size: usize, who: &str) -> Result<()> {
        let Settings { batch, accumulate, .. } = self.settings;
        if batch < size {
            return unfit(format!(
                "--batch {batch} is less than the {size} {who}, each of which takes a part of it: \
                 make it at least {size}"
            ));
        }
        let share = batch / size;
        if accumulate > share {
            return unfit(format!(
                "--accumulate {accumulate} is more than the {share} images of a rank: make it \
                 smaller"
            ));
        }
        Ok(())
    }
}

pub(crate) fn unfit(text: String) -> Result<()> {
    Err(Error::Unfit(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::Job;
    use crate::cli::Settings;
    use crate::data::{Dataset, Generated, Source};

    #[test]
    fn a_training_may_have_as_many_epochs_as_a_user_can_say() {
        let source = Source::Generated(Generated { train: 60, test: 1, is_colour: false });
        let data = Dataset::load(&source, None).unwrap();
        let settings = Settings { epochs: usize::MAX, batch: 10, ..Settings::default() };
        let job = Job::new(data, settings);
        assert_eq!(job.steps(), u64::MAX);
        assert!(job.settings.rate(1 << 40, job.steps()) > 0.0);
    }
}
