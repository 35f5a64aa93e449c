//! Memory on devices that all ranks know.
//! May touch: as `comm`. Law: all ranks allocate together; what one can't do, all are told, and the
//! communicator lives on. What was opened is closed before its owner frees it.
#![allow(unsafe_code)]

use std::sync::{Arc, Weak};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DeviceSlice};

use super::device_ref::DeviceRef;
use super::direct::Entry;
use super::memory::{DeviceMemory, DeviceRegistration, Held};
use crate::api::Communicator;
use crate::api::verb::refuse;
use crate::device::cuda::{Current, Driver, HANDLE, Memory, driver, handle, locked, reachable};
use crate::element::Element;
use crate::engine::worker;
use crate::error::{Error, Result, warn};

/// Bytes of what the driver makes handles of.
const HANDLED: usize = 2 << 20;
/// Memory that is given back at a time.
const RETURNS: usize = 8;

/// What a rank says of its memory.
struct Told {
    bytes: u64,
    /// Where it begins in what the handle is of.
    offset: u64,
    handle: [u64; HANDLE],
    /// What its users have dropped, and its owner will free; 0 is nothing.
    returned: [u64; RETURNS],
}

/// Words of it on its way, the first of which says whether there is any.
const WORDS: usize = 3 + HANDLE + RETURNS;

impl Told {
    fn encode(&self, is_fine: bool) -> [u64; WORDS] {
        let words = [u64::from(is_fine), self.bytes, self.offset].into_iter();
        let mut words = words.chain(self.handle).chain(self.returned);
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    fn decode(words: &[u64]) -> Self {
        let handle = std::array::from_fn(|at| words[3 + at]);
        let returned = std::array::from_fn(|at| words[3 + HANDLE + at]);
        Self { bytes: words[1], offset: words[2], handle, returned }
    }
}

impl Communicator {
    /// `len` elements, zero, on the device of `stream`, in memory that the other ranks' devices
    /// see. All ranks call this together, with the same length, while none of their calls on
    /// streams is under way.
    ///
    /// Without [`Self::use_device`], or where devices do not reach each other, it is memory like
    /// any other.
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
        let _current = Current::new(driver, context.cu_ctx())?;
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let Some(bytes) = bytes else {
            return refuse(NAME, "len", len, "less than the address space");
        };
        if let Some(islands) = &mut self.streams.islands {
            return islands.island.alloc_device(stream, len);
        }
        let Some(direct) = &self.streams.direct else {
            let held = Held::new(0, Some(Memory::new(driver, context, bytes)?), None);
            held.clear(bytes, stream)?;
            return Ok(DeviceMemory::new(held, len, stream, Weak::new()));
        };
        if !direct.together.is_of(context) {
            let given = "of another context than use_device was given";
            return refuse(NAME, "stream", given, "one of the same");
        }
        let retired = Arc::downgrade(&direct.retired);
        let (held, entry) = self.allocate(NAME, (driver, context), bytes, None)?;
        held.clear(bytes, stream)?;
        let memory = DeviceMemory::new(held, len, stream, retired);
        self.know(Entry { life: memory.life(), ..entry });
        Ok(memory)
    }

    /// Makes memory that the user has as good as [`Self::alloc_device`]'s, until what it returns is
    /// dropped. All ranks call this together, with the same length. Unless all ranks are threads of
    /// this process it should be memory that other processes can open: `cuMemAlloc`'s or
    /// `cudaMalloc`'s. That of a pool, as [`CudaStream::alloc`]'s is, and that of `cuMemMap`, as
    /// expandable segments are, is used as if it were not registered, after a warning.
    ///
    /// # Safety
    /// The memory is not freed before what is returned was dropped at all ranks and this
    /// communicator has allocated or registered again, or was dropped at all ranks.
    ///
    /// # Errors
    /// As [`Self::alloc_device`].
    pub unsafe fn register_device<T: Element>(
        &mut self,
        buf: &DeviceRef<T>,
    ) -> Result<DeviceRegistration> {
        const NAME: &str = "register_device";
        if let Some(islands) = &mut self.streams.islands {
            // SAFETY: the caller's promise.
            return unsafe { islands.island.register_device(buf) };
        }
        let (driver, context) = (driver()?, buf.stream().context());
        let _current = Current::new(driver, context.cu_ctx())?;
        let Some(direct) = &self.streams.direct else {
            return Ok(DeviceRegistration::new(None, Weak::new()));
        };
        if !direct.together.is_of(context) {
            let given = "of another context than use_device was given";
            return refuse(NAME, "buf", given, "one of the same");
        }
        let (one_process, retired) = (direct.is_one_process(), Arc::downgrade(&direct.retired));
        let (start, bytes) = (buf.start(), buf.num_bytes());
        // What is no memory at all is an error below.
        let exports =
            one_process || reachable(NAME, start, bytes).is_err() || handle(start).is_ok();
        let all = self.tell_words(NAME, &[u64::from(exports)])?;
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
        let (held, entry) = self.allocate(NAME, (driver, context), bytes, Some(start))?;
        let registration = DeviceRegistration::new(Some(held), retired);
        self.know(Entry { life: registration.life(), ..entry });
        Ok(registration)
    }

    /// Where memory begins that the communicator has for itself, as good as
    /// [`Self::alloc_device`]'s as long as the second lives. The context is current.
    pub(super) fn alloc_own(
        &mut self,
        name: &'static str,
        here: (Driver, &Arc<CudaContext>),
        bytes: usize,
    ) -> Result<(Option<Held>, CUdeviceptr, Arc<()>)> {
        let life = Arc::new(());
        if self.streams.direct.is_none() {
            let held = Held::new(0, Some(Memory::new(here.0, here.1, bytes)?), None);
            let start = held.start();
            return Ok((Some(held), start, life));
        }
        let (held, entry) = self.allocate(name, here, bytes, None)?;
        let start = held.start();
        self.know(Entry { life: Arc::downgrade(&life), ..entry });
        if let Some(direct) = &mut self.streams.direct {
            direct.kept.push(held);
        }
        Ok((None, start, life))
    }

    /// From here on calls on this memory go straight there.
    fn know(&mut self, entry: Entry) {
        if let Some(direct) = &mut self.streams.direct {
            direct.entries.retain(|entry| entry.life.strong_count() > 0);
            direct.entries.push(entry);
        }
    }

    /// Memory of all ranks, or of their users, and where the workers see this one's.
    pub(super) fn allocate(
        &mut self,
        name: &'static str,
        here: (Driver, &Arc<CudaContext>),
        bytes: usize,
        users: Option<CUdeviceptr>,
    ) -> Result<(Held, Entry)> {
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        direct.allocations += 1;
        let (back, retired) = (direct.take_back(RETURNS), Arc::clone(&direct.retired));
        let returned = std::array::from_fn(|at| back.get(at).map_or(0, |held| held.id));
        let allocated = self.allocate_and_close(name, here, bytes, users, returned);
        let Ok((held, entry, is_any_returned)) = allocated else {
            locked(&retired).extend(back);
            return allocated.map(|(held, entry, _)| (held, entry));
        };
        if is_any_returned {
            back.into_iter().for_each(|mut held| held.is_closed());
            // To free waits for streams: nobody's shall wait for this rank before.
            self.tell_words(name, &[1])?;
        }
        Ok((held, entry))
    }

    /// The same; what ranks say that they return is closed here. Does any say so?
    fn allocate_and_close(
        &mut self,
        name: &'static str,
        (driver, context): (Driver, &Arc<CudaContext>),
        bytes: usize,
        users: Option<CUdeviceptr>,
        returned: [u64; RETURNS],
    ) -> Result<(Held, Entry, bool)> {
        let (me, size) = (self.rank(), self.size());
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        let (one_process, beside) = (direct.is_one_process(), direct.beside.clone());
        let (id, watch) = (direct.allocations, Arc::clone(direct.watch()));
        let memory = match users {
            // Small allocations share what a handle is of, which other processes then see whole.
            None if !one_process => {
                Memory::new(driver, context, bytes.max(1).next_multiple_of(HANDLED)).map(Some)
            }
            None => Memory::new(driver, context, bytes).map(Some),
            Some(start) => reachable(name, start, bytes).map(|()| None),
        };
        let mine = memory.and_then(|memory| {
            let start = users.or(memory.as_ref().map(Memory::start)).unwrap_or(0);
            let known = if one_process { ([0; HANDLE], 0) } else { handle(start)? };
            Ok((memory, start, known))
        });
        let (handle, offset) = mine.as_ref().map_or(([0; HANDLE], 0), |(.., known)| *known);
        let told = Told { bytes: bytes as u64, offset, handle, returned };
        let words = self.tell_words(name, &told.encode(mine.is_ok()))?;
        let all: Vec<_> = words.chunks_exact(WORDS).map(Told::decode).collect();
        let (memory, start, _) = mine?;
        self.all_are_fine(name, words.iter().step_by(WORDS).copied())?;
        self.are_as_long(name, told.bytes, &all)?;
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        // Closed here before its owner hears of it below.
        direct.opened.retain(|&(id, rank, _)| !all[rank].returned.contains(&id));
        let open = |(rank, told)| {
            let needless = beside[rank] || !direct.reach.reads(me, rank);
            (!needless).then(|| direct.open((driver, context), rank, told)).transpose()
        };
        let handles = all.iter().map(|told| told.handle).enumerate();
        let opened = handles.map(open).collect::<Result<Vec<_>>>();
        let mut words = vec![u64::from(opened.is_ok())];
        words.extend((0..size).map(|rank| {
            let opened = opened.as_ref().ok().and_then(|all| all[rank].as_deref());
            opened.map_or(0, |opened| opened.start() + all[rank].offset)
        }));
        let places = self.tell_words(name, &words)?;
        if places.iter().step_by(words.len()).any(|&fine| fine == 0) {
            // What is open here is closed before anybody frees his own.
            let own = opened.err();
            self.tell_words(name, &[0])?;
            let others = self.all_are_fine(name, places.iter().step_by(words.len()).copied());
            return Err(own.or(others.err()).unwrap_or_else(|| worker::lost(name)));
        }
        let opened = opened?;
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        let opened = opened.into_iter().enumerate();
        direct.opened.extend(opened.filter_map(|(rank, it)| Some((id, rank, it?))));
        let seen = places.chunks_exact(words.len()).map(|words| words[1 + me]).collect();
        let others = (0..size).filter(|&rank| !beside[rank] && direct.reach.reads(rank, me));
        let opened_by = (!one_process).then(|| (Arc::clone(&watch), others.collect()));
        let entry = Entry { range: start..start + bytes as u64, seen, life: Weak::new() };
        let is_any_returned = all.iter().any(|told| told.returned != [0; RETURNS]);
        Ok((Held::new(id, memory, opened_by), entry, is_any_returned))
    }

    /// An error, if a rank wants another length.
    fn are_as_long(&mut self, name: &'static str, bytes: u64, all: &[Told]) -> Result<()> {
        let Some(peer) = all.iter().position(|told| told.bytes != bytes) else { return Ok(()) };
        let values = [all[peer].bytes, bytes].map(|it| format!("{it} bytes"));
        let (engine, seat, settings) = self.at_home(name)?;
        let at = engine.place(seat, settings, name, 0);
        let ranks = Box::new([peer, seat.rank].map(|rank| seat.peers[rank].clone()));
        Err(Error::Mismatch { at, ranks, field: "the length", values })
    }
}
