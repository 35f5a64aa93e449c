//! The CUDA kernels: their arithmetic, compiled for this machine, gives the bits of the library's
//! own kernels; there is one for whatever is defined; their PTX is what the sources make, and has
//! nothing in it that is slow or flushes subnormals.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod every_value;
mod fold;
mod host;
mod moves;
mod names;
mod ptx;

/// What the host's kernels are tested with.
#[path = "../kernels/guarded.rs"]
#[allow(dead_code, reason = "not all of it is needed for these")]
mod guarded;
