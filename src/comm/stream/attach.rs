//! Which devices ranks use: what they agree on before calls go straight to their buffers.
//! May touch: as `comm`. Law: all ranks do this together; what one can't do, all are told, and the
//! communicator lives on.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use cudarc::driver::CudaContext;

use super::direct::Direct;
use super::scratch::Scratch;
use crate::comm::Communicator;
use crate::comm::verbs::refuse;
use crate::device::cuda::{
    Boards, Current, Driver, Guard, Kernels, MOST_RANKS, Pinned, Together, Watch, device_of,
    driver, locked, reach,
};
use crate::error::{Error, Result};
use crate::link::region::Region;

/// Threads of this process know each other by it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() | 1);

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
            let kernels = Kernels::of(driver, context)?;
            if beside.iter().filter(|&&beside| beside).count() > 1 {
                // To load waits for streams, and those of other threads may wait for this rank.
                locked(&kernels).load_all()?;
            }
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
