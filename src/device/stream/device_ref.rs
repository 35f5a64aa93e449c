//! Device memory of other owners, known by its address.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

/// A buffer known by its address, as C programs and other frameworks have it. Device memory,
/// managed memory and pinned host memory will do; other host memory is an error of the call.
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
    /// The memory has that length and stays until all work on it is done. Other work on it is in
    /// the order of the streams that its collectives are put on.
    #[must_use]
    pub unsafe fn from_raw_parts(start: u64, len: usize, stream: &Arc<CudaStream>) -> Self {
        Self::new(start, len, stream)
    }

    /// As [`Self::from_raw_parts`], of memory that the caller vouches for.
    pub(super) fn new(start: CUdeviceptr, len: usize, stream: &Arc<CudaStream>) -> Self {
        Self { start, len, stream: Arc::clone(stream), of: PhantomData }
    }

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
