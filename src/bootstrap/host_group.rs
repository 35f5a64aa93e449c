//! Subgroups on one host: they take their memory from the file of their parent's region, and use
//! its connections, bells and process pages. So a subgroup needs no descriptor, no thread and no
//! exchange of its own.
//! Law: all that its ranks must agree on follows from the requests, which all ranks of the parent
//! have.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::Bootstrap;
use super::share_memory::HostRanks;
use super::split::SplitRequest;
use super::subgroup::Listeners;
use crate::api::{Communicator, Origin};
use crate::engine::group_failure::GroupFailure;
use crate::engine::settings::Preferences;
use crate::error::cause::{FailureCause, FailureReason};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::health::control_channel::{Channels, ControlChannels};
use crate::health::local_detector::{HostPages, LocalDetector};
use crate::memory::{FileRange, HostFile, HostRegion, page_size};
use crate::messages::MessageLinks;
use crate::plan::{Planner, Slots, message_slots};
use crate::schedule::Ring;
use crate::trace::Recorder;
use crate::transport::shm::{self, FifoShape};
use crate::transport::{Bell, FifoMemory, LinkSet, slots_len, words_len};

/// FIFOs from one rank to another: of calls, and of messages.
const FIFOS: usize = 2;

/// The layout of a subgroup's memory, in bytes: first its region, in which the words of all FIFOs
/// and the status entries of its ranks are, then the slots of the FIFOs to the next ranks of the
/// ring, and of all others.
#[derive(Clone, Copy, Debug)]
struct GroupMemory {
    size: usize,
    /// Bytes of the words of all FIFOs.
    link_bytes: usize,
    /// Bytes of the status entries.
    status_bytes: usize,
    /// The offset of the slots.
    slots: usize,
    /// Bytes of the slots from one rank to the next one of the ring, and to another rank.
    ring_bytes: usize,
    other_bytes: usize,
    len: usize,
}

impl GroupMemory {
    /// The layout for a subgroup of `size` ranks.
    fn of(size: usize) -> Self {
        let pages = |bytes: usize| bytes.next_multiple_of(page_size());
        let Slots { ring, other } = Slots::of(false, size);
        let messages = message_slots(false, size);
        let [ring_bytes, other_bytes] = [ring, other].map(|calls| slots_len(&[calls, messages]));
        let link_bytes = size * size * words_len(FIFOS);
        let status_bytes = LocalDetector::entry_bytes(size).get();
        let slots = pages(HostRegion::len(size, link_bytes + status_bytes).get());
        let len = pages(slots + size * ring_bytes + size * size * other_bytes);
        Self { size, link_bytes, status_bytes, slots, ring_bytes, other_bytes, len }
    }

    /// The memory of the FIFOs from one rank to another.
    fn pair(&self, file: &HostFile, ring: &Ring, (from, to): (usize, usize)) -> FifoMemory {
        let number = from * self.size + to;
        let slots = match ring.after(from as u32, 1) as usize == to {
            true => from * self.ring_bytes,
            false => self.size * self.ring_bytes + number * self.other_bytes,
        };
        FifoMemory {
            region: Arc::clone(file.region()),
            words: HostFile::link_words_at(self.size) + number * words_len(FIFOS),
            slots: self.slots + slots,
        }
    }
}

/// Bytes of the memory of a group of `size` ranks.
pub(super) fn group_len(size: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(GroupMemory::of(size).len - 1)
}

/// Bytes to reserve for the subgroups of `size` ranks of a host, however they are split: for each
/// rank as much as the ranks of the size of group that needs most.
pub(super) fn reserved_len(size: usize) -> NonZeroUsize {
    let of_rank = |ranks: usize| GroupMemory::of(ranks).len.div_ceil(ranks);
    let most = (2..=size).map(of_rank).max().unwrap_or(0);
    let len = (size * most).next_multiple_of(page_size());
    NonZeroUsize::MIN.saturating_add(len.saturating_sub(1))
}

impl Bootstrap {
    /// True if subgroups on one host can use this communicator's connections and memory there.
    pub(super) fn can_host_groups(&self) -> bool {
        self.shares_regions() && self.size() <= self.config.all_pairs
    }

    /// The memory of the subgroup of this rank with this colour, which the lowest rank of its host
    /// has reserved; `None` if its ranks connect anew.
    pub(super) fn group_memory(&self, requests: &[SplitRequest], color: u32) -> Option<FileRange> {
        let host = self.host_of(self.rank);
        let reserved = requests[*host.first()?].memory.filter(|_| self.can_host_groups())?;
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (rank, request) in requests.iter().enumerate() {
            if let Some(color) = request.color() {
                groups.entry(color).or_default().push(rank);
            }
        }
        groups.retain(|_, ranks| ranks.len() > 1 && ranks.iter().all(|rank| host.contains(rank)));
        let mut start = reserved;
        for (&other, ranks) in &groups {
            let len = GroupMemory::of(ranks.len()).len as u64;
            if other == color {
                return Some(FileRange { start, len });
            }
            start = start.checked_add(len)?;
        }
        None
    }
}

/// The error of a rank whose communicator has no resources for subgroups.
pub(super) fn closed_region_error(name: &'static str) -> Error {
    Error::io(name, std::io::Error::other("the host's region is closed"))
}

/// The error of a rank whose parent has no connection to a member.
fn missing_link_error() -> Error {
    Error::io("making a subgroup", std::io::Error::other("a rank of this host is not linked"))
}

/// The resources of a communicator that its subgroups on this host share, for any thread.
#[derive(Debug)]
pub(super) struct GroupResources {
    pub(super) channels: Channels,
    pages: Arc<HostPages>,
    pub(super) file: Arc<HostFile>,
}

/// A subgroup that is being made.
pub(super) struct HostGroup<'a> {
    /// The name of the call in errors.
    pub(super) name: &'static str,
    pub(super) job: u64,
    /// The ranks that its ranks have in the parent.
    pub(super) members: &'a [usize],
    pub(super) memory: FileRange,
    /// The number of the parent's call that makes it; `None` if its members make it alone.
    pub(super) call: Option<u64>,
    pub(super) timeout: Duration,
    pub(super) preferences: Preferences,
    /// The failures that the parent's subgroups report.
    pub(super) failures: &'a Arc<GroupFailure>,
}

impl Communicator {
    /// Shares the resources of this communicator with its subgroups on this host.
    pub(super) fn share_with_groups(&mut self) -> Result<()> {
        let origin = Arc::clone(&self.origin);
        let Origin::Processes(bootstrap) = &*origin else { return Ok(()) };
        let (engine, _) = self.engine_on_this_thread("build")?;
        // A thousand ranks have no use for what no subgroup of theirs can share.
        let file = engine.registry.file().filter(|_| bootstrap.can_host_groups());
        if let Some(file) = file.map(Arc::clone) {
            let channels = engine.peers.control_channels().channels().clone();
            let pages = Arc::new(engine.peers.local_detector().pages());
            // A communicator shares its resources once, when it is made.
            let _ = bootstrap.group_resources.set(GroupResources { channels, pages, file });
        }
        Ok(())
    }

    /// Makes a subgroup of the communicator whose bootstrap is `parent`.
    pub(super) fn of_host_group(
        parent: &Bootstrap,
        group: &HostGroup<'_>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let resources =
            parent.group_resources.get().ok_or_else(|| closed_region_error(group.name))?;
        let addresses: Vec<_> = group.members.iter().map(|&rank| (rank, "")).collect();
        let (job, listeners) = (group.job, Listeners::default());
        let mut bootstrap = parent.subgroup((job, 0), &addresses, listeners, group.timeout);
        let me = bootstrap.rank;
        let mut controls = ControlChannels::subgroup(&resources.channels, me, group.members, job);
        let opened = group.open(parent, resources, &mut bootstrap, &controls);
        let (planner, links, messages, detector, file) = opened.inspect_err(|error| {
            // The others may have the subgroup by now, and wait for this rank in its first call.
            let reason = FailureReason::of_own(error);
            controls.announce_failure(FailureCause { culprit: me, reason }, true);
        })?;
        let launched = bootstrap.launched();
        let mut peers = Peers::new(links);
        peers.set_control_channels(controls);
        peers.set_local_sources(detector, launched);
        let mut comm = Self::over_links(bootstrap, planner, (peers, messages), recorder)?;
        let engine = comm.engine_on_this_thread(group.name)?.0;
        let host = HostRanks::of(me, engine.planner.ring());
        engine.use_host_region(host, file, false);
        engine.group_failure = GroupFailure::of(group.failures, group.members);
        let mut comm = comm.with_preferences(group.preferences);
        comm.share_with_groups()?;
        Ok(comm)
    }
}

impl HostGroup<'_> {
    /// Opens the links of this rank.
    fn open(
        &self,
        parent: &Bootstrap,
        resources: &GroupResources,
        bootstrap: &mut Bootstrap,
        controls: &ControlChannels,
    ) -> Result<(Planner, LinkSet, MessageLinks, LocalDetector, HostFile)> {
        let (me, size, members) = (bootstrap.rank, self.members.len(), self.members);
        let planner = bootstrap.planner()?;
        let memory = GroupMemory::of(size);
        let in_region = memory.link_bytes + memory.status_bytes;
        let (pages, old) = (Arc::clone(&resources.pages), Box::<[usize]>::from(members));
        let has_ended = Box::new(move |rank: usize| pages.has_ended(old[rank]));
        let file = resources.file.subgroup((me, size), in_region, self.memory, has_ended)?;
        let entries = (file.region(), HostFile::link_words_at(size) + memory.link_bytes);
        let ranks = (me, members);
        let detector = LocalDetector::subgroup(&resources.pages, ranks, entries, self.call)?;
        let bell = |rank: usize| parent.bells.get(&members[rank]).cloned();
        bootstrap.bells = (0..size).filter_map(|rank| Some((rank, bell(rank)?))).collect();
        let own = bell(me).ok_or_else(missing_link_error)?;
        let slots = message_slots(false, size);
        let mut messages = MessageLinks::new(planner.ring(), slots, own);
        let mut links = LinkSet::new(size);
        for peer in planner.peers().into_iter().map(|peer| peer as usize) {
            let liveness = controls.channels().stream(peer).ok_or_else(missing_link_error)?;
            let fifos = |from: usize, to: usize, bell: Arc<Bell>| {
                let calls = planner.slots(from as u32, to as u32);
                [FifoShape(calls, None), FifoShape(slots, Some(bell))]
            };
            let bell = || bell(peer).ok_or_else(missing_link_error);
            let to = memory.pair(&file, planner.ring(), (me, peer));
            let [of_calls, of_messages] = shm::senders_in(fifos(me, peer, bell()?), &to, &liveness);
            links.add_tx(peer, of_calls);
            messages.links.add_tx(peer, of_messages);
            let from = memory.pair(&file, planner.ring(), (peer, me));
            let [of_calls, of_messages] =
                shm::receivers_in(fifos(peer, me, bell()?), &from, &liveness);
            links.add_rx(peer, of_calls);
            messages.links.add_rx(peer, of_messages);
        }
        Ok((planner, links, messages, detector, file))
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupMemory, reserved_len};

    /// The groups of a host's ranks lie one after the other in what one rank has reserved.
    #[test]
    fn all_ways_to_split_a_host_fit_into_the_reserved_memory() {
        const MOST: usize = 64;
        // A single rank needs no memory.
        let mut longest = vec![0; MOST + 1];
        for size in 2..=MOST {
            let with_group = |ranks: usize| GroupMemory::of(ranks).len + longest[size - ranks];
            longest[size] = (2..=size).map(with_group).max().unwrap().max(longest[size - 1]);
            assert!(longest[size] <= reserved_len(size).get(), "{size} ranks");
        }
    }
}
