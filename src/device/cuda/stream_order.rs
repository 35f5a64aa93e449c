//! Copies on a device, and the order of streams: events, and waits for a stream's end.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaEvent};

use super::driver::check;
use crate::error::{Error, Result};

/// Puts a copy between two places of device memory on the stream.
pub(crate) fn copy_on_device(
    stream: CUstream,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for the memory.
    check("copying on the device", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, stream) })
}

/// An event without a time stamp.
pub(crate) fn new_event(context: &Arc<CudaContext>) -> Result<CudaEvent> {
    let flags = Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
    context.new_event(flags).map_err(|error| {
        let reason = error.to_string();
        Error::Device { doing: "making an event".into(), reason }
    })
}

/// The driver's answer about an event: recorded or not, or the error that its context was lost by.
pub(crate) fn query_event(event: &CudaEvent) -> CUresult {
    // SAFETY: the event lives, and its context is current.
    unsafe { sys::cuEventQuery(event.cu_event()) }
}

/// The end of the last call that used some memory, in the order of that call's stream.
#[derive(Debug)]
pub(crate) struct LastUse {
    event: CudaEvent,
    is_recorded: bool,
}

impl LastUse {
    /// Makes the event, for memory that no call has used yet.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        Ok(Self { event: new_event(context)?, is_recorded: false })
    }

    /// Makes the stream wait for that end.
    pub(crate) fn wait(&self, stream: CUstream) -> Result<()> {
        if !self.is_recorded {
            return Ok(());
        }
        // SAFETY: the stream and the event are of the current context.
        check("waiting for another stream", unsafe {
            sys::cuStreamWaitEvent(stream, self.event.cu_event(), 0)
        })
    }

    /// Makes the present end of the stream the last use.
    pub(crate) fn record(&mut self, stream: CUstream) -> Result<()> {
        self.is_recorded = true;
        // SAFETY: the stream and the event are of the current context.
        check("recording an event on a stream", unsafe {
            sys::cuEventRecord(self.event.cu_event(), stream)
        })
    }
}

const WAITING: &str = "waiting for the stream";

pub(super) fn not_reached(reason: String) -> Error {
    Error::Device { doing: WAITING.into(), reason }
}

pub(super) fn timed_out(timeout: Duration) -> Error {
    not_reached(format!("the stream did not reach this call within {timeout:.1?}"))
}

/// Makes the host wait until a stream has done all its work.
///
/// # Errors
/// If that takes longer than `timeout`, the work failed, or `stop` says so.
pub(super) fn wait_idle(
    stream: CUstream,
    timeout: Duration,
    stop: impl Fn() -> bool,
) -> Result<()> {
    let began = Instant::now();
    loop {
        if stop() {
            return Err(not_reached("aborted".into()));
        }
        // SAFETY: the stream is the caller's.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUresult::CUDA_ERROR_NOT_READY if began.elapsed() < timeout => {
                thread::sleep(Duration::from_micros(20));
            }
            CUresult::CUDA_ERROR_NOT_READY => return Err(timed_out(timeout)),
            answer => return check(WAITING, answer),
        }
    }
}
