//! Which devices ranks use, and memory there that all know: what ranks agree on before calls go
//! straight to their buffers.
//! May touch: as `comm`. Law: all ranks do this together; what one can't do, all are told, and the
//! communicator lives on.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, PoisonError};

use cudarc::driver::{CudaContext, CudaStream};

use super::direct::{Direct, Entry};
use super::memory::{DeviceMemory, Held};
use super::scratch::Scratch;
use crate::comm::Communicator;
use crate::comm::verbs::refuse;
use crate::device::cuda::{
    Boards, Current, Driver, Guard, HANDLE, Kernels, MOST_RANKS, Memory, Opened, Pinned, Together,
    Watch, device_of, driver, reach,
};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::link::region::Region;

/// Threads of this process know each other by it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() | 1);
/// Memory that is given back at a time.
const RETURNS: usize = 8;

impl Communicator {
    /// Says on which device this rank's buffers will be. All ranks call this together, before
    /// their first call on a stream; then collectives go straight to the buffers where the ranks'
    /// devices reach each other: where ranks share a device, and among devices of a host that read
    /// each other's memory. Elsewhere it changes nothing.
    ///
    /// Between processes buffers are best from [`Self::alloc_device`]; others are copied in pieces.
    ///
    /// # Errors
    /// If a rank has no driver or can't use its device: all ranks are told then, and go on as
    /// before.
    pub fn use_device(&mut self, context: &Arc<CudaContext>) -> Result<()> {
        const NAME: &str = "use_device";
        if self.streams.direct.is_some() {
            return refuse(NAME, "context", "said before", "once, for all calls");
        }
        let mine = driver().and_then(|driver| {
            let current = Current::new(driver, context.cu_ctx())?;
            Ok((driver, current, device_of(context.cu_device())?))
        });
        let [one, other] = mine.as_ref().map_or([0, 0], |(.., device)| device.uuid);
        let words = [u64::from(mine.is_ok()), *PROCESS, one, other];
        let all = self.tell_words(NAME, &words)?;
        let (driver, _current, device) = mine?;
        let all: Vec<_> = all.chunks_exact(words.len()).collect();
        self.all_are_fine(NAME, all.iter().map(|words| words[0]))?;
        let beside: Vec<_> = all.iter().map(|words| words[1] == *PROCESS).collect();
        let uuids: Vec<_> = all.iter().map(|words| [words[2], words[3]]).collect();
        let alone = uuids.iter().all(|uuid| *uuid == device.uuid);
        let few = self.size() <= MOST_RANKS && (self.seat.shares || self.size() == 1);
        let reached = few && reach(driver, context, &uuids)?;
        let reached = self.tell_words(NAME, &[u64::from(reached)])?;
        if reached.contains(&0) {
            return Ok(());
        }
        let pinned = self.boards(NAME, driver, context)?;
        let made = pinned.and_then(|boards| {
            let lives = self.lives(NAME, &beside)?;
            let boards = Boards::new(self.rank(), boards);
            let (abort, timeout) = (Arc::clone(&self.abort), self.settings.timeout);
            let watch = Watch::new(boards, alone, lives, abort, timeout);
            let guard = Guard::new(watch)?;
            let kernels = Kernels::load(driver, context)?;
            Ok(Together::new(context, guard, kernels, 2 * device.multiprocessors))
        });
        let fine = self.tell_words(NAME, &[u64::from(made.is_ok())])?;
        let direct = Direct::new(made?, beside);
        self.all_are_fine(NAME, fine.into_iter())?;
        let processes = !direct.is_one_process();
        self.streams.direct = Some(direct);
        if processes {
            let (held, entry) = self.allocate(NAME, driver, context, Scratch::BYTES)?;
            if let Some(direct) = &mut self.streams.direct {
                direct.scratch = Some(Scratch::new(context, held, entry)?);
            }
        }
        Ok(())
    }

    /// Do calls on streams go straight to the ranks' buffers?
    #[must_use]
    pub fn reaches_devices(&self) -> bool {
        self.streams.direct.is_some()
    }

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
        let Some(direct) = &self.streams.direct else {
            let held = Held::new(0, Memory::new(driver, context, bytes)?, None);
            return Ok(DeviceMemory::new(held, len, stream, std::sync::Weak::new()));
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
    fn allocate(
        &mut self,
        name: &'static str,
        driver: Driver,
        context: &Arc<CudaContext>,
        bytes: usize,
    ) -> Result<(Held, Entry)> {
        let (me, size) = (self.rank(), self.size());
        let lost = || super::super::worker::lost(name);
        let direct = self.streams.direct.as_mut().ok_or_else(lost)?;
        let (one_process, beside) = (direct.is_one_process(), direct.beside.clone());
        direct.allocations += 1;
        let (id, watch, retired) =
            (direct.allocations, Arc::clone(direct.watch()), Arc::clone(&direct.retired));
        let returned: Vec<_> = {
            let mut retired = retired.lock().unwrap_or_else(PoisonError::into_inner);
            let count = retired.len().min(RETURNS);
            retired.drain(..count).collect()
        };
        let mine = Memory::new(driver, context, bytes).and_then(|memory| {
            let handle = if one_process { [0; HANDLE] } else { memory.handle()? };
            Ok((memory, handle))
        });
        let mut words = vec![0; 2 + HANDLE + RETURNS];
        (words[0], words[1]) = (u64::from(mine.is_ok()), bytes as u64);
        words[2..2 + HANDLE].copy_from_slice(&mine.as_ref().map_or([0; HANDLE], |it| it.1));
        for (word, held) in words[2 + HANDLE..].iter_mut().zip(&returned) {
            *word = held.id;
        }
        let all = self.tell_words(name, &words)?;
        let all: Vec<_> = all.chunks_exact(words.len()).collect();
        let (memory, _) = mine?;
        self.all_are_fine(name, all.iter().map(|words| words[0]))?;
        if let Some(peer) = all.iter().position(|words| words[1] != bytes as u64) {
            let [ours, theirs] = [bytes as u64, all[peer][1]].map(|it| format!("{it} bytes"));
            let peer = Box::new(self.peers()[peer].clone());
            let (engine, seat, settings) = self.at_home(name)?;
            let at = engine.place(seat, settings, name, 0);
            return Err(Error::Mismatch { at, peer, field: "the length", ours, theirs });
        }
        // What is returned is closed here before its owner hears of it below.
        let direct = self.streams.direct.as_mut().ok_or_else(lost)?;
        let is_back = |id: u64, rank: usize| all[rank][2 + HANDLE..].contains(&id);
        direct.opened.retain(|&(id, rank, _)| !is_back(id, rank));
        let open = |rank: usize| -> Result<Option<Opened>> {
            if beside[rank] || !watch.is_worker(me) {
                return Ok(None);
            }
            let mut handle = [0; HANDLE];
            handle.copy_from_slice(&all[rank][2..2 + HANDLE]);
            Opened::new(driver, context, handle).map(Some)
        };
        let opened = (0..size).map(open).collect::<Result<Vec<_>>>();
        let mut words = vec![u64::from(opened.is_ok())];
        words.extend((0..size).map(|rank| {
            let opened = opened.as_ref().ok().and_then(|all| all[rank].as_ref());
            opened.map_or(0, Opened::start)
        }));
        let all = self.tell_words(name, &words)?;
        let opened = opened?;
        self.all_are_fine(name, all.chunks_exact(words.len()).map(|words| words[0]))?;
        for mut held in returned {
            held.is_closed();
        }
        let direct = self.streams.direct.as_mut().ok_or_else(lost)?;
        let opened = opened.into_iter().enumerate();
        direct.opened.extend(opened.filter_map(|(rank, it)| Some((id, rank, it?))));
        let seen = all.chunks_exact(words.len()).map(|words| words[1 + me]).collect();
        let start = memory.start();
        let others = (0..size).filter(|&rank| !beside[rank] && watch.is_worker(rank));
        let opened_by = (!one_process).then(|| (Arc::clone(&watch), others.collect()));
        let entry = Entry { range: start..start + bytes as u64, seen, life: Default::default() };
        Ok((Held::new(id, memory, opened_by), entry))
    }

    /// An error, if a rank has said 0.
    fn all_are_fine(&self, name: &'static str, said: impl Iterator<Item = u64>) -> Result<()> {
        match said.into_iter().position(|word| word == 0) {
            None => Ok(()),
            Some(peer) => {
                let reason = format!("{} could not; its own error says why", self.peers()[peer]);
                Err(Error::Device { doing: name.into(), reason })
            }
        }
    }

    /// All ranks' boards, as this rank and its device see them.
    fn boards(
        &mut self,
        name: &'static str,
        driver: Driver,
        context: &Arc<CudaContext>,
    ) -> Result<Result<Vec<Arc<Pinned>>>> {
        let len = Boards::footprint(self.size());
        let mine = Region::create(len).map_err(|error| self.broken_by(name, error))?;
        let regions = if self.size() == 1 {
            Region::open(mine.as_fd(), len, "this process").map(|region| vec![Arc::new(region)])
        } else {
            self.share(name, &mine, &vec![len; self.size()])?
        };
        Ok(regions.and_then(|regions| {
            regions.iter().map(|region| Pinned::of(driver, context, region)).collect()
        }))
    }

    /// Signs of life of the ranks that are other processes.
    fn lives(&mut self, name: &'static str, beside: &[bool]) -> Result<Vec<Option<UnixStream>>> {
        let links = &mut self.at_home(name)?.0.links;
        let life = |(peer, &beside): (usize, &bool)| {
            let link = if beside { None } else { links.tx(peer).ok() };
            let life = link.and_then(|link| link.life()).map(UnixStream::try_clone);
            life.transpose().map_err(|error| Error::io("copying a sign of life", error))
        };
        beside.iter().enumerate().map(life).collect()
    }
}
