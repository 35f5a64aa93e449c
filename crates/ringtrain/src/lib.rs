//! Training of image models by every strategy of ringreduce.
//! `cli` is the command line · `data` the images · `models` the networks · `parallel` networks
//! split over ranks · `run` trainings · `ways` what differs between them · `checkpoint` their
//! state in files · `report` tables, charts and files · `compare` all strategies side by side ·
//! `lessons` five lessons with expected figures. Law: n ranks with a batch have the losses of one
//! rank with that batch, except for rounding.
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "the names say it; only the tests of this program use the library")]

mod checkpoint;
mod cli;
mod compare;
pub mod data;
mod error;
mod lessons;
pub mod models;
pub mod parallel;
mod report;
mod run;
mod ways;

pub use checkpoint::{Buffers, Checkpoints, Snapshot, Weights};
pub use cli::{
    CheckpointArgs, Cli, Command, CompareArgs, DataArgs, Decay, LessonArgs, LessonName,
    OptimizerName, PipelineOrder, PolicyName, Settings, TrainArgs, WorkerGroups, name,
};
pub use compare::compare;
pub use data::{Dataset, Generated, Source};
pub use error::{Error, LastGood, Result};
pub use lessons::lesson;
pub use run::{
    EpochReport, History, Job, Outcome, PipelineOutcome, STOPPED, THREADS, train, train_local,
};
pub use ways::StrategyName;
