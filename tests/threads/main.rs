//! Communicators whose ranks are threads, and what they consist of: verbs, groups, links,
//! registered memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod allocations;
pub(crate) mod by_function;
pub(crate) mod collectives;
pub(crate) mod flight;
pub(crate) mod groups;
pub(crate) mod links;
pub(crate) mod nonblocking;
pub(crate) mod options;
pub(crate) mod own_schedule;
pub(crate) mod registered;
pub(crate) mod together;
pub(crate) mod verbs;
