//! Buffers of CUDA devices, on a stand-in for the driver; and the kernels.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "what processes do is built here, too, and used in tests/process.rs")]

pub(crate) mod cuda_facts;
pub(crate) mod cuda_kernels;
pub(crate) mod device;
pub(crate) mod standin;

// Where `names.rs` of the library, which is built here too, looks for it.
use cuda_kernels::element;
