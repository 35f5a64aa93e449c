//! Streams of devices whose buffers cudarc does not order by events of its own, as in frameworks
//! that order their work themselves; and looks at memory that other streams write.
#![allow(unsafe_code, reason = "turns off checks of cudarc's")]

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, CudaView, DevicePtr};

/// A stream of this device, in a context of its own without cudarc's events.
pub fn untracked_stream(device: usize) -> Arc<CudaStream> {
    let context = CudaContext::new(device).unwrap();
    // SAFETY: the caller orders the streams of the context, and frees nothing that is in use.
    unsafe { context.disable_event_tracking() };
    context.new_stream().unwrap()
}

/// Where memory of a device is, for a test that looks at it while others write it.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    memory: CUdeviceptr,
    len: usize,
}

impl Address {
    /// The address of what is in use on this stream.
    pub fn of(view: &CudaView<'_, f32>, stream: &CudaStream) -> Self {
        Self { memory: view.device_ptr(stream).0, len: view.len() }
    }

    /// The content of the memory at some time in the order of this stream.
    pub fn read(self, stream: &Arc<CudaStream>) -> Vec<f32> {
        // SAFETY: the caller keeps the memory as long as this value, and the owner frees it.
        let memory = unsafe { stream.upgrade_device_ptr::<f32>(self.memory, self.len) };
        let values = stream.clone_dtoh(&memory).unwrap();
        memory.leak();
        values
    }
}
