//! Numbers: kernels compared with plain arithmetic, and collectives with the promises of
//! docs/numerics.md.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "functions that tests/process.rs runs are built here too")]

pub(crate) mod accuracy;
pub(crate) mod adversarial;
pub(crate) mod blocks;
pub(crate) mod determinism;
pub(crate) mod floats;
pub(crate) mod instruction_sets;
pub(crate) mod matrix;
pub(crate) mod numerics;
pub(crate) mod reductions;
pub(crate) mod scalar;
