//! Buffers of CUDA devices, with a stand-in for the driver; and the kernels.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "tests/process.rs uses the functions that processes run")]

pub(crate) mod cuda_facts;
pub(crate) mod cuda_kernels;
pub(crate) mod device;
pub(crate) mod standin;

// The library's `names.rs`, which is built here too, imports this path.
use cuda_kernels::element;
