//! Device memory that all ranks allocate or register together: other processes open it by a handle.
//! Law: if one rank fails, all ranks get an error and the communicator lives on. A mapping is
//! closed before the owner frees the memory.
#![allow(unsafe_code)]

use std::sync::{Arc, Weak};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream};

use super::device_ref::DeviceRef;
use super::memory::{DeviceMemory, DeviceRegistration, ExportedMemory, SharedAllocation};
use crate::api::Communicator;
use crate::api::verb::argument_error;
use crate::device::cuda::{
    CurrentContext, DeviceAllocation, Driver, HANDLE_WORDS, check_reachable, driver, export_handle,
    locked,
};
use crate::element::Element;
use crate::engine::worker;
use crate::error::{Error, Result, warn};

/// The granularity of the memory of a handle, in bytes.
const HANDLE_GRANULARITY: usize = 2 << 20;
/// The most returned allocations that one message names.
const MAX_RETURNED: usize = 8;

/// A rank's message about its memory.
struct AllocationNotice {
    bytes: u64,
    /// The byte offset of the memory in the allocation of the handle.
    offset: u64,
    handle: [u64; HANDLE_WORDS],
    /// Allocations whose users have dropped them, which the owner will free; 0 is none.
    returned: [u64; MAX_RETURNED],
}

/// Words of the encoded message, of which the first says whether there is memory.
const WORDS: usize = 3 + HANDLE_WORDS + MAX_RETURNED;

impl AllocationNotice {
    fn encode(&self, is_fine: bool) -> [u64; WORDS] {
        let words = [u64::from(is_fine), self.bytes, self.offset].into_iter();
        let mut words = words.chain(self.handle).chain(self.returned);
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    fn decode(words: &[u64]) -> Self {
        let handle = std::array::from_fn(|at| words[3 + at]);
        let returned = std::array::from_fn(|at| words[3 + HANDLE_WORDS + at]);
        Self { bytes: words[1], offset: words[2], handle, returned }
    }
}

impl Communicator {
    /// `len` elements, zero, on the device of `stream`, in memory that the other ranks' devices
    /// access. All ranks call this together, with the same length, while none of their calls on
    /// streams is under way.
    ///
    /// Without [`Self::use_device`], or where devices do not access each other's memory, it is
    /// memory like any other.
    ///
    /// # Errors
    /// If a rank has no memory left, can't open the others' or passes another length: then all
    /// ranks have an error and the communicator lives on.
    pub fn alloc_device<T: Element>(
        &mut self,
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
        if let Some(domains) = &mut self.streams.domains {
            return domains.domain.alloc_device(stream, len);
        }
        let Some(direct) = &self.streams.direct else {
            let held = ExportedMemory::private(DeviceAllocation::new(driver, context, bytes)?);
            held.clear(bytes, stream)?;
            return Ok(DeviceMemory::new(held, len, stream, Weak::new()));
        };
        direct.check_context(NAME, "stream", context)?;
        let retired = Arc::downgrade(&direct.retired);
        let (held, entry) = self.allocate(NAME, (driver, context), bytes, None)?;
        held.clear(bytes, stream)?;
        let memory = DeviceMemory::new(held, len, stream, retired);
        self.add_shared(SharedAllocation { life: memory.life(), ..entry });
        Ok(memory)
    }

    /// Makes the user's memory as good as that of [`Self::alloc_device`], until the returned
    /// registration is dropped. All ranks call this together, with the same length. Unless all
    /// ranks are threads of this process, other processes must be able to open the memory, as they
    /// can with `cuMemAlloc`'s or `cudaMalloc`'s. Memory of a pool, as [`CudaStream::alloc`]'s is,
    /// and of `cuMemMap`, as expandable segments are, is used as if it were not registered, after a
    /// warning.
    ///
    /// # Safety
    /// The memory is not freed before the registration was dropped at all ranks and, after that,
    /// this communicator has allocated or registered again, or was dropped at all ranks.
    ///
    /// # Errors
    /// As [`Self::alloc_device`].
    pub unsafe fn register_device(&mut self, buf: DeviceRef) -> Result<DeviceRegistration> {
        const NAME: &str = "register_device";
        if let Some(domains) = &mut self.streams.domains {
            // SAFETY: the caller's promise.
            return unsafe { domains.domain.register_device(buf) };
        }
        let (Some(direct), Some(context)) = (&self.streams.direct, &self.streams.context) else {
            return Ok(DeviceRegistration::new(None, Weak::new()));
        };
        let (driver, context) = (driver()?, Arc::clone(context));
        let _current = CurrentContext::new(driver, context.cu_ctx())?;
        let (one_process, retired) = (direct.is_one_process(), Arc::downgrade(&direct.retired));
        let DeviceRef { start, bytes } = buf;
        // An address outside any allocation is an error of `allocate` below.
        let exports = one_process
            || check_reachable((NAME, "buf"), start, bytes, context.cu_device()).is_err()
            || export_handle(start).is_ok();
        let all = self.all_gather_words(NAME, &[u64::from(exports)])?;
        if let Some(rank) = all.iter().position(|&exports| exports == 0) {
            if self.rank() == 0 {
                warn(&format!(
                    "{NAME}: the memory of {} can't be opened by other processes; calls on it are \
                     made in pieces",
                    self.peers()[rank]
                ));
            }
            return Ok(DeviceRegistration::new(None, Weak::new()));
        }
        let (held, entry) = self.allocate(NAME, (driver, &context), bytes, Some(start))?;
        let registration = DeviceRegistration::new(Some(held), retired);
        self.add_shared(SharedAllocation { life: registration.life(), ..entry });
        Ok(registration)
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
        let life = Arc::new(());
        if self.streams.direct.is_none() {
            let held = ExportedMemory::private(DeviceAllocation::new(here.0, here.1, bytes)?);
            let start = held.start();
            return Ok((Some(held), start, life));
        }
        let (held, entry) = self.allocate(name, here, bytes, None)?;
        let start = held.start();
        self.add_shared(SharedAllocation { life: Arc::downgrade(&life), ..entry });
        if let Some(direct) = &mut self.streams.direct {
            direct.own_memory.push(held);
        }
        Ok((None, start, life))
    }

    /// Makes calls on this memory direct from here on.
    fn add_shared(&mut self, entry: SharedAllocation) {
        if let Some(direct) = &mut self.streams.direct {
            direct.shared.retain(|entry| entry.life.strong_count() > 0);
            direct.shared.push(entry);
        }
    }

    /// Memory of all ranks, allocated or of their users, and its address at each worker.
    pub(super) fn allocate(
        &mut self,
        name: &'static str,
        here: (Driver, &Arc<CudaContext>),
        bytes: usize,
        users: Option<CUdeviceptr>,
    ) -> Result<(ExportedMemory, SharedAllocation)> {
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::worker_ended(name))?;
        direct.allocations += 1;
        let (back, retired) = (direct.take_retired(MAX_RETURNED), Arc::clone(&direct.retired));
        let returned = std::array::from_fn(|at| back.get(at).map_or(0, |held| held.id));
        let allocated = self.allocate_and_close(name, here, bytes, users, returned);
        let Ok((held, entry, is_any_returned)) = allocated else {
            locked(&retired).extend(back);
            return allocated.map(|(held, entry, _)| (held, entry));
        };
        if is_any_returned {
            back.into_iter().for_each(|mut held| held.mark_closed());
            // To free waits for streams, so that no stream may wait for this rank before.
            self.all_gather_words(name, &[1])?;
        }
        Ok((held, entry))
    }

    /// Allocates as [`Self::allocate`] does, and closes this rank's mappings of memory that other
    /// ranks return; true if any rank returns memory.
    fn allocate_and_close(
        &mut self,
        name: &'static str,
        (driver, context): (Driver, &Arc<CudaContext>),
        bytes: usize,
        users: Option<CUdeviceptr>,
        returned: [u64; MAX_RETURNED],
    ) -> Result<(ExportedMemory, SharedAllocation, bool)> {
        let (me, size) = (self.rank(), self.size());
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::worker_ended(name))?;
        let (one_process, same_process) = (direct.is_one_process(), direct.same_process.clone());
        let (id, watchdog) = (direct.allocations, Arc::clone(direct.watchdog()));
        let memory = match users {
            // The driver packs small allocations into the memory of one handle, which another
            // process would see whole.
            None if !one_process => {
                let granules = bytes.max(1).next_multiple_of(HANDLE_GRANULARITY);
                DeviceAllocation::new(driver, context, granules).map(Some)
            }
            None => DeviceAllocation::new(driver, context, bytes).map(Some),
            Some(start) => {
                let device = context.cu_device();
                check_reachable((name, "buf"), start, bytes, device).map(|()| None)
            }
        };
        let mine = memory.and_then(|memory| {
            let start = users.or(memory.as_ref().map(DeviceAllocation::start)).unwrap_or(0);
            let exported = if one_process { ([0; HANDLE_WORDS], 0) } else { export_handle(start)? };
            Ok((memory, start, exported))
        });
        let (handle, offset) =
            mine.as_ref().map_or(([0; HANDLE_WORDS], 0), |(.., exported)| *exported);
        let notice = AllocationNotice { bytes: bytes as u64, offset, handle, returned };
        let words = self.all_gather_words(name, &notice.encode(mine.is_ok()))?;
        let all: Vec<_> = words.chunks_exact(WORDS).map(AllocationNotice::decode).collect();
        let (memory, start, _) = mine?;
        self.all_are_fine(name, words.iter().step_by(WORDS).copied())?;
        self.check_equal_lengths(name, notice.bytes, &all)?;
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::worker_ended(name))?;
        // This rank's mapping is closed before the owner hears of it below.
        direct.mappings.retain(|&(id, rank, _)| !all[rank].returned.contains(&id));
        let open = |(rank, handle)| {
            let needless = same_process[rank] || !direct.reach.reads(me, rank);
            (!needless).then(|| direct.map_peer((driver, context), rank, handle)).transpose()
        };
        let handles = all.iter().map(|notice| notice.handle).enumerate();
        let opened = handles.map(open).collect::<Result<Vec<_>>>();
        let mut words = vec![u64::from(opened.is_ok())];
        words.extend((0..size).map(|rank| {
            let opened = opened.as_ref().ok().and_then(|all| all[rank].as_deref());
            opened.map_or(0, |opened| opened.start() + all[rank].offset)
        }));
        let places = self.all_gather_words(name, &words)?;
        if places.iter().step_by(words.len()).any(|&fine| fine == 0) {
            // All ranks close their mappings before any frees its memory.
            let own = opened.err();
            self.all_gather_words(name, &[0])?;
            let others = self.all_are_fine(name, places.iter().step_by(words.len()).copied());
            return Err(own.or(others.err()).unwrap_or_else(|| worker::worker_ended(name)));
        }
        let opened = opened?;
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::worker_ended(name))?;
        let opened = opened.into_iter().enumerate();
        direct.mappings.extend(opened.filter_map(|(rank, it)| Some((id, rank, it?))));
        let seen_at = places.chunks_exact(words.len()).map(|words| words[1 + me]).collect();
        let others = (0..size).filter(|&rank| !same_process[rank] && direct.reach.reads(rank, me));
        let opened_by = (!one_process).then(|| (Arc::clone(&watchdog), others.collect()));
        let entry =
            SharedAllocation { range: start..start + bytes as u64, seen_at, life: Weak::new() };
        let is_any_returned = all.iter().any(|notice| notice.returned != [0; MAX_RETURNED]);
        Ok((ExportedMemory::new(id, memory, opened_by), entry, is_any_returned))
    }

    fn check_equal_lengths(
        &mut self,
        name: &'static str,
        bytes: u64,
        all: &[AllocationNotice],
    ) -> Result<()> {
        let Some(peer) = all.iter().position(|notice| notice.bytes != bytes) else { return Ok(()) };
        let values = [all[peer].bytes, bytes].map(|it| format!("{it} bytes"));
        let (engine, rank_info, settings) = self.engine_on_this_thread(name)?;
        let at = engine.place(rank_info, settings, name, 0);
        let ranks = Box::new([peer, rank_info.rank].map(|rank| rank_info.peers[rank].clone()));
        Err(Error::Mismatch { at, ranks, field: "the length", values })
    }
}
