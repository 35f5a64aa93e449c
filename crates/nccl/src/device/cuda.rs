//! The device of a communicator, and operations on it.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};
use foreign::Operation;
use foreign::device::{is_device_memory, is_present, put_all};
use ringreduce::Communicator;

use crate::abi::code;
use crate::failure::{Failure, Outcome};
use crate::handle::Rank;

/// The device that was current when the communicator was made.
#[derive(Debug)]
pub(crate) struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    pub(crate) fn ordinal(&self) -> c_int {
        self.context.ordinal() as c_int
    }
}

/// Gives the communicator the device with this number, if there is one. All ranks call this, with
/// and without devices.
pub(crate) fn attach(comm: &mut Communicator, ordinal: Option<c_int>) -> Outcome<Option<Device>> {
    let Some(ordinal) = ordinal.filter(|_| is_present()) else {
        comm.use_no_device()?;
        return Ok(None);
    };
    let failed = |error| {
        Failure::new(code::UNHANDLED_CUDA_ERROR, format_args!("using device {ordinal}: {error}"))
    };
    let made = usize::try_from(ordinal)
        .map_err(|_| Failure::argument(format_args!("device {ordinal}: no such device")))
        .and_then(|ordinal| CudaContext::new(ordinal).map_err(failed));
    match made {
        Ok(context) => {
            comm.use_device(&context)?;
            Ok(Some(Device { context }))
        }
        Err(failure) => {
            // The other ranks wait for what this one has.
            comm.use_no_device()?;
            Err(failure)
        }
    }
}

/// The device of this thread's current context, or else the first one; none where no device is.
pub(crate) fn current() -> Option<c_int> {
    if !is_present() {
        return None;
    }
    let mut device = 0;
    // SAFETY: the driver is there, and `device` is a place for the answer.
    let answer = unsafe { sys::cuCtxGetDevice(&raw mut device) };
    Some(if answer == CUresult::CUDA_SUCCESS { device } else { 0 })
}

fn answered(doing: &str, answer: CUresult) -> Outcome<()> {
    if answer == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Failure::new(code::UNHANDLED_CUDA_ERROR, format_args!("{doing}: {answer:?}")))
}

/// Puts the operations on their streams if their buffers are a device's; false if they are the
/// host's.
pub(crate) fn carries_out(rank: &mut Rank, operations: &[Operation]) -> Outcome<bool> {
    Ok(rank.device.is_some() && put_all(&mut rank.comm, operations)?)
}

/// Allocates device memory; none where no context is current.
pub(crate) fn allocate(bytes: usize) -> Outcome<Option<usize>> {
    let mut device = 0;
    // SAFETY: the driver is there if the first part is true, and `device` is a place for an answer.
    if !is_present() || unsafe { sys::cuCtxGetDevice(&raw mut device) } != CUresult::CUDA_SUCCESS {
        return Ok(None);
    }
    let mut start = 0;
    // SAFETY: a context is current, and `start` is a place for the address.
    let answer = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes) };
    answered("allocating device memory", answer).map(|()| Some(start as usize))
}

/// Frees memory of [`allocate`]; false if it is none.
pub(crate) fn free(start: usize) -> Outcome<bool> {
    if !is_device_memory(start) {
        return Ok(false);
    }
    // SAFETY: the caller says that no work on it is left.
    answered("freeing device memory", unsafe { sys::cuMemFree_v2(start as u64) }).map(|()| true)
}
