//! Memory on devices that all ranks know.
//! May touch: as `comm`. Law: all ranks allocate together; what one can't do, all are told, and the
//! communicator lives on. What was opened is closed before its owner frees it.

use std::sync::{Arc, Weak};

use cudarc::driver::{CudaContext, CudaStream};

use super::direct::Entry;
use super::memory::{DeviceMemory, Held};
use crate::comm::verbs::refuse;
use crate::comm::{Communicator, worker};
use crate::device::cuda::{Current, Driver, HANDLE, Memory, Opened, driver};
use crate::element::Element;
use crate::error::{Error, Result};

/// Memory that is given back at a time.
const RETURNS: usize = 8;

/// What a rank says of its memory.
struct Told {
    bytes: u64,
    handle: [u64; HANDLE],
    /// What its users have dropped, and its owner will free; 0 is nothing.
    returned: [u64; RETURNS],
}

/// Words of it on its way, the first of which says whether there is any.
const WORDS: usize = 2 + HANDLE + RETURNS;

impl Told {
    fn encode(&self, is_fine: bool) -> [u64; WORDS] {
        let words = [u64::from(is_fine), self.bytes].into_iter();
        let mut words = words.chain(self.handle).chain(self.returned);
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    fn decode(words: &[u64]) -> Self {
        let handle = std::array::from_fn(|at| words[2 + at]);
        let returned = std::array::from_fn(|at| words[2 + HANDLE + at]);
        Self { bytes: words[1], handle, returned }
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
            let held = Held::new(0, Memory::new(driver, context, bytes)?, None);
            return Ok(DeviceMemory::new(held, len, stream, Weak::new()));
        };
        if !direct.together.is_of(context) {
            let given = "of another context than use_device was given";
            return refuse(NAME, "stream", given, "one of the same");
        }
        let retired = Arc::downgrade(&direct.retired);
        let (held, entry) = self.allocate(NAME, driver, context, bytes)?;
        let memory = DeviceMemory::new(held, len, stream, retired);
        if let Some(direct) = &mut self.streams.direct {
            direct.entries.retain(|entry| entry.life.strong_count() > 0);
            direct.entries.push(Entry { life: memory.life(), ..entry });
        }
        Ok(memory)
    }

    /// Memory of all ranks, and where the workers see this one's.
    pub(super) fn allocate(
        &mut self,
        name: &'static str,
        driver: Driver,
        context: &Arc<CudaContext>,
        bytes: usize,
    ) -> Result<(Held, Entry)> {
        let (me, size) = (self.rank(), self.size());
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        let (one_process, beside) = (direct.is_one_process(), direct.beside.clone());
        direct.allocations += 1;
        let (id, watch, returned) =
            (direct.allocations, Arc::clone(direct.watch()), direct.take_back(RETURNS));
        let mine = Memory::new(driver, context, bytes).and_then(|memory| {
            let handle = if one_process { [0; HANDLE] } else { memory.handle()? };
            Ok((memory, handle))
        });
        let told = Told {
            bytes: bytes as u64,
            handle: mine.as_ref().map_or([0; HANDLE], |it| it.1),
            returned: std::array::from_fn(|at| returned.get(at).map_or(0, |held| held.id)),
        };
        let words = self.tell_words(name, &told.encode(mine.is_ok()))?;
        let all: Vec<_> = words.chunks_exact(WORDS).map(Told::decode).collect();
        let (memory, _) = mine?;
        self.all_are_fine(name, words.iter().step_by(WORDS).copied())?;
        self.are_as_long(name, told.bytes, &all)?;
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        // Closed here before its owner hears of it below.
        direct.opened.retain(|&(id, rank, _)| !all[rank].returned.contains(&id));
        let open = |rank: usize| -> Result<Option<Opened>> {
            let needless = beside[rank] || !watch.is_worker(me);
            (!needless).then(|| Opened::new(driver, context, all[rank].handle)).transpose()
        };
        let opened = (0..size).map(open).collect::<Result<Vec<_>>>();
        let mut words = vec![u64::from(opened.is_ok())];
        words.extend((0..size).map(|rank| {
            let opened = opened.as_ref().ok().and_then(|all| all[rank].as_ref());
            opened.map_or(0, Opened::start)
        }));
        let places = self.tell_words(name, &words)?;
        let opened = opened?;
        self.all_are_fine(name, places.iter().step_by(words.len()).copied())?;
        if all.iter().any(|told| told.returned != [0; RETURNS]) {
            returned.into_iter().for_each(|mut held| held.is_closed());
            // To free waits for streams: nobody's shall wait for this rank before.
            self.tell_words(name, &[1])?;
        }
        let direct = self.streams.direct.as_mut().ok_or_else(|| worker::lost(name))?;
        let opened = opened.into_iter().enumerate();
        direct.opened.extend(opened.filter_map(|(rank, it)| Some((id, rank, it?))));
        let seen = places.chunks_exact(words.len()).map(|words| words[1 + me]).collect();
        let start = memory.start();
        let others = (0..size).filter(|&rank| !beside[rank] && watch.is_worker(rank));
        let opened_by = (!one_process).then(|| (Arc::clone(&watch), others.collect()));
        let entry = Entry { range: start..start + bytes as u64, seen, life: Weak::new() };
        Ok((Held::new(id, memory, opened_by), entry))
    }

    /// An error, if a rank wants another length.
    fn are_as_long(&mut self, name: &'static str, bytes: u64, all: &[Told]) -> Result<()> {
        let Some(peer) = all.iter().position(|told| told.bytes != bytes) else { return Ok(()) };
        let [ours, theirs] = [bytes, all[peer].bytes].map(|it| format!("{it} bytes"));
        let peer = Box::new(self.peers()[peer].clone());
        let (engine, seat, settings) = self.at_home(name)?;
        let at = engine.place(seat, settings, name, 0);
        Err(Error::Mismatch { at, peer, field: "the length", ours, theirs })
    }
}
