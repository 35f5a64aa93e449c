//! Exchange of memory regions between ranks of one host. Threads use a table in their process;
//! processes pass descriptors round the ring over the Unix streams of its links.
//! Law: no region has a name in the file system, and every wait has a deadline.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::api::{Communicator, Origin};
use crate::config::deadline_after;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::direct::MAX_SHARED_RANKS;
use crate::exec::{Halt, Stop};
use crate::health::Peers;
use crate::memory::PhaseFlags;
use crate::memory::mapping::Region;
use crate::plan::{Planner, stage_bytes};
use crate::transport::Fault;
use crate::transport::{recv_fd, send_fd};

/// How often a rank that waits for a descriptor checks the abort flag.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The regions of all ranks by rank, or the reason why this rank can't map them.
type Mapped = Result<Vec<Arc<Region>>>;

/// Regions of ranks that are threads, by rank.
#[derive(Debug, Default)]
pub(super) struct RegionTable(Mutex<BTreeMap<usize, Arc<Region>>>);

/// True if this many ranks of one host may map each other's memory.
pub(super) fn is_shareable_size(size: usize) -> bool {
    (2..=MAX_SHARED_RANKS).contains(&size)
}

/// True if ranks of one host share phase flags and staging memory from the start: in worlds with
/// links between all pairs. Larger worlds, which would spend too much on it, do so at the first
/// registration.
pub(super) fn shares_from_start(planner: &Planner) -> bool {
    stage_bytes(planner.ring()) > 0
}

impl Engine {
    /// Uses the phase flags of all ranks: from now on calls may go through shared memory without
    /// links.
    pub(super) fn use_shared_memory(&mut self, rank: usize, regions: Vec<Arc<Region>>) {
        let stage = stage_bytes(self.planner.ring());
        if stage > 0 {
            self.planner.set_stage(stage.min(PhaseFlags::stage_len()));
        }
        self.registry.open(PhaseFlags::new(rank, regions, self.cache_bytes));
    }
}

impl Communicator {
    /// Shares phase flags between ranks of one host.
    pub(crate) fn share_phase_flags(&mut self, name: &'static str) -> Result<()> {
        let len = PhaseFlags::region_len();
        let own_fd = Region::create(len).map_err(|error| self.break_with(name, error))?;
        let regions = self.share_regions(name, &own_fd, &vec![len; self.size()])?;
        let regions = regions.map_err(|error| self.break_with(name, error))?;
        let me = self.rank();
        self.engine_on_this_thread(name)?.0.use_shared_memory(me, regions);
        Ok(())
    }

    /// The regions of all ranks, mapped here: `own_fd` is this rank's, and `lens` are the lengths
    /// of all. The ranks must be on one host.
    pub(crate) fn share_regions(
        &mut self,
        name: &'static str,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let shared = match &self.rank_info.origin {
            Origin::Threads(group) => {
                let group = Arc::clone(group);
                self.share_between_threads(name, &group.regions, own_fd, lens)
            }
            Origin::Processes(_) => {
                // The exchange prepares the next call: the failure detector reports a rank that
                // ends or does not come.
                let next = self.engine_on_this_thread(name)?.0.sequence + 1;
                self.engine_on_this_thread(name)?.0.peers.local_detector().prepare(next);
                let shared = self.share_over_ring(name, own_fd, lens);
                self.engine_on_this_thread(name)?.0.peers.local_detector().enter(next - 1, 0);
                shared
            }
        };
        // The failure is published, since the other ranks wait for descriptors that no longer come.
        shared.map_err(|error| self.break_with(name, error))
    }

    fn share_between_threads(
        &mut self,
        name: &'static str,
        regions: &RegionTable,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let table = || regions.0.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.rank();
        let region = Region::open(own_fd.as_fd(), lens[me], "this process");
        let region = region.map(|region| table().insert(me, Arc::new(region)));
        self.internal_barrier(name)?;
        let regions: Vec<_> = table().values().cloned().collect();
        // A second barrier: each rank removes its region after all have read the table.
        self.internal_barrier(name)?;
        table().remove(&me);
        Ok(region.and_then(|_| match regions.len() == self.size() {
            true => Ok(regions),
            false => Err(Error::io("mapping what another thread could not", Errno::ENOMEM)),
        }))
    }

    fn share_over_ring(
        &mut self,
        name: &'static str,
        own_fd: &OwnedFd,
        lens: &[NonZeroUsize],
    ) -> Result<Mapped> {
        let (me, size) = (self.rank(), self.size());
        let (next, prev) = ((me + 1) % size, (me + size - 1) % size);
        let timeout = self.settings.timeout;
        let deadline = deadline_after(timeout);
        let mut regions =
            vec![Region::open(own_fd.as_fd(), lens[me], "this process").map(Arc::new)];
        let mut fd = own_fd.try_clone().map_err(|e| Error::io("sharing memory", e))?;
        for step in 1..size {
            let lost = |fault| Stop::Fault(fault);
            let sent = fd_stream(&mut self.engine_on_this_thread(name)?.0.peers, next, true)
                .map_err(lost)
                .and_then(|fd_stream| {
                    send_fd(fd_stream, fd).map_err(|e| {
                        Stop::Fault(Fault::Lost(format!("no descriptor could be sent to it: {e}")))
                    })
                });
            sent.map_err(|stop| self.fail(name, Halt { stop, step, peer: next }))?;
            let abort = Arc::clone(&self.abort);
            let received = receive_fd(
                &mut self.engine_on_this_thread(name)?.0.peers,
                prev,
                (deadline, timeout),
                &abort,
            );
            fd = received.map_err(|stop| self.fail(name, Halt { stop, step, peer: prev }))?;
            let from = (me + size - step) % size;
            let whose = self.peers()[from].to_string();
            // A descriptor that can't be mapped here still goes on to the other ranks.
            regions.push(Region::open(fd.as_fd(), lens[from], &whose).map(Arc::new));
        }
        // Regions arrived in the order me, me - 1, ...; callers want them by rank.
        regions.reverse();
        regions.rotate_left(size - 1 - me);
        Ok(regions.into_iter().collect())
    }
}

/// The Unix stream of the link to or from a neighbour.
fn fd_stream(peers: &mut Peers, peer: usize, to: bool) -> Result<&UnixStream, Fault> {
    let life =
        if to { peers.links.tx(peer)?.peer_stream() } else { peers.links.rx(peer)?.peer_stream() };
    life.ok_or_else(|| Fault::Lost("there is no stream to hand memory over".into()))
}

/// Receives a descriptor from a neighbour.
fn receive_fd(
    peers: &mut Peers,
    from: usize,
    (deadline, timeout): (Instant, Duration),
    abort: &std::sync::atomic::AtomicBool,
) -> Result<OwnedFd, Stop> {
    let began = Instant::now();
    loop {
        let now = Instant::now();
        match recv_fd(fd_stream(peers, from, false)?, deadline.min(now + ABORT_POLL_INTERVAL)) {
            Ok(fd) => return Ok(fd),
            Err(_) if abort.load(Ordering::Relaxed) => return Err(Stop::Aborted),
            Err(error) if error.kind() != std::io::ErrorKind::TimedOut => {
                return Err(Stop::Fault(Fault::Lost(format!("no memory came from it: {error}"))));
            }
            Err(_) if now >= deadline => return Err(Stop::Timeout(timeout)),
            Err(_) => {}
        }
        if let Some((peer, fault)) = peers.cause(None, |_, _| false) {
            return Err(Stop::Other { peer, fault });
        }
        peers.send_heartbeats((began.elapsed(), timeout), None);
    }
}
