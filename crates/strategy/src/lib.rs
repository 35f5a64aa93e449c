//! Strategies of distributed training, for any framework. A framework implements [`Model`]; a
//! [`Trainer`] does the rest of each step: it combines the gradients of all ranks as its
//! [`Strategy`] says, updates the parameters, and gives them to all models. A [`Worker`] has a
//! [`Server`] do this, in step with the others or not.
//! `strategy` the table of strategies · `sums` the gradients of a step · `exchange` what happens to
//! full buckets · `buckets` their
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
mod error;
mod exchange;
mod model;
mod optimizer;
mod parameter_server;
mod pipeline;
mod share;
mod state;
mod strategy;
mod sums;
mod tensor_parallel;
mod trace;
mod trainer;
mod updater;

pub use batch_norm::{
    BackwardFactors, BatchGradients, BatchShape, BatchStatistics, ForwardFactors, SyncBatchNorm,
};
pub use buckets::bucket_sizes;
pub use concurrent::{OnDevice, Turns};
pub use config::JobConfig;
pub use cost::{memory_bytes, sent_bytes};
pub use device::{DeviceTrainer, Shard, Totals};
pub use divergence::{Divergence, NotFinite};
pub use error::{Error, JobError};
pub use gradients::BucketSizes;
pub use model::{Model, Parameters, Part, Sink};
pub use optimizer::{Optimizer, clip_scale};
pub use parameter_server::{
    Groups, Layout, Member, Policy, Restored, Role, Server, ServerReport, ServerSettings,
    SnapshotFolder, SnapshotStore, Snapshots, Worker, replace_file, server_bytes,
};
pub use pipeline::{
    PipelineSchedule, PipelineSettings, PipelineStep, PipelineTimes, PipelineTrainer, Stage, Work,
    balanced_stages, bubble,
};
pub use share::{epoch_order, share};
pub use state::{ParameterState, State};
pub use strategy::{CrossDeviceOp, Strategy};
pub use tensor_parallel::{LinearPart, Mapping, TensorParallel};
pub use trace::BucketTrace;
pub use trainer::{Settings, Step, Times, Trainer};
pub use updater::Updater;
