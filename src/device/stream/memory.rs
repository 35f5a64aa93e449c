//! Device memory that other ranks access: the handles of users, and its return to the communicator.
//! Law: to drop a handle waits for nobody while the communicator lives.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range, RangeBounds};
use std::sync::{Arc, Weak};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use crate::device::cuda::{ExportedMemory, MemoryExchange};

/// Memory of this rank that other ranks' devices access where it is.
#[derive(Debug)]
pub(super) struct SharedAllocation {
    pub(super) range: Range<u64>,
    /// The address at each worker; 0 at ranks of this process and at ranks that do not open it.
    pub(super) seen_at: Arc<[u64]>,
    /// Dead when the user has dropped the memory.
    pub(super) life: Weak<()>,
}

impl SharedAllocation {
    /// True if these bytes are in the memory, which its user still has.
    pub(super) fn has(&self, at: CUdeviceptr, bytes: usize) -> bool {
        let end = at.saturating_add(bytes as u64);
        self.range.start <= at && end <= self.range.end && self.life.strong_count() > 0
    }
}

/// The registration of device memory, which other ranks' devices access where it is until this is
/// dropped: from [`Communicator::register_device`](crate::Communicator::register_device).
#[derive(Debug)]
pub struct DeviceRegistration {
    held: Option<ExportedMemory>,
    /// The communicator shares the memory while this token lives.
    life: Option<Arc<()>>,
    /// The communicator's threads that free the memory, if it still lives.
    exchange: Weak<MemoryExchange>,
}

impl DeviceRegistration {
    pub(super) fn new(
        held: Option<ExportedMemory>,
        life: Arc<()>,
        exchange: Weak<MemoryExchange>,
    ) -> Self {
        Self { held, life: Some(life), exchange }
    }
}

impl Drop for DeviceRegistration {
    /// Returns the memory to the communicator, if that still lives.
    fn drop(&mut self) {
        self.life = None;
        if let Some(exchange) = self.exchange.upgrade()
            && let Some(held) = self.held.take()
        {
            exchange.take_back(held);
        }
    }
}

/// A buffer on a device that the other ranks' devices access where it is: from
/// [`Communicator::alloc_device`](crate::Communicator::alloc_device). Collectives on it, or on any
/// part of it, need no copies. It dereferences to a [`CudaSlice`].
///
/// A drop waits for no other rank. The memory is free again once the calls that use it have ended
/// and the other ranks have closed it: soon after, or when the communicators of all ranks are
/// dropped. Graphs with calls on it are dropped before it.
pub struct DeviceMemory<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    registration: DeviceRegistration,
}

impl<T> DeviceMemory<T> {
    /// The first `len` elements of the memory that the registration holds, at `start`.
    pub(super) fn new(
        registration: DeviceRegistration,
        start: CUdeviceptr,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Self {
        // SAFETY: the memory has that length, is zero, and is freed when this is dropped, after it
        // was taken out of the slice.
        let slice = unsafe { stream.upgrade_device_ptr(start, len) };
        Self { slice: ManuallyDrop::new(slice), registration }
    }

    /// All of the buffer, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// A part of the buffer, to be written.
    ///
    /// # Panics
    /// If the bounds are beyond the end of the buffer.
    pub fn slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        self.slice.slice_mut(bounds)
    }
}

impl<T> Deref for DeviceMemory<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DeviceSlice<T> for DeviceMemory<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for DeviceMemory<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for DeviceMemory<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

impl<T> Drop for DeviceMemory<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // The communicator frees the memory, which the registration returns, not cudarc.
        let _ = slice.leak();
    }
}

impl<T> fmt::Debug for DeviceMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.registration.held.as_ref().map_or(0, ExportedMemory::start);
        f.debug_struct("DeviceMemory").field("at", &at).field("len", &self.slice.len()).finish()
    }
}
