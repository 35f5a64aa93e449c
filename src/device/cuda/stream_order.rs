//! Copies on a device, and one stream after another. May touch: error. Unsafe: calls of the driver.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use cudarc::driver::{CudaContext, CudaEvent};

use super::driver::check;
use crate::error::{Error, Result};

/// Puts a copy within devices on the stream.
pub(crate) fn copy(stream: CUstream, to: CUdeviceptr, from: CUdeviceptr, len: usize) -> Result<()> {
    // SAFETY: the caller vouches for the memory.
    check("copying on the device", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, stream) })
}

/// An event that streams wait for, and nobody times.
pub(crate) fn event(context: &Arc<CudaContext>) -> Result<CudaEvent> {
    let flags = Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
    context.new_event(flags).map_err(|error| {
        let reason = error.to_string();
        Error::Device { doing: "making an event".into(), reason }
    })
}

/// The event is where the stream is now.
pub(crate) fn remember(stream: CUstream, event: &CudaEvent) -> Result<()> {
    // SAFETY: both are of the current context.
    check("marking a stream", unsafe { sys::cuEventRecord(event.cu_event(), stream) })
}

/// What the driver says of an event: whether it was reached, or what its context was lost by.
pub(crate) fn query(event: &CudaEvent) -> sys::CUresult {
    // SAFETY: the event lives; its context is current.
    unsafe { sys::cuEventQuery(event.cu_event()) }
}

/// The stream goes on once that place was reached.
pub(crate) fn after(stream: CUstream, event: &CudaEvent) -> Result<()> {
    // SAFETY: as above.
    check("waiting for another stream", unsafe {
        sys::cuStreamWaitEvent(stream, event.cu_event(), 0)
    })
}
