//! Subgroups that share their parent's connections, bells and process pages, and have their memory
//! in the files of their hosts' regions. On one host such a subgroup needs no descriptor, no thread
//! and no exchange of its own; over several hosts its links over TCP come by the parent's port.
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
use super::topology::LinkKind;
use crate::api::{Communicator, Origin};
use crate::config::Transport;
use crate::engine::group_failure::GroupFailure;
use crate::engine::settings::Preferences;
use crate::error::cause::{FailureCause, FailureReason};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::health::control_channel::{Channels, ControlChannels, ParentNames};
use crate::health::local_detector::{HostPages, LocalDetector};
use crate::memory::{FileRange, HostFile, HostRegion, page_size};
use crate::messages::MessageLinks;
use crate::plan::{Distance, Planner, Slots, message_slots};
use crate::trace::Recorder;
use crate::transport::shm::{self, FifoShape};
use crate::transport::{FifoMemory, LinkSet, WORDS_ALIGN, slots_len, words_len};

/// FIFOs from one rank to another: of calls, and of messages.
const FIFOS: usize = 2;

/// The layout of a subgroup's memory on one host, in bytes: first its region, in which the status
/// entries of its ranks there and then the words of all FIFOs are, then the slots of the FIFOs to
/// the next ranks of the ring, and of all others. So what a subgroup needs before its first call
/// lies together.
#[derive(Clone, Copy, Debug)]
struct GroupMemory {
    /// Ranks of the subgroup on the host.
    ranks: usize,
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
    /// The layout for so many ranks of a subgroup of `size` ranks, of a job whose hosts are or are
    /// not a wide-area network apart.
    fn of(ranks: usize, size: usize, is_wide_area: bool) -> Self {
        let pages = |bytes: usize| bytes.next_multiple_of(page_size());
        let needs_tcp = size > ranks;
        // Connections are shared where each pair of ranks has one.
        let Slots { ring, other } = Slots::of(Distance::of(needs_tcp, is_wide_area), size, true);
        let messages = message_slots(needs_tcp, size);
        let [ring_bytes, other_bytes] = [ring, other].map(|calls| slots_len(&[calls, messages]));
        let link_bytes = ranks * ranks * words_len(FIFOS);
        let status_bytes = LocalDetector::entry_bytes(ranks).get().next_multiple_of(WORDS_ALIGN);
        let slots = pages(HostRegion::len(ranks, link_bytes + status_bytes).get());
        let len = pages(slots + ranks * ring_bytes + ranks * ranks * other_bytes);
        Self { ranks, link_bytes, status_bytes, slots, ring_bytes, other_bytes, len }
    }

    /// The memory of the FIFOs from one rank to another, by their places on the host. `is_ring` if
    /// the ring leads from the one to the other.
    fn pair(&self, file: &HostFile, (from, to): (usize, usize), is_ring: bool) -> FifoMemory {
        let number = from * self.ranks + to;
        let slots = match is_ring {
            true => from * self.ring_bytes,
            false => self.ranks * self.ring_bytes + number * self.other_bytes,
        };
        FifoMemory {
            region: Arc::clone(file.region()),
            words: HostFile::link_words_at(self.ranks)
                + self.status_bytes
                + number * words_len(FIFOS),
            slots: self.slots + slots,
        }
    }
}

/// Bytes to reserve for the subgroups of `ranks` ranks of a host, however they are split: for each
/// rank as much as the ranks of the group that needs most. `over_hosts` if other hosts may have
/// ranks of them.
fn reserved_len(ranks: usize, over_hosts: bool, is_wide_area: bool) -> NonZeroUsize {
    let of_rank =
        |size: usize, all: usize| GroupMemory::of(size, all, is_wide_area).len.div_ceil(size);
    // The slots of messages are the longest if just one rank is on another host.
    let of_both = |size| of_rank(size, size).max(of_rank(size, size + usize::from(over_hosts)));
    let most = (2..=ranks).map(of_both).max().unwrap_or(0);
    let len = (ranks * most).next_multiple_of(page_size());
    NonZeroUsize::MIN.saturating_add(len.saturating_sub(1))
}

impl Bootstrap {
    /// Bytes of the memory of a group of `size` ranks on a host with `ranks` of them.
    pub(super) fn group_len(&self, ranks: usize, size: usize) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(GroupMemory::of(ranks, size, self.is_wide_area).len - 1)
    }

    /// Bytes to reserve for all subgroups of this rank's host, however they are split.
    pub(super) fn reserved_len(&self) -> NonZeroUsize {
        reserved_len(self.local_size(), !self.is_one_host(), self.is_wide_area)
    }

    /// True if the ranks of each host have a file with memory for subgroups.
    pub(super) fn has_group_memory(&self) -> bool {
        self.shares_regions() && self.shares_connections()
    }

    /// True if all subgroups use this communicator's connections: each pair of ranks has one, and
    /// those of a host that link in memory have a file for it.
    pub(super) fn shares_connections(&self) -> bool {
        let links_in_memory =
            self.config.transport != Transport::Tcp && self.hosts.iter().any(|host| host.len() > 1);
        self.size() <= self.config.all_pairs && (!links_in_memory || self.shares_regions())
    }

    /// The memory of the subgroup of this colour for its ranks on this rank's host, which the
    /// lowest rank of the host has reserved; `None` if it needs none.
    ///
    /// # Errors
    /// If that rank has reserved none.
    pub(super) fn group_memory(
        &self,
        requests: &[SplitRequest],
        color: u32,
    ) -> Result<Option<FileRange>> {
        if !self.has_group_memory() {
            return Ok(None);
        }
        let host = self.host_of(self.rank);
        // Of each group the ranks on this host, and all.
        let mut groups: BTreeMap<u32, [usize; 2]> = BTreeMap::new();
        for (rank, request) in requests.iter().enumerate() {
            if let Some(color) = request.color() {
                let [here, all] = groups.entry(color).or_default();
                *all += 1;
                *here += usize::from(host.contains(&rank));
            }
        }
        let memory = host.first().and_then(|&first| requests[first].memory);
        let mut start = memory.ok_or_else(|| missing(NO_MEMORY))?;
        for (other, [here, all]) in groups {
            let len = if here > 1 { self.group_len(here, all).get() as u64 } else { 0 };
            if other == color {
                return Ok((len > 0).then_some(FileRange { start, len }));
            }
            start = start.checked_add(len).ok_or_else(|| missing(NO_MEMORY))?;
        }
        Ok(None)
    }
}

/// The error of a rank whose communicator has no resources for subgroups.
pub(super) fn closed_region_error(name: &'static str) -> Error {
    Error::io(name, std::io::Error::other("the host's region is closed"))
}

const NO_LINK: &str = "a rank of this host is not linked";
const NO_MEMORY: &str = "the ranks of this host have no memory for it";

/// The error of a rank whose parent lacks something for subgroups.
fn missing(reason: &'static str) -> Error {
    Error::io("making a subgroup", std::io::Error::other(reason))
}

/// The resources of a communicator that its subgroups share, for any thread.
#[derive(Debug)]
pub(super) struct GroupResources {
    pub(super) channels: Channels,
    names: ParentNames,
    pages: Arc<HostPages>,
    /// The file with the memory of subgroups, if the ranks of a host have one.
    file: Option<Arc<HostFile>>,
}

impl GroupResources {
    /// The file with the memory of subgroups; an error if the ranks of this host have none.
    pub(super) fn file(&self) -> Result<&HostFile> {
        self.file.as_deref().ok_or_else(|| missing(NO_MEMORY))
    }
}

/// A subgroup that is being made.
pub(super) struct SharedGroup<'a> {
    /// The name of the call in errors.
    pub(super) name: &'static str,
    pub(super) job: u64,
    /// The ranks that its ranks have in the parent.
    pub(super) members: &'a [usize],
    /// Its memory on this host.
    pub(super) memory: Option<FileRange>,
    /// The number of the parent's call that makes it; `None` if its members make it alone.
    pub(super) call: Option<u64>,
    pub(super) timeout: Duration,
    pub(super) preferences: Preferences,
    /// The failures that the parent's subgroups report.
    pub(super) failures: &'a Arc<GroupFailure>,
}

impl Communicator {
    /// Shares the resources of this communicator with its subgroups.
    pub(super) fn share_with_groups(&mut self) -> Result<()> {
        let origin = Arc::clone(&self.origin);
        let Origin::Processes(bootstrap) = &*origin else { return Ok(()) };
        let (engine, _) = self.engine_on_this_thread("build")?;
        // A thousand ranks have no use for what no subgroup of theirs can share.
        if bootstrap.shares_connections() {
            let file = engine.registry.file().filter(|_| bootstrap.has_group_memory());
            let file = file.map(Arc::clone);
            let channels = engine.peers.control_channels().channels().clone();
            let pages = Arc::new(engine.peers.local_detector().pages());
            let info = &engine.rank_info;
            let names =
                ParentNames { peers: Arc::clone(&info.peers), name: Arc::clone(&info.name) };
            // A communicator shares its resources once, when it is made.
            let _ = bootstrap.group_resources.set(GroupResources { channels, names, pages, file });
        }
        Ok(())
    }

    /// Makes a subgroup of the communicator whose bootstrap is `parent`.
    pub(super) fn of_shared_group(
        parent: &Bootstrap,
        group: SharedGroup<'_>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let resources =
            parent.group_resources.get().ok_or_else(|| closed_region_error(group.name))?;
        let job = group.job;
        let members: Vec<_> = group.members.iter().map(|&rank| (rank, "")).collect();
        let none = Listeners::default();
        let mut bootstrap = parent.subgroup((job, 0), &members, none, group.timeout);
        bootstrap.port.clone_from(&parent.port);
        let me = bootstrap.rank;
        let made_of = (&resources.channels, &resources.names);
        let mut controls = ControlChannels::subgroup(made_of, (me, group.members), group.call, job);
        let opened = group.open((parent, resources), &mut bootstrap, &controls);
        let Opened { planner, links, messages, detector, file } = opened.inspect_err(|error| {
            // The others may have the subgroup by now, and wait for this rank in its first call.
            let reason = FailureReason::of_own(error);
            controls.announce_failure(FailureCause { culprit: me, reason }, true, None);
        })?;
        let launched = bootstrap.launched();
        let mut peers = Peers::new(links);
        peers.set_control_channels(controls);
        peers.set_local_sources(detector, launched);
        let shares_regions = bootstrap.shares_regions();
        let mut comm = Self::over_links(bootstrap, planner, (peers, messages), recorder)?;
        let engine = comm.engine_on_this_thread(group.name)?.0;
        if let Some(file) = file.filter(|_| shares_regions) {
            engine.use_host_region(HostRanks::of(me, engine.planner.ring()), file, false);
        }
        engine.group_failure = GroupFailure::of(group.failures, group.members);
        let mut comm = comm.with_preferences(group.preferences);
        comm.share_with_groups()?;
        Ok(comm)
    }
}

/// The parts of a subgroup's communicator.
struct Opened {
    planner: Planner,
    links: LinkSet,
    messages: MessageLinks,
    detector: LocalDetector,
    /// The file with its region, if this rank's host has several of its ranks.
    file: Option<HostFile>,
}

impl SharedGroup<'_> {
    /// Opens the links of this rank.
    fn open(
        &self,
        (parent, resources): (&Bootstrap, &GroupResources),
        bootstrap: &mut Bootstrap,
        controls: &ControlChannels,
    ) -> Result<Opened> {
        let members = self.members;
        let (me, size) = (bootstrap.rank, members.len());
        let planner = bootstrap.planner()?;
        let host = bootstrap.host_of(me).to_vec();
        let layout = GroupMemory::of(host.len(), size, parent.is_wide_area);
        let open_file = |memory| self.open_file(resources, (&layout, memory), (me, &host), members);
        let file = self.memory.map(open_file).transpose()?;
        let entries = match &file {
            Some(file) => (Arc::clone(file.region()), HostFile::link_words_at(host.len())),
            None => (LocalDetector::private_memory(host.len())?, 0),
        };
        let (ranks, entries) = ((me, members, &host[..]), (&entries.0, entries.1));
        let detector = LocalDetector::subgroup(&resources.pages, ranks, entries, self.call)?;
        let bell = |rank: usize| parent.bells.get(&members[rank]).cloned();
        bootstrap.bells = (0..size).filter_map(|rank| Some((rank, bell(rank)?))).collect();
        let own = bell(me).ok_or_else(|| missing(NO_LINK))?;
        let slots = message_slots(bootstrap.needs_tcp(), size);
        let mut messages = MessageLinks::new(planner.ring(), slots, own);
        let mut links = LinkSet::new(size);
        let peers = planner.peers().into_iter().map(|peer| peer as usize);
        let (near, far): (Vec<_>, Vec<_>) =
            peers.partition(|&peer| bootstrap.link_kind(me, peer) == LinkKind::Shm);
        let place = |rank: usize| host.partition_point(|&other| other < rank);
        for peer in near {
            let file = file.as_ref().ok_or_else(|| missing(NO_MEMORY))?;
            let liveness = controls.channels().stream(peer).ok_or_else(|| missing(NO_LINK))?;
            let bell = bell(peer).ok_or_else(|| missing(NO_LINK))?;
            let memory = |from: usize, to: usize| {
                let is_ring = planner.ring().after(from as u32, 1) as usize == to;
                layout.pair(file, (place(from), place(to)), is_ring)
            };
            let fifos = |from: usize, to: usize| {
                let calls = planner.slots(from as u32, to as u32);
                [FifoShape(calls, None), FifoShape(slots, Some(Arc::clone(&bell)))]
            };
            let [of_calls, of_messages] =
                shm::senders_in(fifos(me, peer), &memory(me, peer), &liveness);
            links.add_tx(peer, of_calls);
            messages.links.add_tx(peer, of_messages);
            let [of_calls, of_messages] =
                shm::receivers_in(fifos(peer, me), &memory(peer, me), &liveness);
            links.add_rx(peer, of_calls);
            messages.links.add_rx(peer, of_messages);
        }
        let far = (&far[..], controls.channels());
        bootstrap.add_far_links(&planner, far, (&mut links, &mut messages))?;
        Ok(Opened { planner, links, messages, detector, file })
    }

    /// Maps the memory of the ranks on this host.
    fn open_file(
        &self,
        resources: &GroupResources,
        (layout, memory): (&GroupMemory, FileRange),
        (me, host): (usize, &[usize]),
        members: &[usize],
    ) -> Result<HostFile> {
        let pages = Arc::clone(&resources.pages);
        let old: Box<[usize]> = host.iter().map(|&rank| members[rank]).collect();
        let has_ended = Box::new(move |place: usize| pages.has_ended(old[place]));
        let place = host.partition_point(|&rank| rank < me);
        let in_region = layout.link_bytes + layout.status_bytes;
        resources.file()?.subgroup((place, host.len()), in_region, memory, has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupMemory, reserved_len};

    /// The groups of a host's ranks lie one after the other in what one rank has reserved.
    #[test]
    fn all_ways_to_split_a_host_fit_into_the_reserved_memory() {
        const MOST: usize = 64;
        for (over_hosts, is_wide) in [(false, false), (true, false), (true, true)] {
            // A single rank needs no memory.
            let mut longest = vec![0; MOST + 1];
            for size in 2..=MOST {
                let with_group = |ranks: usize| {
                    let all = if over_hosts { ranks..=2 * MOST } else { ranks..=ranks };
                    let len =
                        all.map(|all| GroupMemory::of(ranks, all, is_wide).len).max().unwrap();
                    len + longest[size - ranks]
                };
                longest[size] = (2..=size).map(with_group).max().unwrap().max(longest[size - 1]);
                let reserved = reserved_len(size, over_hosts, is_wide).get();
                assert!(longest[size] <= reserved, "{size} ranks");
            }
        }
    }
}
