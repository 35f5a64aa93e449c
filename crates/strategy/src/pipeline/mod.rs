//! Pipelines: the layers of a model are split into stages, one for each rank, and a batch goes
//! through them in micro-batches, so that all stages compute at once. With one micro-batch a
//! pipeline is plain model parallelism.
//! `balance` which layers a stage has · `schedule` what it does in which order · `run` the passes
//! of a step · `trainer` whole steps, of one pipeline or of several replicas · `report` what the
//! stages tell each other at the end of a step · `state` what a checkpoint holds.

mod balance;
mod report;
mod run;
mod schedule;
mod state;
mod trainer;

pub use balance::balanced_stages;
pub use run::{PipelineTimes, Stage};
pub use schedule::{PipelineSchedule, Work, bubble};
pub use trainer::{PipelineSettings, PipelineStep, PipelineTrainer};
