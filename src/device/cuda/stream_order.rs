//! Copies on a device, and the order of streams: events, and waits for a stream's end.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaEvent};

use super::driver::check;
use crate::error::{Error, Result};
use crate::sync::Instant;

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

/// The limits of a wait: the longest time, and the flag by which the user aborts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit<'a> {
    pub(crate) timeout: Duration,
    pub(crate) abort: &'a AtomicBool,
}

impl WaitLimit<'_> {
    /// The limit of a wait that no user aborts.
    pub(super) fn of(timeout: Duration) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { timeout, abort: &NEVER }
    }

    /// An error if the wait that began then has been aborted, or has lasted too long.
    pub(super) fn check(&self, began: Instant) -> Result<()> {
        if self.abort.load(Ordering::Relaxed) {
            return Err(not_reached("aborted".into()));
        }
        if began.elapsed() < self.timeout {
            return Ok(());
        }
        Err(not_reached(format!("the stream did not reach this call within {:.1?}", self.timeout)))
    }
}

/// Waits a little between two looks at a word, longer from round to round: a device that writes a
/// word wakes no thread.
pub(crate) fn pause(round: &mut u32) {
    *round = round.saturating_add(1);
    match *round {
        0..200 => std::hint::spin_loop(),
        200..2000 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(20)),
    }
}

const WAITING: &str = "waiting for the stream";

fn not_reached(reason: String) -> Error {
    Error::Device { doing: WAITING.into(), reason }
}

/// Makes the host wait until a stream has done all its work.
///
/// # Errors
/// If that takes too long or is aborted, or the work failed.
pub(super) fn wait_idle(stream: CUstream, limit: WaitLimit<'_>) -> Result<()> {
    let began = Instant::now();
    loop {
        // SAFETY: the stream is the caller's.
        match unsafe { sys::cuStreamQuery(stream) } {
            CUresult::CUDA_ERROR_NOT_READY => limit.check(began)?,
            answer => return check(WAITING, answer),
        }
        thread::sleep(Duration::from_micros(20));
    }
}
