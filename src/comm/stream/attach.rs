//! Which devices ranks use: what they agree on before calls go straight to their buffers.
//! May touch: as `comm`. Law: all ranks do this together; what one can't do, all are told, and the
//! communicator lives on.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use cudarc::driver::CudaContext;

use super::Streams;
use super::direct::Direct;
use super::scratch::Scratch;
use crate::comm::Communicator;
use crate::comm::verbs::refuse;
use crate::device::cuda::{
    Boards, Current, Device, Driver, Guard, Kernels, MOST_RANKS, Pinned, Together, Watch,
    device_of, devices, driver, event, locked, reach,
};
use crate::error::{Error, Result};
use crate::link::region::Region;

/// Threads of this process know each other by it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() | 1);

/// By which way collectives on device buffers go, as far as their kind allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicePath {
    /// Straight from buffer to buffer, by kernels.
    Direct,
    /// So among ranks whose devices reach each other, one of which takes part for them in what
    /// goes by way of the host.
    Islands,
    /// By way of pinned memory of the host, which reduces.
    Host,
}

/// How many CUDA devices this process may use. Ask this first: cudarc's own functions panic where
/// there is no driver.
///
/// # Errors
/// If there is no driver, it is too old, or it finds no device.
pub fn device_count() -> Result<usize> {
    driver().and_then(devices)
}

/// The call, for errors.
const NAME: &str = "use_device";

/// What a rank says of its device.
#[derive(Clone, Copy, Debug)]
struct Said {
    has: u64,
    process: u64,
    uuid: [u64; 2],
}

/// It has one; or can't use it; or has none.
const TROUBLE: u64 = 0;
const DEVICE: u64 = 1;
const NONE: u64 = 2;

impl Communicator {
    /// Says on which device this rank's buffers will be. All ranks call this together, or
    /// [`Self::use_no_device`], before their first call on a stream, and after they have made their
    /// streams.
    ///
    /// Then collectives go straight to the buffers where the ranks' devices reach each other: where
    /// ranks share a device, and among devices of a host that read each other's memory. Where only
    /// some do, as on several hosts, `all_reduce` and `broadcast` go straight among those, and one
    /// rank of each such island takes part for all. Elsewhere it changes nothing.
    ///
    /// Between processes buffers are best from [`Self::alloc_device`]; others are copied in pieces.
    ///
    /// # Errors
    /// If a rank has no driver or can't use its device: all ranks are told then, and go on as
    /// before.
    pub fn use_device(&mut self, context: &Arc<CudaContext>) -> Result<()> {
        self.may_attach()?;
        let mine = driver().and_then(|driver| {
            let current = Current::new(driver, context.cu_ctx())?;
            Ok((driver, current, device_of(context.cu_device())?))
        });
        let uuid = mine.as_ref().map_or([0, 0], |(.., device)| device.uuid);
        let said =
            Said { has: if mine.is_ok() { DEVICE } else { TROUBLE }, process: *PROCESS, uuid };
        let all = self.say(said)?;
        let (driver, _current, device) = mine?;
        self.all_are_fine(NAME, all.iter().map(|said| said.has))?;
        if all.iter().any(|said| said.has == NONE) {
            self.streams.mixed = true;
            return Ok(());
        }
        let reached = |ranks: &[usize]| {
            let far = |&rank: &usize| (all[rank].uuid, all[rank].process == *PROCESS);
            reach(driver, context, ranks.iter().map(far)).unwrap_or_else(|error| {
                tracing::warn!("{error}; calls on streams go by way of the host");
                false
            })
        };
        let here: Vec<_> = (0..all.len()).filter(|&rank| self.is_on_my_host(rank)).collect();
        // Whom all of this host reach; and all of them, who at least share their device.
        let on_host = self.tell_words(NAME, &[u64::from(reached(&here))])?;
        let beside_me = |rank: usize| match here.iter().all(|&rank| on_host[rank] == 1) {
            true => self.is_on_my_host(rank),
            false => all[rank].uuid == device.uuid,
        };
        let island: Vec<_> = (0..all.len()).filter(|&rank| beside_me(rank)).collect();
        let whole = island.len() == self.size() && self.size() <= MOST_RANKS;
        let whole = whole && (self.seat.shares || self.size() == 1);
        let islands = (2..self.size()).contains(&island.len());
        let said = [u64::from(whole), u64::from(islands)];
        let said = self.tell_words(NAME, &said)?;
        let straight = said.chunks_exact(2).all(|said| said[0] == 1);
        tracing::info!(straight, island = island.len(), "device {:x?}", device.uuid);
        if straight {
            self.attach(driver, context, device, &all)
        } else if said.chunks_exact(2).any(|said| said[1] == 1) {
            self.make_islands(context, island[0])
        } else {
            Ok(())
        }
    }

    /// Says that this rank's buffers are the host's, where others call [`Self::use_device`]. It
    /// makes its calls on host buffers, others on streams, and they match: those others make each
    /// call whole, through two blocks of pinned memory as long as the longest.
    ///
    /// # Errors
    /// As [`Self::use_device`].
    pub fn use_no_device(&mut self) -> Result<()> {
        self.may_attach()?;
        let all = self.say(Said { has: NONE, process: *PROCESS, uuid: [0; 2] })?;
        self.all_are_fine(NAME, all.iter().map(|said| said.has))
    }

    /// Once for all calls.
    fn may_attach(&mut self) -> Result<()> {
        let Streams { direct, islands, mixed, .. } = &self.streams;
        if direct.is_some() || islands.is_some() || *mixed {
            return refuse(NAME, "context", "said before", "once, for all calls");
        }
        Ok(())
    }

    fn say(&mut self, mine: Said) -> Result<Vec<Said>> {
        let [one, other] = mine.uuid;
        let words = self.tell_words(NAME, &[mine.has, mine.process, one, other])?;
        let said =
            |words: &[u64]| Said { has: words[0], process: words[1], uuid: [words[2], words[3]] };
        Ok(words.chunks_exact(4).map(said).collect())
    }

    fn is_on_my_host(&self, rank: usize) -> bool {
        self.seat.peers[rank].host == self.host()
    }

    /// From here on calls go straight to the buffers, if all ranks can have it so.
    fn attach(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
        device: Device,
        all: &[Said],
    ) -> Result<()> {
        let beside: Vec<_> = all.iter().map(|said| said.process == *PROCESS).collect();
        let pinned = self.boards(driver, context)?;
        let made = pinned.and_then(|boards| {
            let lives = self.lives(&beside)?;
            let boards = Boards::new(self.rank(), boards);
            let alone = all.iter().all(|said| said.uuid == device.uuid);
            let guard = Guard::new(Watch::new(boards, alone, lives, Arc::clone(&self.abort)))?;
            let kernels = Kernels::of(driver, context)?;
            if beside.iter().filter(|&&beside| beside).count() > 1 {
                // To load waits for streams, and those of other threads may wait for this rank.
                locked(&kernels).load_all()?;
            }
            let most = self.settings.multiprocessors.unwrap_or(u32::MAX);
            let blocks = 2 * device.multiprocessors.min(most);
            Ok((Together::new(context, guard, kernels, blocks), event(context)?))
        });
        let fine = self.tell_words(NAME, &[u64::from(made.is_ok())])?;
        let (together, last) = made?;
        let direct = Direct::new(together, beside);
        self.all_are_fine(NAME, fine.into_iter())?;
        let processes = !direct.is_one_process();
        self.streams.direct = Some(direct);
        if processes {
            // All have it, or none.
            let allocated = self.allocate(NAME, (driver, context), Scratch::BYTES, None);
            match (allocated, &mut self.streams.direct) {
                (Ok((held, entry)), Some(direct)) => {
                    direct.scratch = Some(Scratch::new(held, entry, last));
                }
                (allocated, _) => {
                    self.streams.direct = None;
                    return allocated.map(drop);
                }
            }
        }
        Ok(())
    }

    /// By which way calls on streams go.
    #[must_use]
    pub fn device_path(&self) -> DevicePath {
        match &self.streams {
            Streams { direct: Some(_), .. } => DevicePath::Direct,
            Streams { islands: Some(_), .. } => DevicePath::Islands,
            _ => DevicePath::Host,
        }
    }

    /// An error, if a rank has said 0.
    pub(super) fn all_are_fine(
        &self,
        name: &'static str,
        said: impl Iterator<Item = u64>,
    ) -> Result<()> {
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
        driver: Driver,
        context: &Arc<CudaContext>,
    ) -> Result<Result<Vec<Arc<Pinned>>>> {
        let len = Boards::footprint(self.size());
        let mine = Region::create(len).map_err(|error| self.broken_by(NAME, error))?;
        let regions = if self.size() == 1 {
            Region::open(mine.as_fd(), len, "this process").map(|region| vec![Arc::new(region)])
        } else {
            self.share(NAME, &mine, &vec![len; self.size()])?
        };
        Ok(regions.and_then(|regions| {
            regions.iter().map(|region| Pinned::of(driver, context, region)).collect()
        }))
    }

    /// Signs of life of the ranks that are other processes, and what this rank's are seen by: both
    /// ends of the links' streams, kept whatever becomes of the links.
    fn lives(&mut self, beside: &[bool]) -> Result<(Vec<Option<UnixStream>>, Vec<UnixStream>)> {
        let links = &mut self.at_home(NAME)?.0.links;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for (peer, &beside) in beside.iter().enumerate() {
            let lost = |error| Error::io("copying a sign of life", error);
            let to = if beside { None } else { links.tx(peer).ok() };
            let life = to.and_then(|link| link.life()).map(UnixStream::try_clone);
            theirs.push(life.transpose().map_err(lost)?);
            let from = if beside { None } else { links.rx(peer).ok() };
            let life = from.and_then(|link| link.life()).map(UnixStream::try_clone);
            ours.extend(life.transpose().map_err(lost)?);
        }
        Ok((theirs, ours))
    }
}
