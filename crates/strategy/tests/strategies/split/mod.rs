//! Models that are split over the ranks: pipelines and tensor-parallel layers.
//! And two trainings at a time.

mod concurrent;
mod determinism;
mod pipeline_schedules;
mod pipelines;
mod tensor_parallel;
