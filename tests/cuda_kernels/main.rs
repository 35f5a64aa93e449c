//! The CUDA kernels: their arithmetic, compiled for this machine, gives the bits of the library's
//! own kernels; there is one for whatever is defined; their PTX is what the sources make, has
//! nothing in it that is slow or flushes subnormals, and gives the same bits on a device.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "cuda")]
mod device;
mod every_value;
mod fold;
mod host;
mod moves;
mod ptx;

/// Which kernel serves what: the library's own table.
#[path = "../../src/device/cuda/names.rs"]
mod names;
/// Where the table finds types and operations.
mod element {
    pub(crate) use ringreduce::{DataType, ReduceOp};
}

/// A device that is stood in for.
#[cfg(feature = "cuda")]
#[path = "../device/standin.rs"]
mod standin;

/// What the host's kernels are tested with.
#[path = "../kernels/guarded.rs"]
#[allow(dead_code, reason = "not all of it is needed for these")]
mod guarded;

/// Not a test of its own: what is done on the stand-in, and on a machine with a device.
#[cfg(feature = "cuda")]
mod body {
    #[test]
    #[ignore = "what another test does on the stand-in"]
    fn on_this_machine() {
        crate::device::check_all();
    }
}
