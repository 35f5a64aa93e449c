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
use crate::api::Communicator;
use crate::api::verb::refuse;
use crate::device::cuda::{
    Around, Boards, Current, Device, Driver, Guard, Health, Kernels, Pinned, Together, Watch,
    device_of, devices, driver, event, locked,
};
use crate::error::{Error, Result};
use crate::memory::mapping::Region;
use crate::plan::Reach;

/// Threads of this process know each other by it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() | 1);

/// By which way collectives on device buffers go, as far as their kind allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicePath {
    /// Straight from buffer to buffer, by kernels.
    Direct,
    /// So, from each rank to the next one on a ring of devices that reach no others: `all_reduce`,
    /// `all_gather` and `broadcast`. All else goes by way of the host.
    Ring,
    /// So among ranks whose devices reach each other, one of which takes part for them in what
    /// goes by way of the host: see [`Communicator::use_device`].
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
pub(super) const NAME: &str = "use_device";

/// What a rank says of its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    has: u64,
    process: u64,
    pub(super) uuid: [u64; 2],
}

impl Said {
    /// Is the rank a thread of this process?
    pub(super) fn is_beside(&self) -> bool {
        self.process == *PROCESS
    }
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
    /// ranks share a device, and among devices of a host that read each other's memory. Where each
    /// rank has a device of its own, which reaches the one before it on some ring of all,
    /// `all_reduce`, `all_gather` and `broadcast` go around that, unless the order of ranks is
    /// promised. Elsewhere it changes nothing.
    ///
    /// No rank need see the others' devices (`CUDA_VISIBLE_DEVICES`): who reaches whom is found out
    /// by trying. So is what drivers refuse, as in WSL2 and in some sandboxes: stream memory
    /// operations, registering host memory, memory handles for other processes. Then calls that
    /// need it go by way of the host at all ranks, and rank 0 warns of what is missing.
    ///
    /// On several hosts, calls go straight among the ranks of a host where all of those reach each
    /// other, and where not, among those that share a device; and one rank of each such island
    /// goes by way of the host for all: `all_reduce`, `all_reduce_into`, `broadcast`, `reduce`,
    /// `reduce_into`, `reduce_scatter`, `all_gather`, both of these in place, `gather` and
    /// `scatter`. For all but the first three each rank allocates 32 MiB here, and longer calls are
    /// made in pieces; later calls allocate nothing. Still all ranks go by way of the host in
    /// deterministic calls, functions of the user's, `all_to_all`, `scan`, `exscan`, `barrier`,
    /// `all_reduce_many`, messages, and verbs of parts that differ in length.
    ///
    /// Between processes buffers are best from [`Self::alloc_device`]; others are copied in pieces.
    ///
    /// ```no_run
    /// # use ringreduce::{Communicator, ReduceOp, cudarc::driver::CudaContext};
    /// let mut comm = Communicator::from_env()?;
    /// let context = CudaContext::new(comm.local_rank() % ringreduce::device_count()?)?;
    /// let stream = context.new_stream()?;
    /// comm.use_device(&context)?;
    /// let mut sums = comm.alloc_device::<f32>(&stream, 1 << 20)?;
    /// comm.on_stream(&stream).all_reduce(&mut sums, ReduceOp::Sum)?;
    /// stream.synchronize()?;
    /// comm.on_stream(&stream).check()?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
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
        let reach = self.find_reach(driver, context, &all)?;
        tracing::info!(?reach, "device {:x?}", device.uuid);
        match &reach {
            Reach::Nobody => Ok(()),
            Reach::Islands(of) => self.make_islands(context, of[self.rank()]),
            _ => self.attach(driver, context, device, &all, reach),
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
        self.all_are_fine(NAME, all.iter().map(|said| said.has))?;
        self.streams.mixed = true;
        Ok(())
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

    pub(super) fn is_on_my_host(&self, rank: usize) -> bool {
        self.seat.peers[rank].host == self.host()
    }

    /// From here on calls go straight to the buffers, if all ranks can have it so.
    fn attach(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
        device: Device,
        all: &[Said],
        reach: Reach,
    ) -> Result<()> {
        let beside: Vec<_> = all.iter().map(Said::is_beside).collect();
        let pinned = self.boards(driver, context)?;
        let made = pinned.and_then(|boards| {
            let lives = self.lives(&beside)?;
            let boards = Boards::new(self.rank(), boards);
            let alone = reach == Reach::Shared;
            let health = Health::new(driver, context)?;
            let watch = Watch::new((boards, health), alone, lives, Arc::clone(&self.abort));
            let guard = Guard::new(watch)?;
            let around = match &reach {
                Reach::Ring(ring) => Some(Around::new(ring.clone(), self.rank())),
                _ => None,
            };
            let kernels = Kernels::of(driver, context)?;
            if beside.iter().filter(|&&beside| beside).count() > 1 {
                // To load waits for streams, and those of other threads may wait for this rank.
                locked(&kernels).load_all()?;
            }
            let most = self.settings.multiprocessors.unwrap_or(u32::MAX);
            let blocks = 2 * device.multiprocessors.min(most);
            Ok((
                Together::new(context, guard, kernels, around, (blocks, device.flushes)),
                event(context)?,
            ))
        });
        let fine = self.tell_words(NAME, &[u64::from(made.is_ok())])?;
        let (together, last) = made?;
        let direct = Direct::new(together, beside, reach);
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
            Streams { direct: Some(direct), .. } => match direct.reach {
                Reach::Ring(_) => DevicePath::Ring,
                _ => DevicePath::Direct,
            },
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
