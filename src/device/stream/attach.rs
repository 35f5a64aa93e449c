//! Devices of the ranks: what ranks agree on before their calls are direct.
//! Law: all ranks do this together. If one rank fails, all get an error and the communicator lives
//! on.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};

use cudarc::driver::CudaContext;

use super::Streams;
use super::direct::Direct;
use super::scratch::ScratchMemory;
use crate::api::Communicator;
use crate::device::cuda::{
    ContextProbe, ControlBlocks, CurrentContext, DeviceFacts, Driver, Kernels, LastUse,
    PeerExecutor, PeerMemory, Pinned, RingCalls, Watchdog, WatchdogThread, count_devices,
    device_facts, driver, locked,
};
use crate::error::{Error, Result, argument_error};
use crate::memory::mapping::Region;
use crate::plan::Topology;
use crate::transport::PeerProcess;

/// A random number by which threads of this process recognize each other.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() | 1);

/// The path of collectives on device buffers, as far as the collective allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicePath {
    /// Direct: kernels read and write the ranks' buffers.
    Direct,
    /// Direct from each rank to the next one on a ring of devices, for `all_reduce`, `all_gather`
    /// and `broadcast`. All else goes by way of the host.
    Ring,
    /// Direct within P2P domains, groups of ranks whose devices access each other's memory. One
    /// rank of each goes by way of the host for all: see [`Communicator::use_device`].
    Islands,
    /// By way of pinned host memory, which the host reduces.
    Host,
}

/// The number of CUDA devices that this process may use. Ask this first: cudarc's own functions
/// panic where there is no driver.
///
/// # Errors
/// If there is no driver, it is too old, or it finds no device.
pub fn device_count() -> Result<usize> {
    driver().and_then(count_devices)
}

/// The name of the call in errors.
pub(super) const CALL: &str = "use_device";

/// A rank's message about its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankDevice {
    status: u64,
    process: u64,
    pub(super) uuid: [u64; 2],
}

impl RankDevice {
    /// True if the rank is a thread of this process.
    pub(super) fn is_same_process(&self) -> bool {
        self.process == *PROCESS
    }
}

/// Status of a rank: its device can't be used; it has a device; it has none.
const DEVICE_FAILED: u64 = 0;
const HAS_DEVICE: u64 = 1;
const NO_DEVICE: u64 = 2;

impl Communicator {
    /// Declares the device of this rank's buffers. All ranks call this together, or
    /// [`Self::use_no_device`], before their first call on a stream and after they have made their
    /// streams.
    ///
    /// After it collectives are direct, from buffer to buffer, where the ranks' devices access each
    /// other's memory: where ranks share a device, and among devices of a host with peer access.
    /// Where each rank has a device of its own, which accesses the one before it on some ring of
    /// all ranks, `all_reduce`, `all_gather` and `broadcast` go around that ring, unless the order
    /// of ranks is promised. Elsewhere it changes nothing.
    ///
    /// No rank has to see the others' devices (`CUDA_VISIBLE_DEVICES`): peer access is found by
    /// trying. Drivers may refuse stream memory operations, registered host memory, or memory
    /// handles for other processes, as in WSL2 and in some sandboxes. That is found by trying, too:
    /// calls that need it go by way of the host at all ranks, and rank 0 warns of what is missing.
    ///
    /// On several hosts, or where devices of a host have no peer access, calls go by P2P domains:
    /// the ranks of a host if all of them access each other's memory, else the ranks that share a
    /// device. Calls are direct within a domain, and one rank of each domain goes by way of the
    /// host for all. This is so for `all_reduce`, `all_reduce_into`, `broadcast`, `reduce`,
    /// `reduce_into`, `reduce_scatter`, `all_gather`, both of these in place, `gather` and
    /// `scatter`. For all but the first three each rank allocates 32 MiB here, and longer calls are
    /// made in pieces; later calls allocate nothing. All ranks go by way of the host in
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
    /// If a rank has no driver or can't use its device: all ranks get an error then, and go on as
    /// before.
    pub fn use_device(&mut self, context: &Arc<CudaContext>) -> Result<()> {
        self.check_first_attach()?;
        let mine = driver().and_then(|driver| {
            let current = CurrentContext::new(driver, context.cu_ctx())?;
            Ok((driver, current, device_facts(context.cu_device())?))
        });
        let uuid = mine.as_ref().map_or([0, 0], |(.., device)| device.uuid);
        let said = RankDevice {
            status: if mine.is_ok() { HAS_DEVICE } else { DEVICE_FAILED },
            process: *PROCESS,
            uuid,
        };
        let all = self.exchange_devices(said)?;
        let (driver, _current, device) = mine?;
        self.all_are_fine(CALL, all.iter().map(|rank| rank.status))?;
        if all.iter().any(|rank| rank.status == NO_DEVICE) {
            self.streams.has_host_ranks = true;
            self.streams.context = Some(Arc::clone(context));
            return Ok(());
        }
        let reach = self.find_reach(driver, context, &all)?;
        tracing::info!(?reach, "device {:x?}", device.uuid);
        match &reach {
            Topology::Disconnected => {}
            Topology::P2pDomains(of) => self.make_domains(context, of[self.rank()])?,
            _ => self.attach(driver, context, device, &all, reach)?,
        }
        self.streams.context = Some(Arc::clone(context));
        Ok(())
    }

    /// Declares that this rank's buffers are the host's, where other ranks call
    /// [`Self::use_device`]. Its calls on host buffers match the others' calls on streams. Those
    /// ranks make each call whole, through two blocks of pinned memory as long as the longest call.
    ///
    /// # Errors
    /// As [`Self::use_device`].
    pub fn use_no_device(&mut self) -> Result<()> {
        self.check_first_attach()?;
        let all = self.exchange_devices(RankDevice {
            status: NO_DEVICE,
            process: *PROCESS,
            uuid: [0; 2],
        })?;
        self.all_are_fine(CALL, all.iter().map(|rank| rank.status))?;
        self.streams.has_host_ranks = true;
        Ok(())
    }

    /// Refuses a second declaration.
    fn check_first_attach(&mut self) -> Result<()> {
        let Streams { direct, domains, has_host_ranks, .. } = &self.streams;
        if direct.is_some() || domains.is_some() || *has_host_ranks {
            return argument_error(CALL, "context", "said before", "once, for all calls");
        }
        Ok(())
    }

    fn exchange_devices(&mut self, mine: RankDevice) -> Result<Vec<RankDevice>> {
        let [one, other] = mine.uuid;
        let words = self.all_gather_words(CALL, &[mine.status, mine.process, one, other])?;
        let decode = |words: &[u64]| RankDevice {
            status: words[0],
            process: words[1],
            uuid: [words[2], words[3]],
        };
        Ok(words.chunks_exact(4).map(decode).collect())
    }

    pub(super) fn is_on_my_host(&self, rank: usize) -> bool {
        self.rank_info.peers[rank].host == self.host()
    }

    /// Makes calls direct from here on, if every rank can.
    fn attach(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
        device: DeviceFacts,
        all: &[RankDevice],
        reach: Topology,
    ) -> Result<()> {
        let same_process: Vec<_> = all.iter().map(RankDevice::is_same_process).collect();
        let pinned = self.map_control_blocks(driver, context)?;
        let made = pinned.and_then(|blocks| {
            let processes = self.peer_processes(&same_process)?;
            let blocks = ControlBlocks::new(self.rank(), blocks);
            let is_leader_only = reach == Topology::Shared;
            let shared = (blocks, ContextProbe::new(driver, context)?);
            let abort = Arc::clone(&self.abort);
            let watchdog =
                WatchdogThread::new(Watchdog::new(shared, is_leader_only, processes, abort))?;
            let ring = match &reach {
                Topology::Ring(ring) => Some(RingCalls::new(ring.clone(), self.rank())),
                _ => None,
            };
            let kernels = Kernels::for_context(driver, context)?;
            if same_process.iter().filter(|&&same_process| same_process).count() > 1 {
                // Loading waits for streams, and streams of other threads may wait for this rank.
                locked(&kernels).load_all()?;
            }
            let me = self.rank();
            let others = |reads: &dyn Fn(usize) -> bool| -> Vec<_> {
                let others = (0..all.len()).filter(|&rank| !same_process[rank]);
                others.filter(|&rank| reads(rank)).collect()
            };
            let owners = others(&|rank| reach.reads(me, rank));
            let openers = others(&|rank| reach.reads(rank, me)).into();
            let here = (driver, context);
            let memory = PeerMemory::new(here, &watchdog.shared, owners, openers)?;
            let most = self.settings.preferences.multiprocessors.unwrap_or(u32::MAX);
            let blocks = 2 * device.multiprocessors.min(most);
            Ok((
                PeerExecutor::new(context, watchdog, kernels, ring, (blocks, device.flushes)),
                memory,
            ))
        });
        let fine = self.all_gather_words(CALL, &[u64::from(made.is_ok())])?;
        let (executor, memory) = made?;
        let direct = Direct::new(executor, memory, same_process, reach);
        self.streams.failures.set_watchdog(direct.watchdog());
        self.all_are_fine(CALL, fine.into_iter())?;
        let processes = !direct.is_one_process();
        self.streams.direct = Some(Box::new(direct));
        if !processes {
            return Ok(());
        }
        let scratch = self.make_scratch(driver, context);
        let fine = self.all_gather_words(CALL, &[u64::from(scratch.is_ok())]);
        let all_have = fine.and_then(|fine| self.all_are_fine(CALL, fine.into_iter()));
        match (scratch, all_have, &mut self.streams.direct) {
            (Ok(scratch), Ok(()), Some(direct)) => direct.scratch = scratch,
            (scratch, all_have, _) => {
                self.streams.direct = None;
                return scratch.and(all_have);
            }
        }
        Ok(())
    }

    /// Scratch memory for buffers that other processes can't open. The context is current.
    fn make_scratch(
        &self,
        driver: Driver,
        context: &Arc<CudaContext>,
    ) -> Result<Option<ScratchMemory>> {
        let last = LastUse::new(context)?;
        let (held, entry) = self.alloc_shared(CALL, (driver, context), ScratchMemory::BYTES)?;
        Ok(entry.map(|entry| ScratchMemory::new(held, entry, last)))
    }

    /// The path of calls on streams.
    #[must_use]
    pub fn device_path(&self) -> DevicePath {
        match &self.streams {
            Streams { direct: Some(direct), .. } => match direct.reach {
                Topology::Ring(_) => DevicePath::Ring,
                _ => DevicePath::Direct,
            },
            Streams { domains: Some(_), .. } => DevicePath::Islands,
            _ => DevicePath::Host,
        }
    }

    /// Fails if a rank has answered 0.
    pub(super) fn all_are_fine(
        &self,
        name: &'static str,
        answers: impl Iterator<Item = u64>,
    ) -> Result<()> {
        match answers.into_iter().position(|word| word == 0) {
            None => Ok(()),
            Some(peer) => {
                let reason = format!("{} could not; its own error says why", self.peers()[peer]);
                Err(Error::Device { doing: name.into(), reason })
            }
        }
    }

    /// All ranks' control blocks, as this rank and its device map them.
    fn map_control_blocks(
        &mut self,
        driver: Driver,
        context: &Arc<CudaContext>,
    ) -> Result<Result<Vec<Arc<Pinned>>>> {
        let len = ControlBlocks::footprint(self.size());
        let mine = Region::create(len).map_err(|error| self.break_with(CALL, error))?;
        let regions = if self.size() == 1 {
            Region::open(mine.as_fd(), len, "this process").map(|region| vec![Arc::new(region)])
        } else {
            self.share_regions(CALL, &mine, &vec![len; self.size()])?
        };
        Ok(regions.and_then(|regions| {
            regions.iter().map(|region| Pinned::register(driver, context, region)).collect()
        }))
    }

    /// The processes of the ranks in others. The streams by which they and this one see each
    /// other's ends outlive the links.
    fn peer_processes(&mut self, same_process: &[bool]) -> Result<Vec<Option<PeerProcess>>> {
        let links = &mut self.engine_on_this_thread(CALL)?.0.peers.links;
        let stream = |(peer, &same_process): (usize, &bool)| {
            let link = if same_process { None } else { links.tx(peer).ok() };
            Some(PeerProcess::new(Arc::clone(link?.liveness()?)))
        };
        Ok(same_process.iter().enumerate().map(stream).collect())
    }
}
