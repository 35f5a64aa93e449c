//! How to train: what all ranks must agree on.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;
use strategy::{BucketSizes, Optimizer, Policy};

use super::choices::{Decay, OptimizerName, PipelineOrder, PolicyName, WorkerGroups};
use super::values::{above_zero, below_one, bucket_bytes, loaders, positive};
use crate::models::ModelKind;
use crate::ways::StrategyName;

/// How to train.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Settings {
    /// How ranks share the training
    #[arg(long, value_enum, default_value = "mirrored")]
    pub strategy: StrategyName,
    /// The model to train
    #[arg(long, value_enum, default_value = "lenet")]
    pub model: ModelKind,
    /// Times to go through the training images
    #[arg(long, default_value = "12", value_name = "N", value_parser = positive)]
    pub epochs: usize,
    /// Images per step over all ranks; an epoch's last batch may be smaller
    #[arg(long, default_value = "24", value_name = "N", value_parser = positive)]
    pub batch: usize,
    /// How parameters are updated
    #[arg(long, value_enum, default_value = "sgd")]
    pub optimizer: OptimizerName,
    /// Learning rate; by default 0.02 for sgd, 0.001 for adam, 2 for lars, 0.005 for lamb
    #[arg(long, allow_negative_numbers = true, value_parser = above_zero)]
    pub lr: Option<f32>,
    /// How the learning rate falls; by default linear, and constant for parameter servers
    #[arg(long, value_enum)]
    pub decay: Option<Decay>,
    /// Steps in which the learning rate grows from 0
    #[arg(long, default_value = "0", value_name = "N")]
    pub warmup: usize,
    /// Momentum of sgd and lars, 0 for none
    #[arg(long, default_value = "0.9", allow_negative_numbers = true, value_parser = below_one)]
    pub momentum: f32,
    /// Weight decay
    #[arg(long, default_value = "0", allow_negative_numbers = true, value_parser = below_one)]
    pub weight_decay: f32,
    /// Seed of the first weights and of the order of images
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,
    /// Compute a rank's part of a batch in K pieces, which takes less memory
    #[arg(long, default_value = "1", value_name = "K", value_parser = positive)]
    pub accumulate: usize,
    /// Scale gradients down to this norm of all of them
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = above_zero)]
    pub clip_norm: Option<f32>,
    /// Bytes of gradients per exchange; by default those of the cost model
    #[arg(long, value_name = "N", value_parser = bucket_bytes)]
    pub bucket_bytes: Option<usize>,
    /// Threads of each rank that make its batches ahead of their use
    #[arg(long, default_value = "1", value_name = "N", value_parser = loaders)]
    pub loaders: usize,
    /// Normalize by the samples of all ranks where a model has batch norm
    #[arg(long)]
    pub sync_batch_norm: bool,
    /// Do not train layers whose names begin with PREFIX (may be given several times)
    #[arg(long, value_name = "PREFIX")]
    pub freeze: Vec<String>,
    /// Begin with the parameters of this checkpoint, or of the newest one in this folder
    #[arg(long, value_name = "FILE|DIR")]
    pub weights: Option<PathBuf>,
    /// Do not take layers from --weights whose name begins so (may be given several times)
    #[arg(long, value_name = "PREFIX", requires = "weights")]
    pub weights_except: Vec<String>,
    /// Micro-batches of a pipeline
    #[arg(long, default_value = "4", value_name = "N", value_parser = positive)]
    pub micro_batches: usize,
    /// In which order a pipeline computes
    #[arg(long, value_enum, default_value = "1f1b")]
    pub order: PipelineOrder,
    /// Ranks that are parameter servers
    #[arg(long, default_value = "1", value_name = "K", value_parser = positive)]
    pub servers: usize,
    /// Which workers add up their gradients, so that one of them pushes the sum: none, those of one
    /// host, or those of each of N groups
    #[arg(long, default_value = "each", value_name = "each|host|N")]
    pub groups: WorkerGroups,
    /// When parameter servers update
    #[arg(long, value_enum, default_value = "synchronous")]
    pub policy: PolicyName,
    /// Steps that an asynchronous worker may be ahead of the slowest one; else no bound
    #[arg(long, value_name = "S")]
    pub bound: Option<u64>,
    /// Seconds to wait for lost ranks, which ringrun --elastic starts again; by default the
    /// --worker-timeout with parameter servers, and the timeout of calls where ranks have parts of
    /// the model
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub patience: Option<usize>,
    /// Seconds without a sign of life after which servers go on without a worker
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = positive)]
    pub worker_timeout: usize,
    /// Workers whose gradients a synchronous server does not wait for
    #[arg(long, default_value = "0", value_name = "B")]
    pub backups: usize,
}

/// The defaults are those of the command line.
impl Default for Settings {
    fn default() -> Self {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            settings: Settings,
        }
        Alone::parse_from(["ringtrain"]).settings
    }
}

impl Settings {
    #[must_use]
    pub const fn optimizer(&self) -> Optimizer {
        self.optimizer.optimizer(self.momentum, self.weight_decay)
    }

    /// The learning rate of a step, from 0, of `steps` in all.
    #[must_use]
    pub fn rate(&self, step: u64, steps: u64) -> f32 {
        let rate = self.lr.unwrap_or_else(|| self.optimizer.usual_rate());
        let warmup = self.warmup as u64;
        if step < warmup {
            return rate * (step + 1) as f32 / warmup as f32;
        }
        match self.decay {
            Some(Decay::Constant) => rate,
            Some(Decay::Linear) | None => {
                let (done, all) = (step - warmup, steps.saturating_sub(warmup).max(1));
                rate * (1.0 - done as f32 / all as f32)
            }
        }
    }

    #[must_use]
    pub fn buckets(&self) -> Option<BucketSizes> {
        self.bucket_bytes.map(|bytes| BucketSizes { first: bytes, others: bytes })
    }

    /// How many of these workers, which are on so many hosts, push to parameter servers.
    #[must_use]
    pub fn pushers(&self, workers: usize, hosts: usize) -> usize {
        match self.groups {
            WorkerGroups::Each => workers,
            WorkerGroups::Host => hosts.min(workers),
            WorkerGroups::Number(groups) => groups.min(workers),
        }
    }

    #[must_use]
    pub const fn policy(&self) -> Policy {
        match self.policy {
            PolicyName::Synchronous => Policy::Synchronous { backups: self.backups },
            PolicyName::Asynchronous => Policy::Asynchronous { bound: self.bound },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Decay, Settings};

    #[test]
    fn the_rate_grows_and_then_falls_to_zero() {
        let settings = Settings { lr: Some(1.0), warmup: 4, ..Settings::default() };
        let rates: Vec<f32> = (0..8).map(|step| settings.rate(step, 8)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]);
        let settings = Settings { decay: Some(Decay::Constant), ..settings };
        assert_eq!(settings.rate(7, 8), 1.0);
    }
}
