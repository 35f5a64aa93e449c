//! Ranks as real processes, with and without a launcher: one is killed, stops, makes another call,
//! or never comes; memory is short, hosts are two. Every rank ends as it should, in time, and
//! leaves nothing behind.

// The harness and the helpers belong to the tests, which clippy only sees in #[test] functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bodies;
mod disagreeing;
mod flight;
mod groups;
mod harness;
mod hosts;
mod killed;
mod leftovers;
mod links;
mod refused;
mod registered;
mod report;
mod seen;
mod speeds;
mod stopped;
mod strangers;
mod system;
