//! The region of a host, which its ranks share when they meet. Threads find it in a table of their
//! process; processes pass its descriptor round the host over their control channels.
//! Law: no region has a name in the file system, and every wait has a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::api::Communicator;
use crate::config::deadline_after;
use crate::engine::{Engine, RankInfo};
use crate::error::{Error, Result, Stall};
use crate::exec::{Halt, Stop};
use crate::health::{Peers, WaitTime};
use crate::memory::mapping::Region;
use crate::memory::{HostFile, HostRegion, SharedCpus};
use crate::plan::PeerReads;
use crate::schedule::{Ring, StageShape};
use crate::sync::{Instant, WaitNotice};
use crate::transport::Fault;

/// True if this many ranks of one host may map each other's memory.
pub(super) fn is_shareable_size(size: usize) -> bool {
    StageShape::is_for(size)
}

impl Engine {
    /// Uses the region of this rank's host: from now on calls may go through shared memory without
    /// links. `is_one_process`: all ranks are threads of this process.
    pub(super) fn use_host_region(
        &mut self,
        HostRanks { me, ranks }: HostRanks,
        file: Arc<HostFile>,
        is_one_process: bool,
    ) {
        self.planner.share_host();
        if is_one_process {
            self.planner.set_peer_reads(PeerReads::OneProcess);
        }
        let machine = SharedCpus { cache_bytes: self.cache_bytes, cpus: self.backoff.cpus() };
        let region = HostRegion::new((me, ranks), Arc::clone(&file), machine, is_one_process);
        self.registry.open(region, file);
    }
}

/// The ranks of this rank's host.
pub(super) struct HostRanks {
    /// The index of this rank.
    me: usize,
    /// Ascending.
    ranks: Box<[usize]>,
}

impl HostRanks {
    /// The ranks of the host of rank `me`.
    pub(super) fn of(me: usize, ring: &Ring) -> Self {
        let mine = ring.hosts().find(|host| host.contains(&(me as u32))).unwrap_or_default();
        let mut ranks: Box<[usize]> = mine.iter().map(|&rank| rank as usize).collect();
        ranks.sort_unstable();
        Self { me: ranks.partition_point(|&rank| rank < me), ranks }
    }

    /// The file whose start is mapped as `region`.
    pub(super) fn file(&self, region: Arc<Region>, fd: OwnedFd) -> Arc<HostFile> {
        Arc::new(HostFile::new(self.me, self.ranks.len(), region, fd))
    }

    /// The rank so many places after this one, round the host.
    fn after(&self, places: usize) -> usize {
        self.ranks[(self.me + places) % self.ranks.len()]
    }
}

impl Communicator {
    /// Shares the region of this host between its ranks, which are processes: the first one makes
    /// it, and each rank hands its descriptor to the next one. The last rank then has heard of all
    /// others, and hands that on round the host: no rank may wait in the region for a rank that has
    /// failed while it connects.
    pub(crate) fn share_host_region(&mut self, name: &'static str) -> Result<()> {
        let prepared = self.prepare_exchange(name)?;
        let host = HostRanks::of(self.rank(), self.engine_on_this_thread(name)?.0.planner.ring());
        let (me, size) = (host.me, host.ranks.len());
        let (next, previous) = (host.after(1), host.after(size - 1));
        let len = HostRegion::len(size, 0);
        let fd = match me {
            0 => Region::create_growable(len),
            _ => self.receive_from(name, me, previous),
        };
        let region = fd.and_then(|fd| {
            let first = self.peers()[host.ranks[0]].to_string();
            let region = Region::open_start(fd.as_fd(), len, &first);
            let own = fd.try_clone().map_err(|e| Error::io("sharing memory", e));
            self.send_to(name, (next, fd))?;
            if me + 1 < size {
                let fd = self.receive_from(name, size + me, previous)?;
                if me + 2 < size {
                    self.send_to(name, (next, fd))?;
                }
            }
            Ok((Arc::new(region?), own?))
        });
        let (region, fd) = region.map_err(|error| self.break_with(name, error))?;
        let file = host.file(region, fd);
        let engine = self.engine_on_this_thread(name)?.0;
        engine.peers.local_detector().enter(prepared - 1, 0);
        engine.use_host_region(host, file, false);
        Ok(())
    }

    /// Marks the next call as being prepared, so that the failure detector reports a rank that ends
    /// or does not come to an exchange before it; the number of that call.
    pub(super) fn prepare_exchange(&mut self, name: &'static str) -> Result<u64> {
        let engine = self.engine_on_this_thread(name)?.0;
        let next = engine.sequence + 1;
        engine.peers.local_detector().enter(next, 0);
        Ok(next)
    }

    /// Sends a descriptor to `peer`.
    pub(super) fn send_to(
        &mut self,
        name: &'static str,
        (peer, fd): (usize, OwnedFd),
    ) -> Result<()> {
        let (engine, _) = self.engine_on_this_thread(name)?;
        if engine.peers.control_channels().send_descriptor(peer, fd) {
            return Ok(());
        }
        let stop = Stop::Fault(Fault::Lost("there is no connection to it".into()));
        Err(self.fail(name, Halt { stop, step: 0, peer }))
    }

    /// Receives a descriptor from `peer`, in this step of an exchange.
    pub(super) fn receive_from(
        &mut self,
        name: &'static str,
        step: usize,
        peer: usize,
    ) -> Result<OwnedFd> {
        let timeout = self.settings.timeout;
        let abort = Arc::clone(&self.abort);
        let (engine, _) = self.engine_on_this_thread(name)?;
        let interval = engine.backoff.sleep_interval();
        let awaited = Awaited { rank_info: &engine.rank_info, peer, abort: &abort, interval };
        let received = awaited.descriptor(&mut engine.peers, (deadline_after(timeout), timeout));
        received.map_err(|stop| self.fail(name, Halt { stop, step, peer }))
    }
}

/// A neighbour that this rank waits for.
struct Awaited<'a> {
    rank_info: &'a RankInfo,
    peer: usize,
    abort: &'a AtomicBool,
    /// How often this rank checks the abort flag and looks for failed peers.
    interval: Duration,
}

impl Awaited<'_> {
    /// Receives a descriptor.
    fn descriptor(
        &self,
        peers: &mut Peers,
        (deadline, timeout): (Instant, Duration),
    ) -> Result<OwnedFd, Stop> {
        let mut notice = WaitNotice::new();
        loop {
            let control_channels = peers.control_channels();
            let (is_over, goodbye) = control_channels.end_of(self.peer);
            match control_channels.receive_descriptor(self.peer) {
                Some(Ok(fd)) => return Ok(fd),
                Some(Err(error)) => {
                    let peer = &self.rank_info.peers[self.peer];
                    let error = Error::io(format!("taking a descriptor from {peer}"), error);
                    return Err(Stop::Fault(Fault::NoMemory(Box::new(error))));
                }
                None if self.abort.load(Ordering::Relaxed) => return Err(Stop::Aborted),
                None if is_over || goodbye.is_some() => {
                    let evidence = "no memory came from it: it has closed its communicator";
                    return Err(Stop::Fault(Fault::Lost(evidence.into())));
                }
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Stop::Timeout(timeout));
            }
            control_channels.sleep((deadline - now).min(self.interval));
            if let Some((peer, fault)) = peers.cause(None) {
                return Err(Stop::Other { peer, fault });
            }
            notice.tell_if_due(|waited| self.notice(waited, peers.stalled_peer(timeout)));
            peers.keep_up(WaitTime { waited: notice.waited(), timeout });
        }
    }

    /// The notice of this wait, with the rank that keeps the neighbour waiting, if it is known.
    fn notice(&self, waited: Duration, stalled: Option<(usize, Stall)>) -> String {
        let RankInfo { rank, peers, .. } = self.rank_info;
        let cause = match stalled.and_then(|(rank, state)| Some((peers.get(rank)?, state))) {
            Some((peer, state)) => format!("{peer} {state}"),
            None => "its process may be stopped, or it waits for another rank itself".into(),
        };
        format!(
            "rank {rank} has waited {waited:.0?} for the memory of {}: {cause}",
            peers[self.peer]
        )
    }
}
