//! Ranks that are processes: faults, recovery, and limits of the system.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod elastic;
pub(crate) mod exhaustion;
pub(crate) mod faults;
pub(crate) mod storm;
pub(crate) mod system;
