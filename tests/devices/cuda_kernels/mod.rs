//! The CUDA kernels: compiled for this machine they give the bits of the library's kernels for the
//! host; every defined reduction has one; their PTX is up to date, has no slow instruction and none
//! that flushes subnormals, and gives the same bits on a device.

pub(crate) mod device;
pub(crate) mod every_value;
pub(crate) mod fold;
pub(crate) mod host;
pub(crate) mod moves;
pub(crate) mod ptx;

use super::standin::{self, DEVICES, on_standin};

/// The library's table of kernels and the reductions that they serve.
#[path = "../../../src/device/cuda/kernel_names.rs"]
pub(crate) mod names;
/// Types and operations, as the table imports them.
pub(crate) mod element {
    pub(crate) use ringreduce::{DataType, ReduceOp};
}

/// The function that a test runs with the stand-in, and tests/gpu/run on a device.
pub(crate) mod body {
    pub(crate) fn on_this_machine() {
        super::device::check_all();
    }
}

on_standin! {
    all_kernels_on_the_stand_in: on_this_machine [DEVICES = "1"];
}
