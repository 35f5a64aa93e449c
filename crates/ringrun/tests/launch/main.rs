//! ringrun with real processes: every promise of its help page, and that nothing is left behind.

// The harness and the helpers belong to the tests, which clippy only sees in #[test] functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cleanup;
mod elastic;
mod endings;
mod harness;
mod output;
mod plan;
mod ranks;
mod secret;
mod signals;
mod subcommands;
mod words;
