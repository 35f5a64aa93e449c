//! The context that calls of the driver mean. May touch: error.
//! Law: whatever was current before a call is so again after it.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUcontext, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::driver::{Driver, check};
use crate::error::{Error, Result};

/// A context is this thread's current one while it lives.
#[derive(Debug)]
pub(crate) struct Current(());

impl Current {
    pub(crate) fn new(_: Driver, context: CUcontext) -> Result<Self> {
        // SAFETY: what is no context any more is an error of the call.
        check("entering a context", unsafe { sys::cuCtxPushCurrent_v2(context) })?;
        Ok(Self(()))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut ours = null_mut();
        // SAFETY: takes from the top what `new` put there.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut ours) };
    }
}

/// While it lives this thread may make calls that a capture elsewhere forbids it: loading a kernel
/// is no part of a graph.
#[derive(Debug)]
pub(crate) struct Beside(CUstreamCaptureMode);

impl Beside {
    pub(crate) fn new() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it exchanges a word of this thread with the one that it is given.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        check("loading a kernel beside a capture", exchanged)?;
        Ok(Self(mode))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: as above; this is what it was.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// Is the stream being captured into a graph?
pub(crate) fn is_capturing(stream: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: it stores a word where it is told.
    let asked = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
    check("asking whether the stream is being captured", asked)?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Calls that the host takes part in can't be part of a graph.
pub(crate) fn refuse_capture(call: &'static str, stream: CUstream) -> Result<()> {
    if !is_capturing(stream)? {
        return Ok(());
    }
    let (given, expected) = ("being captured into a graph".into(), "one that is not".into());
    Err(Error::Argument { call, argument: "stream", given, expected })
}
