//! Pipelines: the layers of a model are split into stages, one for each rank, and a batch goes
//! through them in micro-batches, so that all stages compute at once.
//! `schedule` what a stage does in which order · `run` a step of one stage.

mod run;
mod schedule;

pub use run::{PipelineTimes, Stage, run};
pub use schedule::{PipelineSchedule, Work, bubble};
