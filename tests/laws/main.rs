//! The laws of the pure modules: schedules, the simulator, membership, settings; and the executor
//! compared with the simulator.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod algorithms;
mod decoders;
pub(crate) mod environment;
pub(crate) mod every_schedule;
pub(crate) mod executor;
mod garbage;
pub(crate) mod hierarchical;
pub(crate) mod literature;
pub(crate) mod membership;
pub(crate) mod messages;
pub(crate) mod mutants;
pub(crate) mod offers;
mod stages;
pub(crate) mod violations;
pub(crate) mod work;
