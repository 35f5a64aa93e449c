//! Communicators whose ranks are threads: verbs, groups, links, registered memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "functions that tests/process.rs runs are built here too")]

pub(crate) mod allocations;
pub(crate) mod arguments;
pub(crate) mod c_functions;
pub(crate) mod call_options;
mod calls_by_value;
pub(crate) mod collectives;
pub(crate) mod create_group;
pub(crate) mod flight_record;
pub(crate) mod groups;
mod interrupt;
pub(crate) mod links;
mod longest_message;
mod message_requests;
pub(crate) mod messages;
pub(crate) mod monitor;
mod names;
mod no_memory;
pub(crate) mod nonblocking;
pub(crate) mod nonblocking_verbs;
pub(crate) mod objects;
pub(crate) mod options;
pub(crate) mod panicking_subscriber;
pub(crate) mod registered;
pub(crate) mod single_copy;
pub(crate) mod subgroups;
pub(crate) mod user_schedule;
mod waiting_threads;

use ringreduce::{Error, ReduceOp, Result};

const SUM: ReduceOp = ReduceOp::Sum;

/// The text of an error.
fn message(result: Result<()>) -> String {
    result.unwrap_err().to_string()
}

/// All calls have failed, at least one because they differ.
fn assert_mismatch(results: &[Result<()>]) {
    let is_mismatch = results.iter().any(|result| matches!(result, Err(Error::Mismatch { .. })));
    assert!(is_mismatch && results.iter().all(Result::is_err), "{results:?}");
}
