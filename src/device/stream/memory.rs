//! Device memory that all ranks share: the handles of users, and its return to the communicator.
//! Law: memory is freed after every rank has closed its mapping, or never.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, forget};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use crate::device::cuda::{DeviceAllocation, Watchdog, locked};
use crate::error::Result;

/// How long a drop waits for ranks that have the memory open.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Device memory of this rank that other ranks may have open.
#[derive(Debug)]
pub(super) struct ExportedMemory {
    pub(super) id: u64,
    /// None where the memory is the user's.
    memory: Option<DeviceAllocation>,
    /// The watchdog that sees ranks leave, and the ranks that may have opened the memory.
    opened_by: Option<(Arc<Watchdog>, Vec<usize>)>,
}

impl ExportedMemory {
    pub(super) fn new(
        id: u64,
        memory: Option<DeviceAllocation>,
        opened_by: Option<(Arc<Watchdog>, Vec<usize>)>,
    ) -> Self {
        Self { id, memory, opened_by }
    }

    /// Memory that no other rank opens.
    pub(super) fn private(memory: DeviceAllocation) -> Self {
        Self::new(0, Some(memory), None)
    }

    pub(super) fn start(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, DeviceAllocation::start)
    }

    pub(super) fn clear(&self, bytes: usize, stream: &CudaStream) -> Result<()> {
        let cleared = self.memory.as_ref().map(|memory| memory.clear(bytes, stream.cu_stream()));
        cleared.unwrap_or(Ok(()))
    }

    /// Records that no rank has the memory open any more.
    pub(super) fn mark_closed(&mut self) {
        self.opened_by = None;
    }
}

impl Drop for ExportedMemory {
    fn drop(&mut self) {
        let Some((watchdog, workers)) = self.opened_by.take() else { return };
        let began = Instant::now();
        while !workers.iter().all(|&worker| watchdog.has_left(worker)) {
            if began.elapsed() > CLOSE_GRACE {
                tracing::warn!("other ranks still have device memory open; it is not freed");
                return forget(self.memory.take());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Memory that all ranks have allocated or registered together.
#[derive(Debug)]
pub(super) struct SharedAllocation {
    pub(super) range: Range<u64>,
    /// The address at each worker; 0 at other ranks.
    pub(super) seen_at: Arc<[u64]>,
    /// Dead when the user has dropped the memory.
    pub(super) life: Weak<()>,
}

/// The registration of device memory, which other ranks' devices access where it is until this is
/// dropped: from [`Communicator::register_device`](crate::Communicator::register_device).
#[derive(Debug)]
pub struct DeviceRegistration {
    held: Option<ExportedMemory>,
    /// The communicator shares the memory while this token lives.
    life: Arc<()>,
    /// The communicator's list of returned memory, if it still lives.
    retired: Weak<Mutex<Vec<ExportedMemory>>>,
}

impl DeviceRegistration {
    pub(super) fn new(
        held: Option<ExportedMemory>,
        retired: Weak<Mutex<Vec<ExportedMemory>>>,
    ) -> Self {
        Self { held, life: Arc::default(), retired }
    }

    pub(super) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }
}

impl Drop for DeviceRegistration {
    /// Returns the memory to the communicator, if that still lives.
    fn drop(&mut self) {
        if let (Some(held), Some(retired)) = (self.held.take(), self.retired.upgrade()) {
            locked(&retired).push(held);
        }
    }
}

/// A buffer on a device that the other ranks' devices access where it is: from
/// [`Communicator::alloc_device`](crate::Communicator::alloc_device). Collectives on it, or on the
/// same part of it at every rank, need no copies. It dereferences to a [`CudaSlice`].
///
/// After a drop its memory is free again with the next such allocation, or when the communicators
/// of all ranks are dropped.
pub struct DeviceMemory<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    registration: DeviceRegistration,
}

impl<T> DeviceMemory<T> {
    pub(super) fn new(
        held: ExportedMemory,
        len: usize,
        stream: &Arc<CudaStream>,
        retired: Weak<Mutex<Vec<ExportedMemory>>>,
    ) -> Self {
        // SAFETY: the memory has that length, is zero, and is freed when this is dropped, after it
        // was taken out of the slice.
        let slice = unsafe { stream.upgrade_device_ptr(held.start(), len) };
        let registration = DeviceRegistration::new(Some(held), retired);
        Self { slice: ManuallyDrop::new(slice), registration }
    }

    pub(super) fn life(&self) -> Weak<()> {
        self.registration.life()
    }

    /// All of the buffer, to be written.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
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
