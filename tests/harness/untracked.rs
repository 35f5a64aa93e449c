//! Streams of devices whose buffers cudarc does not order by events of its own, as in frameworks
//! that order their work themselves.
#![allow(unsafe_code, reason = "turns off a check of cudarc's")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

/// A stream of this device, in a context of its own without cudarc's events.
pub fn untracked_stream(device: usize) -> Arc<CudaStream> {
    let context = CudaContext::new(device).unwrap();
    // SAFETY: the caller orders the streams of the context, and frees nothing that is in use.
    unsafe { context.disable_event_tracking() };
    context.new_stream().unwrap()
}
