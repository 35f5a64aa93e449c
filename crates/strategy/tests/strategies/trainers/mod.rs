//! Synchronous trainings in which all ranks have the whole model.

mod batch_norm;
mod determinism;
mod divergence;
mod elastic;
mod overlap;
mod settings_differ;
mod shares;
mod sinks;
mod states;
mod training;
