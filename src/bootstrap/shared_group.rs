//! Subgroups that share their parent's connections, bells and process pages, and have their memory
//! in the files of their hosts' regions. On one host such a subgroup needs no descriptor, no thread
//! and no exchange of its own; over several hosts its links over TCP come by the parent's port.
//! Law: the members have agreed on their ranks, their number and their memory before any makes it.

pub(crate) mod memory;

use std::sync::Arc;
use std::time::Duration;

use memory::GroupMemory;

use super::Bootstrap;
use super::share_memory::HostRanks;
use super::subgroup::Listeners;
use super::topology::LinkKind;
use crate::api::{Communicator, Origin};
use crate::engine::group_failure::GroupFailure;
use crate::engine::settings::Preferences;
use crate::error::cause::{FailureCause, FailureReason};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::health::control_channel::{Channels, ControlChannels, ParentNames};
use crate::health::local_detector::{HostPages, LocalDetector};
use crate::memory::{FileRange, HostFile};
use crate::messages::MessageLinks;
use crate::plan::{Planner, message_slots};
use crate::trace::Recorder;
use crate::transport::LinkSet;
use crate::transport::shm::{self, FifoShape};

/// The error of a rank whose communicator has no resources for subgroups.
pub(super) fn closed_region_error(name: &'static str) -> Error {
    Error::io(name, std::io::Error::other("the host's region is closed"))
}

const NO_LINK: &str = "a rank of this host is not linked";
const LACKS_MEMORY: &str = "the ranks of this host have no memory for it";

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
        self.file.as_deref().ok_or_else(|| missing(LACKS_MEMORY))
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
    /// The memberships after the parent's; 0 for a part of it.
    pub(super) epochs_later: u32,
    pub(super) timeout: Duration,
    pub(super) preferences: Preferences,
    /// The failures that the parent's subgroups report; `None` where the parent has ended.
    pub(super) failures: Option<&'a Arc<GroupFailure>>,
}

impl Communicator {
    /// Shares the resources of this communicator with its subgroups: `file` has their memory, if
    /// several ranks are on this host.
    pub(super) fn share_with_groups(&mut self, file: Option<Arc<HostFile>>) -> Result<()> {
        let origin = Arc::clone(&self.origin);
        let Origin::Processes(bootstrap) = &*origin else { return Ok(()) };
        let (engine, _) = self.engine_on_this_thread("build")?;
        // A thousand ranks have no use for what no subgroup of theirs can share.
        if bootstrap.shares_connections() {
            let file = file.filter(|_| bootstrap.has_group_memory());
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

    /// Makes the communicator of the `members` that go on from this one, whose bootstrap is
    /// `parent`, over its connections. `start` is the offset of their memory on this host, as
    /// [`Bootstrap::reserve_for_group`] has given it to the lowest of them.
    pub(crate) fn of_survivors(
        &self,
        name: &'static str,
        parent: &Bootstrap,
        (job, epochs_later): (u64, u32),
        (members, start): (&[usize], u64),
    ) -> Result<Self> {
        let group = SharedGroup {
            name,
            job,
            members,
            memory: parent.memory_at(start, members),
            call: None,
            epochs_later,
            timeout: self.settings.timeout,
            preferences: self.settings.preferences,
            failures: None,
        };
        Self::of_shared_group(parent, group, self.rank_info.record.recorder())
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
        let mut bootstrap =
            parent.subgroup((job, group.epochs_later), &members, none, group.timeout);
        bootstrap.port.clone_from(&parent.port);
        bootstrap.inherits_files = parent.has_group_memory();
        let me = bootstrap.rank;
        // Subgroups of a parent that has ended tell it nothing, and do not keep its memory.
        let names = group.failures.map(|_| &resources.names);
        let made_of = (&resources.channels, names);
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
        if let Some(file) = file.as_ref().filter(|_| shares_regions) {
            let host = HostRanks::of(me, engine.planner.ring());
            engine.use_host_region(host, Arc::clone(file), false);
        }
        if let Some(failures) = group.failures {
            engine.group_failure = GroupFailure::of(failures, group.members);
        }
        let mut comm = comm.with_preferences(group.preferences);
        comm.share_with_groups(file)?;
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
    file: Option<Arc<HostFile>>,
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
            let file = file.as_ref().ok_or_else(|| missing(LACKS_MEMORY))?;
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
        Ok(Opened { planner, links, messages, detector, file: file.map(Arc::new) })
    }

    /// Maps the memory of the ranks on this host.
    fn open_file(
        &self,
        resources: &GroupResources,
        (layout, memory): (&GroupMemory, FileRange),
        (me, host): (usize, &[usize]),
        members: &[usize],
    ) -> Result<HostFile> {
        let has_ended = Box::new(resources.pages.watch(host.iter().map(|&rank| members[rank])));
        let place = host.partition_point(|&rank| rank < me);
        let in_region = layout.link_bytes + layout.status_bytes;
        resources.file()?.subgroup((place, host.len()), in_region, memory, has_ended)
    }
}
