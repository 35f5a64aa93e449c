//! Device memory that somebody else manages, by its address. May touch: as `comm`.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

/// A buffer known by its address: what C programs and other frameworks have. Memory of a device,
/// managed memory and pinned memory of the host are as good; other memory of the host is an error
/// of the call.
#[derive(Debug)]
pub struct DeviceRef<T> {
    start: CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
    of: PhantomData<T>,
}

impl<T> DeviceRef<T> {
    /// `len` elements at `start`.
    ///
    /// # Safety
    /// The memory is as long, stays until all work on it is done, and whatever else uses it does so
    /// in the order of the streams that collectives on it are put on.
    #[must_use]
    pub unsafe fn from_raw_parts(start: u64, len: usize, stream: &Arc<CudaStream>) -> Self {
        Self { start, len, stream: Arc::clone(stream), of: PhantomData }
    }

    /// Where it begins.
    pub(super) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

impl<T> DeviceSlice<T> for DeviceRef<T> {
    fn len(&self) -> usize {
        self.len
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for DeviceRef<T> {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.start, SyncOnDrop::Record(None))
    }
}

impl<T> DevicePtrMut<T> for DeviceRef<T> {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.start, SyncOnDrop::Record(None))
    }
}
