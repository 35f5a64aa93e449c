//! The current CUDA context of a thread, and the thread's mode while a stream is captured into a
//! graph.
//! Law: after a call the thread has the context and the mode that it had before.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUcontext, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::driver::{Driver, check};
use crate::error::{Error, Result};

/// Makes a context the thread's current one until it is dropped.
#[derive(Debug)]
pub(crate) struct CurrentContext(());

impl CurrentContext {
    pub(crate) fn new(_: Driver, context: CUcontext) -> Result<Self> {
        // SAFETY: a context that is destroyed is an error of the call.
        check("entering a context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Self(()))
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        let mut ours = null_mut();
        // SAFETY: takes from the top what `new` put there.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut ours) };
    }
}

/// Until it is dropped, this thread may make calls that the capture of another thread's stream
/// forbids. Loading a kernel is no part of a graph.
#[derive(Debug)]
pub(crate) struct RelaxedCapture(CUstreamCaptureMode);

impl RelaxedCapture {
    pub(crate) fn new() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges the mode of this thread with the given one.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        check("loading a kernel during a capture", exchanged)?;
        Ok(Self(mode))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above, with the mode that the thread had.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// The context that a stream belongs to; of a default stream's handle, the current one.
pub(crate) fn stream_context(stream: CUstream) -> Result<CUcontext> {
    let mut context = null_mut();
    // SAFETY: the driver stores a handle where it is told; the caller vouches for the stream.
    let asked = unsafe { sys::cuStreamGetCtx(stream, &raw mut context) };
    check("asking for the context of a stream", asked)?;
    Ok(context)
}

/// True if the stream is being captured into a graph.
pub(crate) fn is_capturing(stream: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the driver stores a word where it is told.
    let asked = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
    check("asking whether the stream is being captured", asked)?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Refuses a call with a host part on a captured stream: a graph can't repeat the host's part.
pub(crate) fn refuse_capture(call: &'static str, stream: CUstream) -> Result<()> {
    if !is_capturing(stream)? {
        return Ok(());
    }
    let given = "being captured into a graph".into();
    let expected = "one that is not, since this call has a part of the host's".into();
    Err(Error::Argument { call, argument: "stream", given, expected })
}
