//! Strategies of distributed training, for any framework. A framework implements [`Model`]; a
//! [`Trainer`] does the rest of each step: it combines the gradients of all ranks as its
//! [`Strategy`] says, updates the parameters, and gives them to all models. A [`Worker`] has a
//! [`Server`] do this, in step with the others or not.
//! `sums` the gradients of a step · `exchange` what happens to full buckets · `buckets` their
//! sizes by the cost model · `state` what a checkpoint holds · `elastic` goes on when ranks are
//! lost, from `copies` of the state · `config` the settings that ranks share · `parameter_server`
//! servers and workers · `pipeline`, `tensor_parallel` models split over ranks · `device` gradients
//! on CUDA devices · `concurrent` steps that share a device · `cost` bytes by formula.
#![forbid(unsafe_code)]

mod batch_norm;
mod buckets;
mod concurrent;
mod config;
mod copies;
mod cost;
mod device;
mod divergence;
mod elastic;
mod exchange;
mod model;
mod optimizer;
mod parameter_server;
mod pipeline;
mod share;
mod state;
mod sums;
mod tensor_parallel;
mod trace;
mod trainer;
mod updater;

use std::fmt;

pub use batch_norm::{BatchGradients, BatchShape, BatchStatistics, SyncBatchNorm};
pub use buckets::bucket_sizes;
pub use concurrent::{Device, OnDevice};
pub use config::JobConfig;
pub use cost::{memory_bytes, sent_bytes};
pub use device::{DeviceTrainer, Shard, Totals};
pub use divergence::{Divergence, NotFinite};
pub use gradients::BucketSizes;
pub use model::{Model, Part, Sink};
pub use optimizer::{Optimizer, clip_scale};
pub use parameter_server::{
    Groups, Layout, Member, Policy, Restored, Role, Server, ServerError, ServerReport,
    ServerSettings, SnapshotFolder, SnapshotStore, Snapshots, Worker, replace_file, server_bytes,
};
pub use pipeline::{
    PipelineSchedule, PipelineSettings, PipelineStep, PipelineTimes, PipelineTrainer, Stage, Work,
    balanced_stages, bubble,
};
pub use share::{epoch_order, share};
pub use state::{ParameterState, State};
pub use tensor_parallel::{LinearPart, Mapping, TensorParallel};
pub use trace::BucketTrace;
pub use trainer::{Settings, Step, Times, Trainer};
pub use updater::Updater;

/// Where gradients are reduced, and where parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Every rank has the parameters and updates them itself (TensorFlow's `MirroredStrategy` and
    /// `MultiWorkerMirroredStrategy`; PyTorch's `DistributedDataParallel`).
    Mirrored(CrossDeviceOp),
    /// Rank 0 has the parameters and updates them; all ranks compute gradients (TensorFlow's
    /// `CentralStorageStrategy`).
    CentralStorage,
    /// Rank 0 adds up copies of all gradients and sends copies of the sum to all ranks: the
    /// baseline of the field's lessons.
    Naive,
    /// Each rank has the state of the optimizer for a part of the parameters, and updates that part
    /// (Rajbhandari et al., ZeRO, 2020, stage 1).
    ShardedOptimizer,
    /// The same, and each rank keeps the reduced gradients of its part alone: buckets take turns in
    /// the memory of two of them (ZeRO, stage 2).
    ShardedGradients,
}

/// How mirrored ranks get the sum of their gradients (TensorFlow's `CrossDeviceOps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CrossDeviceOp {
    /// An all-reduce by the algorithm that suits the length: TensorFlow's `NcclAllReduce`.
    #[default]
    AllReduce,
    /// Pairs of ranks add up along a binomial tree, and the sum goes back along the same tree:
    /// `HierarchicalCopyAllReduce`.
    HierarchicalCopy,
    /// A reduction to rank 0, then a broadcast: `ReductionToOneDevice`.
    ReductionToOneDevice,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 7] = [
        Self::Mirrored(CrossDeviceOp::AllReduce),
        Self::Mirrored(CrossDeviceOp::HierarchicalCopy),
        Self::Mirrored(CrossDeviceOp::ReductionToOneDevice),
        Self::CentralStorage,
        Self::Naive,
        Self::ShardedOptimizer,
        Self::ShardedGradients,
    ];

    /// Whether each rank updates a part of the parameters.
    #[must_use]
    pub const fn is_sharded(self) -> bool {
        matches!(self, Self::ShardedOptimizer | Self::ShardedGradients)
    }

    /// The name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mirrored(CrossDeviceOp::AllReduce) => "mirrored",
            Self::Mirrored(CrossDeviceOp::HierarchicalCopy) => "mirrored-hierarchical-copy",
            Self::Mirrored(CrossDeviceOp::ReductionToOneDevice) => "mirrored-one-device",
            Self::CentralStorage => "central-storage",
            Self::Naive => "naive",
            Self::ShardedOptimizer => "sharded-optimizer",
            Self::ShardedGradients => "sharded-gradients",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a training fails.
#[derive(Debug, thiserror::Error)]
pub enum Error<M> {
    /// A rank is lost, ranks do different things, or an argument is wrong.
    #[error(transparent)]
    Ranks(#[from] ringreduce::Error),
    /// The model can't compute something.
    #[error("{0}")]
    Model(M),
    /// The optimizer's state was lost with the ranks that had it and its copy.
    #[error(
        "the optimizer's state of step {0} was lost with the ranks that had it; load the last \
         checkpoint"
    )]
    StateLost(u64),
    /// A state of another model or optimizer; nothing was changed by it.
    #[error("the training can't go on from this state: {0}")]
    State(String),
    /// The loss of a step is no finite number; no parameter was changed by it.
    #[error("the loss of step {step} is {loss}: {cause}; try a smaller learning rate")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The loss over the whole batch; not a number if a gradient alone is not finite.
        loss: f32,
        /// The first rank with a number that is not finite, and what that number is of.
        cause: Divergence,
    },
}
