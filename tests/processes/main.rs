//! Ranks that are processes: faults, recovery, and resource limits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "functions that tests/process.rs runs are built here too")]

pub(crate) mod elastic;
pub(crate) mod faults;
pub(crate) mod fork;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod registration;
pub(crate) mod storm;
