//! The CUDA kernels: their arithmetic, compiled for this machine, gives the bits of the library's
//! own kernels; there is one for whatever is defined; their PTX is what the sources make, has
//! nothing in it that is slow or flushes subnormals, and gives the same bits on a device.

pub(crate) mod device;
pub(crate) mod every_value;
pub(crate) mod fold;
pub(crate) mod host;
pub(crate) mod moves;
pub(crate) mod ptx;

/// Which kernel serves what: the library's own table.
#[path = "../../../src/device/cuda/kernel_names.rs"]
pub(crate) mod names;
/// Where the table finds types and operations.
pub(crate) mod element {
    pub(crate) use ringreduce::{DataType, ReduceOp};
}

/// Not a test of its own: what is done on the stand-in, and on a machine with a device.
#[cfg(feature = "cuda")]
pub(crate) mod body {
    pub(crate) fn on_this_machine() {
        super::device::check_all();
    }
}
