//! Communicators of ranks that are threads of one process: a table that all of them share takes the
//! place of the store.
//! Law: the sender makes a link and publishes the receiver's end; the receiver waits for it with a
//! deadline. No order of ranks can deadlock.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::rank_record::host_name;
use super::share_memory::{HostRanks, is_shareable_size};
#[cfg(feature = "cuda")]
use super::share_regions::RegionTable;
use crate::api::{Communicator, Origin};
use crate::config::{Config, deadline_after};
use crate::engine::settings::Preferences;
use crate::engine::{Engine, RankInfo, SpeedsAreIn};
use crate::error::{Error, Peer, Result};
use crate::health::Peers;
use crate::health::local_detector::LocalDetector;
use crate::health::process_table::LaunchedRanks;
use crate::memory::HostRegion;
use crate::memory::mapping::Region;
use crate::messages::{MessageEngine, MessageLinks};
use crate::plan::{Distance, Planner, Slots, least_chunk, message_slots};
use crate::schedule::Ring;
use crate::sync::{Backoff, Instant, Process, UsableCpus};
use crate::trace::Recorder;
use crate::transport::{Bell, LinkSet, Rx, loopback};

/// How often a waiting rank checks the abort flag.
pub(super) const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// All subgroups of one world of threads, by job number.
type Groups = Arc<Mutex<HashMap<u64, Weak<ThreadGroup>>>>;

/// State that the ranks of one communicator share.
pub(crate) struct ThreadGroup {
    pub(super) job: u64,
    /// Ranks of the world on this host's CPUs, in this group or not.
    ranks_on_host: usize,
    /// The CPUs that they share.
    cpus: usize,
    /// The largest world that has links between all pairs.
    all_pairs: u32,
    groups: Groups,
    /// How often each rank has made a group with each digest.
    created: Mutex<HashMap<(usize, u64), u64>>,
    table: Mutex<PublishedTable>,
    changed: Condvar,
    /// Memory regions that ranks publish for each other.
    #[cfg(feature = "cuda")]
    pub(super) regions: RegionTable,
}

/// Objects that ranks have published for others.
#[derive(Default)]
struct PublishedTable {
    /// Receivers' ends of the links of collectives and of messages that were not taken yet, by
    /// sender and receiver.
    link_ends: HashMap<(usize, usize), [Box<dyn Rx>; 2]>,
    /// The bell of each rank.
    bells: HashMap<usize, Arc<Bell>>,
    /// The memory of the status entries, which rank 0 makes.
    status: Option<Arc<Region>>,
    /// The region of the host, which rank 0 makes, and its file.
    host_region: Option<(Arc<Region>, Arc<OwnedFd>)>,
}

impl ThreadGroup {
    /// The group of a new world.
    fn new(ranks_on_host: usize, all_pairs: u32) -> Arc<Self> {
        let here = (ranks_on_host, UsableCpus::now().count as usize);
        Arc::new(Self::with_job(0, here, all_pairs, Groups::default()))
    }

    fn with_job(
        job: u64,
        (ranks_on_host, cpus): (usize, usize),
        all_pairs: u32,
        groups: Groups,
    ) -> Self {
        Self {
            job,
            ranks_on_host,
            cpus,
            all_pairs,
            groups,
            created: Mutex::default(),
            table: Mutex::default(),
            changed: Condvar::new(),
            #[cfg(feature = "cuda")]
            regions: RegionTable::default(),
        }
    }

    /// The subgroup with this job number: the same object for all ranks that name it.
    fn subgroup(&self, job: u64) -> Arc<Self> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&job).and_then(Weak::upgrade) {
            return group;
        }
        let group = Self::with_job(
            job,
            (self.ranks_on_host, self.cpus),
            self.all_pairs,
            Arc::clone(&self.groups),
        );
        let group = Arc::new(group);
        groups.retain(|_, group| group.strong_count() > 0);
        groups.insert(job, Arc::downgrade(&group));
        group
    }

    /// The number of the next group with this digest that `rank` makes.
    pub(super) fn next_group(&self, rank: usize, digest: u64) -> u64 {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let number = created.entry((rank, digest)).or_default();
        *number += 1;
        *number
    }

    /// Takes back the number of the latest group with this digest, which `rank` could not make.
    pub(super) fn undo_group(&self, rank: usize, digest: u64) {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.entry((rank, digest)).and_modify(|number| *number -= 1);
    }

    /// The bell of a rank, made for whoever asks first.
    fn bell(&self, rank: usize) -> Result<Arc<Bell>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = table.bells.get(&rank) {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(Bell::new()?);
        table.bells.insert(rank, Arc::clone(&bell));
        Ok(bell)
    }

    fn publish<T>(&self, entry: impl FnOnce(&mut PublishedTable) -> T) {
        entry(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until `entry` finds what `from` has to publish.
    fn wait_for<T>(
        &self,
        from: usize,
        (deadline, waits): (Instant, &Waits<'_>),
        entry: impl Fn(&mut PublishedTable) -> Option<T>,
    ) -> Result<T> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = entry(&mut table) {
                return Ok(found);
            }
            let left = deadline.checked_duration_since(Instant::now());
            let Some(left) = left.filter(|_| !(waits.is_aborted)()) else {
                let reason = format!("it did not come within {:.1?}", waits.timeout);
                return Err(Error::Handshake { peer: (waits.name)(from), reason });
            };
            let woken = self.changed.wait_timeout(table, left.min(ABORT_POLL_INTERVAL));
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How a rank waits for others that connect.
pub(super) struct Waits<'a> {
    pub(super) timeout: Duration,
    pub(super) is_aborted: &'a dyn Fn() -> bool,
    /// The name of a rank in errors.
    pub(super) name: &'a dyn Fn(usize) -> String,
}

/// Communicators of `n` ranks that are threads of this process, by rank.
pub(crate) fn communicators(n: usize, config: Config) -> Result<Vec<Communicator>> {
    let preferences = Preferences::from(&config);
    let Config { timeout, all_pairs, record_dir, trace, .. } = config;
    let (host, pid) = (host_name(), std::process::id());
    let peers: Arc<[Peer]> = (0..n).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
    let group = ThreadGroup::new(n, all_pairs as u32);
    let prepared = |rank| PreparedRank::new(Arc::clone(&group), rank, Arc::clone(&peers));
    let prepared: Vec<_> = (0..n).map(prepared).collect::<Result<_>>()?;
    let connect = |(rank, prepared): (usize, PreparedRank)| {
        let recorder = Recorder::new(None, (rank, n), record_dir.clone(), trace.clone(), false)?;
        let name = &|rank: usize| peers[rank].to_string();
        let waits = Waits { timeout, is_aborted: &|| false, name };
        let comm = prepared.connect(&waits, &Arc::default(), &recorder)?;
        Ok(comm.with_preferences(preferences))
    };
    prepared.into_iter().enumerate().map(connect).collect()
}

/// A rank that has made the links it sends on.
pub(super) struct PreparedRank {
    group: Arc<ThreadGroup>,
    rank: usize,
    peers: Arc<[Peer]>,
    planner: Planner,
    links: LinkSet,
    messages: MessageLinks,
}

impl PreparedRank {
    /// Makes the links that `rank` of `peers` sends on, and publishes their receivers' ends.
    fn new(group: Arc<ThreadGroup>, rank: usize, peers: Arc<[Peer]>) -> Result<Self> {
        let ring = Ring::natural(peers.len() as u32).with_all_pairs(group.all_pairs);
        let min_chunk = least_chunk(false, group.ranks_on_host.div_ceil(group.cpus));
        let slots = Slots::of(Distance::Memory, peers.len(), ring.all_pairs());
        let planner = Planner::new(ring, rank as u32, slots, min_chunk);
        let mut links = LinkSet::new(peers.len());
        let bell = group.bell(rank)?;
        let slots = message_slots(false, peers.len());
        let mut messages = MessageLinks::new(planner.ring(), slots, bell);
        for to in planner.peers().into_iter().map(|to| to as usize) {
            let (tx, rx) = loopback::pair(planner.slots(rank as u32, to as u32))?;
            let bells = [Arc::clone(messages.bell.bell()), group.bell(to)?].map(Some);
            let (message_tx, message_rx) = loopback::pair_with_doorbells(slots, bells)?;
            links.add_tx(to, tx);
            messages.links.add_tx(to, message_tx);
            group.publish(|table| table.link_ends.insert((rank, to), [rx, message_rx]));
        }
        if rank == 0 && peers.len() > 1 {
            let status = LocalDetector::private_memory(peers.len())?;
            group.publish(|table| table.status = Some(status));
        }
        if rank == 0 && is_shareable_size(peers.len()) {
            let len = HostRegion::len(peers.len(), 0);
            let fd = Region::create_growable(len)?;
            let region = Region::open_start(fd.as_fd(), len, "this process")?;
            group.publish(|table| table.host_region = Some((Arc::new(region), Arc::new(fd))));
        }
        Ok(Self { group, rank, peers, planner, links, messages })
    }

    /// As [`Self::new`], for a rank of the subgroup with this job number: `me` is that rank and its
    /// peers in the parent, and `members` are the subgroup's ranks there.
    pub(super) fn of_subgroup(
        parent: &ThreadGroup,
        job: u64,
        (me, peers): (usize, &[Peer]),
        members: &[usize],
    ) -> Result<Self> {
        let peer = |(rank, &old): (usize, &usize)| Peer { rank, ..peers[old].clone() };
        let rank = members.iter().take_while(|&&member| member != me).count();
        Self::new(parent.subgroup(job), rank, members.iter().enumerate().map(peer).collect())
    }

    /// Takes the links that this rank receives on and makes the communicator, whose abort flag is
    /// `abort`.
    pub(super) fn connect(
        self,
        waits: &Waits<'_>,
        abort: &Arc<AtomicBool>,
        recorder: &Arc<Recorder>,
    ) -> Result<Communicator> {
        let Self { group, rank, peers, planner, mut links, mut messages } = self;
        let (timeout, waits) = (waits.timeout, (deadline_after(waits.timeout), waits));
        for from in planner.peers().into_iter().map(|from| from as usize) {
            let take_end = |table: &mut PublishedTable| table.link_ends.remove(&(from, rank));
            let [rx, message_rx] = group.wait_for(from, waits, take_end)?;
            links.add_rx(from, rx);
            messages.links.add_rx(from, message_rx);
        }
        let transports = links.transports();
        let mut peer_table = Peers::new(links);
        if peers.len() > 1 {
            let status = group.wait_for(0, waits, |table| table.status.clone())?;
            let (size, all) = (peers.len(), 0..peers.len());
            let local_detector = LocalDetector::of_threads((rank, size), all, &status)?;
            peer_table.set_local_sources(local_detector, LaunchedRanks::default());
        }
        let shares = is_shareable_size(peers.len());
        let region = shares.then(|| group.wait_for(0, waits, |table| table.host_region.clone()));
        let region = region.transpose()?;
        let backoff = Backoff::for_ranks(group.ranks_on_host, group.cpus);
        let name = Arc::default();
        let rank_info = Arc::new(RankInfo {
            rank,
            local_rank: rank,
            local_size: peers.len(),
            peers: Arc::clone(&peers),
            transports,
            streams_per_link: 1,
            shares_memory: shares,
            registrations: Arc::default(),
            messages: MessageEngine::new(
                messages,
                (rank, Arc::clone(&peers)),
                &name,
                backoff.clone(),
                abort,
            ),
            record: recorder.communicator(group.job, rank, peers, Arc::clone(&name)),
            name,
            process: Process::default(),
            speeds: SpeedsAreIn::Process,
        });
        let mut engine = Engine::new(rank_info, planner, peer_table, backoff, Arc::clone(abort));
        if let Some((region, fd)) = region {
            let host = HostRanks::of(rank, engine.planner.ring());
            let fd = fd.try_clone().map_err(|e| Error::io("sharing memory", e))?;
            let file = host.file(region, fd);
            engine.use_host_region(host, file, true);
        }
        Ok(Communicator::new(Origin::Threads(group), engine, timeout))
    }
}
