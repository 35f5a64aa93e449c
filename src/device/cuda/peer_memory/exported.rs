//! Device memory of this rank that other processes may have open.
//! Law: memory is freed after every opener has closed it or left, or never.

use std::mem::forget;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::announcements::Announcement;
use crate::device::cuda::ipc::DeviceAllocation;
use crate::device::cuda::watchdog::Watchdog;
use crate::error::Result;
use crate::sync::Instant;

/// How long a drop after the end of the communicator waits for ranks that have the memory open.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct ExportedMemory {
    /// None where the memory is the user's.
    memory: Option<DeviceAllocation>,
    /// Where other processes open the memory: by which announcement, and which ranks.
    opened_by: Option<(Announcement, Arc<[usize]>, Arc<Watchdog>)>,
}

impl ExportedMemory {
    /// Memory that no other process opens; none if it is the user's.
    pub(crate) fn new(memory: Option<DeviceAllocation>) -> Self {
        Self { memory, opened_by: None }
    }

    pub(crate) fn announced(
        memory: Option<DeviceAllocation>,
        at: Announcement,
        openers: &Arc<[usize]>,
        watchdog: &Arc<Watchdog>,
    ) -> Self {
        Self { memory, opened_by: Some((at, Arc::clone(openers), Arc::clone(watchdog))) }
    }

    /// The address, or 0 where the memory is the user's.
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, DeviceAllocation::start)
    }

    /// Clears the first `bytes`, in the order of the stream, and waits for that.
    pub(crate) fn clear(&self, bytes: usize, stream: CUstream) -> Result<()> {
        self.memory.as_ref().map_or(Ok(()), |memory| memory.clear(bytes, stream))
    }

    /// True if the memory is this library's, to be freed.
    pub(crate) fn is_allocated(&self) -> bool {
        self.memory.is_some()
    }

    /// Asks the openers to close the memory, which no call uses any more.
    pub(crate) fn retire(&self) {
        if let Some((at, openers, watchdog)) = &self.opened_by
            && !watchdog.blocks.is_retired(*at)
        {
            watchdog.blocks.retire(*at);
            openers.iter().for_each(|&opener| watchdog.blocks.wake_for_memory(opener));
        }
    }

    /// True if no other rank has the memory open any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.opened_by.as_ref().is_none_or(|(at, openers, watchdog)| {
            let is_closed = |&opener: &usize| {
                watchdog.blocks.is_closed_by(*at, opener) || watchdog.has_left(opener)
            };
            openers.iter().all(is_closed)
        })
    }

    /// Frees the entry of the announcement, after all have closed the memory.
    pub(crate) fn free_entry(&mut self) {
        if let Some((at, _, watchdog)) = self.opened_by.take() {
            watchdog.blocks.free_entry(at);
        }
    }
}

impl Drop for ExportedMemory {
    fn drop(&mut self) {
        let Some((_, _, watchdog)) = &self.opened_by else { return };
        if watchdog.blocks.has_left(watchdog.blocks.me) {
            // All calls of this rank are over.
            self.retire();
        }
        let began = Instant::now();
        while !self.is_closed() {
            if began.elapsed() > CLOSE_GRACE {
                tracing::warn!("other ranks still have device memory open; it is not freed");
                return forget(self.memory.take());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
