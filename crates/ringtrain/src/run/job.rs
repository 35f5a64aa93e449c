//! What is trained on what. Law: settings that do not fit together are refused before any rank
//! computes, with a remedy.

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::Weights;
use crate::cli::{
    DataArgs, Decay, OptimizerName, PolicyName, Settings, StrategyName, WorkerGroups, name,
};
use crate::data::{Dataset, Generated, Source};
use crate::error::{Error, Result};

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
        match strategy {
            StrategyName::ParameterServer => self.check_servers(size),
            _ if strategy.data_parallel().is_some() => self.check_share(size, "ranks"),
            StrategyName::Pipeline if self.settings.micro_batches > batch => unfit(format!(
                "--micro-batches {} is more than --batch {batch}: make it smaller",
                self.settings.micro_batches
            )),
            _ => Ok(()),
        }
    }

    /// Whether the optimizer gets whole parameters if it needs them.
    #[must_use]
    pub(crate) fn suits_optimizer(&self) -> bool {
        let splits = matches!(
            self.settings.strategy,
            StrategyName::ShardedOptimizer
                | StrategyName::ShardedGradients
                | StrategyName::ParameterServer
                | StrategyName::TensorParallel
        );
        !splits || !matches!(self.settings.optimizer, OptimizerName::Lars | OptimizerName::Lamb)
    }

    /// Each of `size` ranks needs images of its own.
    fn check_share(&self, size: usize, who: &str) -> Result<()> {
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

    fn check_servers(&self, size: usize) -> Result<()> {
        let Settings { servers, groups, policy, bound, backups, decay, .. } = self.settings;
        if servers >= size {
            return unfit(format!(
                "--servers {servers} of {size} ranks leave no worker: start at least {} ranks",
                servers + 1
            ));
        }
        let workers = size - servers;
        if policy == PolicyName::Synchronous && bound.is_some() {
            return unfit("--bound is for --policy asynchronous".into());
        }
        if policy == PolicyName::Asynchronous && backups > 0 {
            return unfit("--backups is for --policy synchronous".into());
        }
        if let WorkerGroups::Number(groups) = groups
            && groups > workers
        {
            return unfit(format!(
                "--groups {groups} of {workers} workers leave groups without one: make it smaller"
            ));
        }
        let pushers = self.settings.pushers(workers, workers);
        if backups >= pushers {
            return unfit(format!(
                "--backups {backups} of {pushers} workers or groups leave none to wait for: make \
                 it smaller"
            ));
        }
        if decay == Some(Decay::Linear) {
            return unfit(
                "--decay linear is not for --strategy parameter-server, which keeps the learning \
                 rate: leave it out"
                    .into(),
            );
        }
        self.check_share(workers, "workers")
    }
}

fn unfit(text: String) -> Result<()> {
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
