//! The laws of what is arithmetic alone: schedules, the simulator, membership, settings; and the
//! executor beside the simulator.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub(crate) mod algorithms;
pub(crate) mod environment;
pub(crate) mod every_schedule;
pub(crate) mod exec;
pub(crate) mod hierarchical;
pub(crate) mod membership;
pub(crate) mod mutants;
pub(crate) mod ring;
pub(crate) mod schedules;
pub(crate) mod trees_and_rings;
