//! Device memory that a rank allocates or registers alone: threads of other ranks' communicators
//! open it by a handle.
//! Law: a rank waits for those threads, never for another rank's program. If one cannot open the
//! memory, its owner gets an error and the communicators live on.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream};

use super::device_ref::DeviceRef;
use super::direct::Direct;
use super::failures::error_of;
use super::memory::{DeviceMemory, DeviceRegistration, SharedAllocation};
use crate::api::Communicator;
use crate::device::cuda::{
    Announcement, CallFailure, CurrentContext, DeviceAllocation, Driver, ExportedMemory,
    check_reachable, driver, export_handle, opening_answer_name, pause,
};
use crate::element::Element;
use crate::error::{Error, Result, argument_error, warn};
use crate::sync::Instant;

/// The granularity of the memory of a handle, in bytes.
const HANDLE_GRANULARITY: usize = 2 << 20;
/// How long an allocation that finds no room waits for dropped memory to be freed.
const RECLAIM_GRACE: Duration = Duration::from_secs(1);
const RECLAIM_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl Communicator {
    /// `len` elements, zero, on the device of `stream`, in memory that the other ranks' devices
    /// access. Each rank calls this when it likes, for what it likes, and waits for no other rank's
    /// program, but for the work that `stream` has before.
    ///
    /// Without [`Self::use_device`], or where devices do not access each other's memory, it is
    /// memory like any other.
    ///
    /// ```no_run
    /// # use ringreduce::{Communicator, ReduceOp, cudarc::driver::CudaContext};
    /// # let mut comm = Communicator::from_env()?;
    /// # let stream = CudaContext::new(0)?.new_stream()?;
    /// // Each rank's buffer is as long as the rank needs, and a call uses any part of it.
    /// let mut memory = comm.alloc_device::<f32>(&stream, 1000 * (comm.rank() + 1))?;
    /// let from = 100 * comm.rank();
    /// let mut part = memory.view_mut();
    /// comm.on_stream(&stream).all_reduce(&mut part.slice_mut(from..from + 500), ReduceOp::Sum)?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no memory left, if other ranks have 256 buffers of this rank open, or if another
    /// rank is lost or can't open the memory: the error names it. This communicator and the other
    /// ranks' stay usable.
    pub fn alloc_device<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<DeviceMemory<T>> {
        const NAME: &str = "alloc_device";
        let (driver, context) = (driver()?, stream.context());
        let _current = CurrentContext::new(driver, context.cu_ctx())?;
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let Some(bytes) = bytes else {
            return argument_error(NAME, "len", len, "less than the address space");
        };
        if let Some(domains) = &self.streams.domains {
            return domains.domain.alloc_device(stream, len);
        }
        if let Some(direct) = &self.streams.direct {
            direct.check_context(NAME, "stream", context)?;
        }
        let (held, entry) = self.alloc_shared(NAME, (driver, context), bytes)?;
        let start = held.start();
        let cleared = held.clear(bytes, stream.cu_stream());
        let registration = self.registration(held, entry);
        cleared.map(|()| DeviceMemory::new(registration, start, len, stream))
    }

    /// Makes the user's memory as good as that of [`Self::alloc_device`], until the returned
    /// registration is dropped. Each rank registers what it likes, and when. Unless all ranks are
    /// threads of this process, other processes must be able to open the memory, as they can with
    /// `cuMemAlloc`'s or `cudaMalloc`'s. Memory of a pool, as [`CudaStream::alloc`]'s is, and of
    /// `cuMemMap`, as expandable segments are, is used as if it were not registered, after a
    /// warning.
    ///
    /// # Safety
    /// The memory is not freed before the registration was dropped and, after that,
    /// [`Self::dropped_device_memory`] was 0 or the communicator was dropped at all ranks.
    ///
    /// # Errors
    /// As [`Self::alloc_device`].
    pub unsafe fn register_device(&self, buf: DeviceRef) -> Result<DeviceRegistration> {
        const NAME: &str = "register_device";
        if let Some(domains) = &self.streams.domains {
            // SAFETY: the caller's promise.
            return unsafe { domains.domain.register_device(buf) };
        }
        let none = || Ok(DeviceRegistration::new(None, Arc::default(), Weak::new()));
        let (Some(direct), Some(context)) = (&self.streams.direct, &self.streams.context) else {
            return none();
        };
        let driver = driver()?;
        let _current = CurrentContext::new(driver, context.cu_ctx())?;
        let DeviceRef { start, bytes } = buf;
        check_reachable((NAME, "buf"), start, bytes, context.cu_device())?;
        if direct.is_one_process() {
            return none();
        }
        if let Err(error) = export_handle(start) {
            warn(&format!(
                "{NAME}: {}'s memory can't be opened by other processes ({error}); calls on it are \
                 made in pieces, if all ranks' buffers are such",
                self.peers()[self.rank()]
            ));
            return none();
        }
        let range = start..start + bytes as u64;
        let (held, entry) = self.share(direct, NAME, None, range)?;
        Ok(self.registration(held, Some(entry)))
    }

    /// The registration of memory on which calls are direct from here on.
    fn registration(
        &self,
        held: ExportedMemory,
        entry: Option<SharedAllocation>,
    ) -> DeviceRegistration {
        let direct = self.streams.direct.as_ref();
        let exchange = direct.map_or(Weak::new(), |direct| Arc::downgrade(&direct.memory.shared));
        DeviceRegistration::new(Some(held), self.add_shared(entry), exchange)
    }

    /// Makes calls on this memory direct from here on, while the token lives.
    fn add_shared(&self, entry: Option<SharedAllocation>) -> Arc<()> {
        let life = Arc::default();
        if let (Some(direct), Some(entry)) = (&self.streams.direct, entry) {
            let mut shared = direct.shared.borrow_mut();
            shared.retain(|entry| entry.life.strong_count() > 0);
            shared.push(SharedAllocation { life: Arc::downgrade(&life), ..entry });
        }
        life
    }

    /// The number of this rank's buffers and registrations that were dropped, and that other ranks
    /// may still have open or that are not freed yet. They are closed once the calls that use them
    /// have ended, at moments when no direct call is under way: ranks that wait for 0 do so before
    /// any of them makes the next call.
    #[must_use]
    pub fn dropped_device_memory(&self) -> usize {
        if let Some(domains) = &self.streams.domains {
            return domains.domain.dropped_device_memory();
        }
        let direct = self.streams.direct.as_ref();
        direct.map_or(0, |direct| direct.memory.shared.dropped_count())
    }

    /// Allocates memory for the communicator itself: the owner, unless the communicator keeps it,
    /// the first address, and a token that keeps the memory shared while it lives. The context is
    /// current.
    pub(super) fn alloc_own(
        &mut self,
        name: &'static str,
        here: (Driver, &Arc<CudaContext>),
        bytes: usize,
    ) -> Result<(Option<ExportedMemory>, CUdeviceptr, Arc<()>)> {
        let (held, entry) = self.alloc_shared(name, here, bytes)?;
        let (start, life) = (held.start(), self.add_shared(entry));
        let Some(direct) = &mut self.streams.direct else { return Ok((Some(held), start, life)) };
        direct.own_memory.push(held);
        Ok((None, start, life))
    }

    /// Allocates memory that the other ranks' devices access, and where other processes see it.
    pub(super) fn alloc_shared(
        &self,
        name: &'static str,
        (driver, context): (Driver, &Arc<CudaContext>),
        bytes: usize,
    ) -> Result<(ExportedMemory, Option<SharedAllocation>)> {
        let Some(direct) = self.streams.direct.as_ref().filter(|it| !it.is_one_process()) else {
            let allocate = || DeviceAllocation::new(driver, context, bytes);
            let memory = match &self.streams.direct {
                Some(direct) => once_more(direct, allocate)?,
                None => allocate()?,
            };
            return Ok((ExportedMemory::new(Some(memory)), None));
        };
        // The driver packs small allocations into the memory of one handle, which another process
        // would see whole.
        let granules = bytes.max(1).next_multiple_of(HANDLE_GRANULARITY);
        let memory = once_more(direct, || DeviceAllocation::new(driver, context, granules))?;
        let start = memory.start();
        let shared = self.share(direct, name, Some(memory), start..start + bytes as u64);
        shared.map(|(held, entry)| (held, Some(entry)))
    }

    /// Lets the other ranks open memory of this rank or of its user, and waits until they have.
    fn share(
        &self,
        direct: &Direct,
        name: &'static str,
        memory: Option<DeviceAllocation>,
        range: Range<u64>,
    ) -> Result<(ExportedMemory, SharedAllocation)> {
        let exchange = &direct.memory.shared;
        if exchange.openers.is_empty() {
            let seen_at = Arc::from(vec![0; self.size()]);
            let entry = SharedAllocation { range, seen_at, life: Weak::new() };
            return Ok((ExportedMemory::new(memory), entry));
        }
        let (handle, offset) = export_handle(range.start)?;
        let refuse = |reason| Error::Device { doing: name.into(), reason };
        let at = once_more(direct, || exchange.announce(handle).map_err(refuse))?;
        let held = exchange.exported(memory, at);
        match self.wait_for_openers(direct, name, at) {
            Ok(seen) => {
                let seen_at = seen.into_iter().map(|at| if at == 0 { 0 } else { at + offset });
                let seen_at = seen_at.collect();
                Ok((held, SharedAllocation { range, seen_at, life: Weak::new() }))
            }
            Err(error) => {
                exchange.take_back(held);
                Err(error)
            }
        }
    }

    /// Waits until all ranks that open the memory have done so: its address at each of them, or 0
    /// at the other ranks.
    fn wait_for_openers(
        &self,
        direct: &Direct,
        name: &'static str,
        at: Announcement,
    ) -> Result<Vec<CUdeviceptr>> {
        let (watchdog, timeout) = (direct.watchdog(), self.settings.timeout);
        let (began, mut round, mut seen) = (Instant::now(), 0, vec![0; self.size()]);
        for &peer in &*direct.memory.shared.openers {
            let failure = loop {
                match watchdog.blocks.opening(at, peer) {
                    Some(Ok(start)) => {
                        seen[peer] = start;
                        break None;
                    }
                    Some(Err(answer)) => {
                        let (who, why) = (&self.peers()[peer], opening_answer_name(answer));
                        let reason = format!("{who} can't open this rank's memory: {why}");
                        break Some(CallFailure::Refused { reason, outside: None });
                    }
                    None => {}
                }
                if self.abort.load(Ordering::Relaxed) {
                    break Some(CallFailure::Aborted);
                }
                // A rank whose graphs outlive its communicator closes without leaving.
                let is_closed = || watchdog.blocks.close_reason(peer) == 1;
                if watchdog.is_ending(peer) || watchdog.has_left(peer) || is_closed() {
                    let evidence = "it ended, or closed its communicator".into();
                    break Some(CallFailure::Lost { peer, evidence });
                }
                if began.elapsed() > timeout {
                    break Some(CallFailure::Late { peer, after: timeout });
                }
                pause(&mut round);
            };
            if let Some(failure) = failure {
                let header = direct.executor.latest_header();
                let own = (self.rank(), self.peers());
                return Err(error_of(name, (header, failure), &self.rank_info.name, own));
            }
        }
        Ok(seen)
    }
}

/// Tries something that needs room, and once more after dropped memory was freed.
fn once_more<T>(direct: &Direct, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let dropped = || direct.memory.shared.dropped_count();
    let is_any_dropped = dropped() > 0;
    attempt().or_else(|error| {
        if !is_any_dropped {
            return Err(error);
        }
        let began = Instant::now();
        while dropped() > 0 && began.elapsed() < RECLAIM_GRACE {
            thread::sleep(RECLAIM_POLL_INTERVAL);
        }
        attempt()
    })
}
