//! Numbers: kernels beside arithmetic, and whole collectives beside what docs/numerics.md promises.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod accuracy;
pub(crate) mod adversarial;
pub(crate) mod determinism;
pub(crate) mod levels;
pub(crate) mod matrix;
pub(crate) mod numerics;
pub(crate) mod oracle;
pub(crate) mod reductions;
