//! Device memory that all ranks allocate together. May touch: as `comm`.
//! Law: it is freed when nobody has it open any more, or never.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, forget};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use crate::device::cuda::{Memory, Watch};
use crate::error::Result;

/// How long memory that is no longer needed waits for those who have it open.
const LINGER: Duration = Duration::from_secs(2);

/// Memory, and who may have it open.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: u64,
    /// None where it is the user's.
    memory: Option<Memory>,
    /// Where workers of other processes say that they have left, if they may have opened it.
    opened_by: Option<(Arc<Watch>, Vec<usize>)>,
}

impl Held {
    pub(super) fn new(
        id: u64,
        memory: Option<Memory>,
        opened_by: Option<(Arc<Watch>, Vec<usize>)>,
    ) -> Self {
        Self { id, memory, opened_by }
    }

    pub(super) fn start(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, Memory::start)
    }

    /// Clears so many bytes.
    pub(super) fn clear(&self, bytes: usize, stream: &CudaStream) -> Result<()> {
        let cleared = self.memory.as_ref().map(|memory| memory.clear(bytes, stream.cu_stream()));
        cleared.unwrap_or(Ok(()))
    }

    /// Nobody has it open any more.
    pub(super) fn is_closed(&mut self) {
        self.opened_by = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((watch, workers)) = self.opened_by.take() else { return };
        let began = Instant::now();
        while !workers.iter().all(|&worker| watch.has_left(worker)) {
            if began.elapsed() > LINGER {
                tracing::warn!("other ranks still have device memory open; it is not freed");
                return forget(self.memory.take());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Memory of a device that the other ranks' devices see where it is, while this lives: from
/// [`Communicator::register_device`](crate::Communicator::register_device).
#[derive(Debug)]
pub struct DeviceRegistration {
    held: Option<Held>,
    life: Arc<()>,
    retired: Weak<Mutex<Vec<Held>>>,
}

impl DeviceRegistration {
    pub(super) fn new(held: Option<Held>, retired: Weak<Mutex<Vec<Held>>>) -> Self {
        Self { held, life: Arc::default(), retired }
    }

    pub(super) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }
}

impl Drop for DeviceRegistration {
    fn drop(&mut self) {
        retire(self.held.take(), &self.retired);
    }
}

/// What its user has dropped goes back to the communicator, if there still is one.
fn retire(held: Option<Held>, retired: &Weak<Mutex<Vec<Held>>>) {
    if let (Some(held), Some(retired)) = (held, retired.upgrade()) {
        retired.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    }
}

/// A buffer on a device that the other ranks' devices see where it is: from
/// [`Communicator::alloc_device`](crate::Communicator::alloc_device). Collectives on it, or on the
/// same part of it at every rank, need no copies. It reads as the [`CudaSlice`] that it derefs to.
///
/// Dropped, its memory is free again with the next such allocation, or when the communicators of
/// all ranks are gone.
pub struct DeviceMemory<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    held: Option<Held>,
    /// While it is there, the communicator knows the memory.
    life: Arc<()>,
    /// Where the communicator, if there still is one, takes memory back.
    retired: Weak<Mutex<Vec<Held>>>,
}

impl<T> DeviceMemory<T> {
    /// The whole of it, `len` elements.
    pub(super) fn new(
        held: Held,
        len: usize,
        stream: &Arc<CudaStream>,
        retired: Weak<Mutex<Vec<Held>>>,
    ) -> Self {
        // SAFETY: the memory is as long, zero, and is freed when this is dropped, which takes it
        // out of the slice first.
        let slice = unsafe { stream.upgrade_device_ptr(held.start(), len) };
        let (slice, held) = (ManuallyDrop::new(slice), Some(held));
        Self { slice, held, life: Arc::default(), retired }
    }

    pub(super) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }

    /// All of it, to be written.
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
        // SAFETY: it is taken once, here.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // What it points to is not cudarc's to free.
        let _ = slice.leak();
        retire(self.held.take(), &self.retired);
    }
}

impl<T> fmt::Debug for DeviceMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.held.as_ref().map_or(0, Held::start);
        f.debug_struct("DeviceMemory").field("at", &at).field("len", &self.slice.len()).finish()
    }
}
