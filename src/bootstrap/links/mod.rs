//! Communicators of ranks that are processes: bootstrap, then one link per pair of ranks that a
//! plan may use, with control channel and failure detector. Links over TCP connect at their first
//! use.

mod arrivals;
mod connect;
mod distance;
mod late_peers;
mod port;
mod port_peer;
#[cfg(test)]
mod resume_tests;
mod streams;
#[cfg(test)]
mod tests;
mod unlinked;
mod ways;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::PollFlags;

pub use connect::ControlStream;
pub(super) use port::LinkPort;
use port_peer::{PortPeer, StreamSettings};
use streams::{CallReceiver, CallSender, FarRank, message_ends};
use unlinked::{UnlinkedPeers, UnlinkedRanks};
use ways::Way;

use super::auth::listener::EarlyStream;
use super::socket::wait_unless;
use super::topology::LinkKind;
use super::{Bootstrap, rendezvous};
use crate::api::{Communicator, Origin};
use crate::config::{Config, deadline_after};
use crate::engine::settings::Preferences;
use crate::engine::{Engine, RankInfo, SpeedsAreIn};
use crate::error::{Error, Peer, Result};
use crate::health::Peers;
use crate::health::control_channel::{Channels, ControlChannels};
use crate::health::local_detector::{LocalDetector, StatusFds};
use crate::messages::{MessageEngine, MessageLinks};
use crate::partition::SlotShape;
use crate::plan::{Distance, Planner, Slots, least_chunk, message_slots};
use crate::schedule::Ring;
use crate::sync::{Backoff, Instant, Process, WaitNotice};
use crate::trace::{Recorder, launcher_record};
use crate::transport::shm::FifoShape;
use crate::transport::tcp::{self, StreamCount, is_far};
use crate::transport::{Bell, LinkPeer, LinkSet, LivenessStream, shm};

impl Communicator {
    pub(crate) fn open_processes(config: &Config) -> Result<Self> {
        let recorder = launcher_record::open_recorder(config)?;
        if config.is_joiner {
            return Self::join_running_job(config, &recorder);
        }
        Self::from_bootstrap(rendezvous(config)?, &recorder)?.confirm_joined()
    }

    /// Opens all links of a bootstrap and makes the communicator.
    pub(crate) fn from_bootstrap(
        mut bootstrap: Bootstrap,
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let deadline = deadline_after(bootstrap.config.timeout);
        let mut planner = bootstrap.planner()?;
        let connected = connect(&mut bootstrap, &mut planner, recorder, deadline);
        let links = connected.map_err(|error| bootstrap.report_failure(error))?;
        let shares_regions = bootstrap.shares_regions();
        let mut comm = Self::over_links(bootstrap, planner, links, recorder)?;
        let shared = if shares_regions { comm.share_host_region("build") } else { Ok(()) };
        // The reference is the only one: no other part of the program has the communicator yet.
        match Arc::get_mut(&mut comm.origin) {
            Some(Origin::Processes(bootstrap)) => {
                let linked = shared.and_then(|()| bootstrap.await_links());
                linked.map_err(|error| bootstrap.report_failure(error))?;
                bootstrap.close_listeners();
            }
            _ => shared?,
        }
        let file = comm.engine_on_this_thread("build")?.0.registry.file().map(Arc::clone);
        comm.share_with_groups(file)?;
        Ok(comm)
    }

    /// The communicator of a bootstrap whose links are open.
    pub(super) fn over_links(
        bootstrap: Bootstrap,
        planner: Planner,
        (mut peer_table, messages): (Peers, MessageLinks),
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let are_due = |peer| planner.shares_heartbeats(peer as u32);
        peer_table.control_channels().limit_heartbeats(are_due);
        let (timeout, rank) = (bootstrap.config.timeout, bootstrap.rank);
        let preferences = Preferences::from(&bootstrap.config);
        let backoff = Backoff::for_ranks(bootstrap.ranks_on_host, bootstrap.cpus_on_host);
        let abort = Arc::clone(&bootstrap.abort_flag);
        let peers: Arc<[Peer]> = bootstrap.peers.iter().map(|info| info.peer()).collect();
        let transports = peer_table.links.transports();
        let own_address = bootstrap.peers[rank].tcp.ips().next();
        let speeds = SpeedsAreIn::Folder(bootstrap.config.cache.clone(), own_address);
        let name = Arc::default();
        let shares_memory = bootstrap.shares_regions() && !bootstrap.needs_tcp();
        let rank_info = Arc::new(RankInfo {
            rank,
            local_rank: bootstrap.local_rank(),
            local_size: bootstrap.local_size(),
            peers: Arc::clone(&peers),
            transports,
            streams_per_link: if shares_memory { 1 } else { bootstrap.config.tcp_sockets },
            shares_memory,
            registrations: Arc::default(),
            messages: MessageEngine::new(
                messages,
                (rank, Arc::clone(&peers)),
                &name,
                backoff.clone(),
                &abort,
            ),
            record: recorder.communicator(bootstrap.job, rank, peers, Arc::clone(&name)),
            name,
            process: Process::default(),
            speeds,
        });
        let engine = Engine::new(rank_info, planner, peer_table, backoff, abort);
        let origin = Origin::Processes(Box::new(bootstrap));
        Ok(Self::new(origin, engine, timeout).with_preferences(preferences))
    }
}

impl Bootstrap {
    /// The planner of this rank.
    ///
    /// # Errors
    /// If the ranks of hosts overlap.
    pub(super) fn planner(&self) -> Result<Planner> {
        let ring = Ring::through(&self.ring_order()).ok_or_else(|| {
            Error::io("ordering the ring", std::io::Error::other("the hosts' ranks overlap"))
        })?;
        let ring = ring.with_all_pairs(self.config.all_pairs as u32);
        let distance = Distance::of(self.needs_tcp(), self.is_wide_area);
        let slots = Slots::of(distance, self.size(), ring.all_pairs());
        let min_chunk = least_chunk(self.needs_tcp(), self.ranks_per_cpu);
        Ok(Planner::new(ring, self.rank as u32, slots, min_chunk))
    }
}

/// Connects this rank to every peer of the planner's plans.
fn connect(
    bootstrap: &mut Bootstrap,
    planner: &mut Planner,
    recorder: &Arc<Recorder>,
    deadline: Instant,
) -> Result<(Peers, MessageLinks)> {
    let (me, size) = (bootstrap.rank, bootstrap.size());
    let slots = message_slots(bootstrap.needs_tcp(), size);
    let bell = Arc::new(Bell::new()?);
    bootstrap.bells.insert(me, Arc::clone(&bell));
    let mut messages = MessageLinks::new(planner.ring(), slots, Arc::clone(&bell));
    if size == 1 {
        return Ok((Peers::new(LinkSet::new(size)), messages));
    }
    let peers: Vec<_> = planner.peers().into_iter().map(|peer| peer as usize).collect();
    let (key, limit) = (bootstrap.job, bootstrap.config.peer_timeout);
    let mut controls = ControlChannels::new((me, size), key, limit);
    // Status entry and control channel exist before any other rank can connect. If this rank ends
    // soon after, the other ranks read there that it has voted for nothing.
    let (mut local_detector, fds) = LocalDetector::new(me, size)?;
    let launched = bootstrap.launched();
    let (connections, early) = bootstrap.connect_controls(&peers)?;
    let was_wide_area = bootstrap.is_wide_area;
    bootstrap.learn_distance(&connections, deadline)?;
    if bootstrap.is_wide_area != was_wide_area {
        *planner = bootstrap.planner()?;
    }
    // To a peer of this host the control channel is a Unix stream that passes descriptors first,
    // and links share it.
    let mut near: BTreeMap<usize, LivenessStream> = BTreeMap::new();
    let mut far = BTreeMap::new();
    for ControlStream { peer, socket, keys } in connections {
        let (aead, secret) = keys.map(|keys| (keys.aead, keys.links)).unzip();
        let is_far = bootstrap.is_elsewhere(peer) && is_far(&socket);
        let host = bootstrap.host_of(peer).first().map_or(peer, |&lowest| lowest);
        let stream = controls.add((peer, host), (socket, aead))?;
        if bootstrap.link_kind(me, peer) == LinkKind::Shm {
            near.insert(peer, stream);
            continue;
        }
        let addresses = bootstrap.link_addresses(peer);
        let Some(secret) = secret.filter(|_| !addresses.is_empty()) else {
            let peer = bootstrap.peers[peer].peer().to_string();
            return Err(Error::Handshake { peer, reason: "it gave no address".into() });
        };
        let name = bootstrap.peers[peer].peer();
        far.insert(peer as u32, PortPeer::new(name, addresses, (secret, is_far)));
    }
    exchange_descriptors(bootstrap, &near, (&fds, &mut local_detector), deadline)?;
    let mut links = LinkSet::new(size);
    bootstrap.add_near_links(planner, &near, deadline, (&mut links, &mut messages))?;
    let others: Vec<_> = far.keys().map(|&peer| peer as usize).collect();
    bootstrap.open_port(bell, far, early, recorder)?;
    if let Some(port) = &bootstrap.port {
        for &peer in others.iter().filter(|&&peer| bootstrap.is_elsewhere(peer)) {
            if let Some(way) = Way::of_control(port, peer as u32) {
                controls.channels().set_way(peer, Box::new(way));
            }
        }
    }
    if let Some(unlinked) = UnlinkedRanks::of(bootstrap) {
        controls.set_unlinked(Arc::new(unlinked));
    }
    bootstrap.add_far_links(
        planner,
        (&others, controls.channels()),
        (&mut links, &mut messages),
    )?;
    let mut peers = Peers::new(links);
    peers.set_control_channels(controls);
    peers.set_local_sources(local_detector, launched);
    Ok((peers, messages))
}

/// The FIFOs of calls and of messages from one rank to another of its host.
fn fifos(
    planner: &Planner,
    messages: SlotShape,
    bell: &Arc<Bell>,
    (from, to): (usize, usize),
) -> [FifoShape; 2] {
    let calls = planner.slots(from as u32, to as u32);
    [FifoShape(calls, None), FifoShape(messages, Some(Arc::clone(bell)))]
}

/// Exchanges entries and bells with the ranks of this host that these streams lead to. A rank
/// sends its own descriptors to all peers before it waits for theirs. So it does with the memory of
/// links afterwards: the links on which it sends come before those on which it receives.
fn exchange_descriptors(
    bootstrap: &mut Bootstrap,
    streams: &BTreeMap<usize, LivenessStream>,
    (fds, local_detector): (&StatusFds, &mut LocalDetector),
    deadline: Instant,
) -> Result<()> {
    let name = |bootstrap: &Bootstrap, peer: usize| bootstrap.peers[peer].peer().to_string();
    for (&peer, stream) in streams {
        let name = name(bootstrap, peer);
        fds.pass(stream, &name)?;
        bootstrap.bells[&bootstrap.rank].pass(stream, &name)?;
    }
    for (&peer, stream) in streams {
        let name = name(bootstrap, peer);
        let until = || readable_until(stream, deadline, &bootstrap.abort_flag, &name);
        local_detector.receive(peer, stream, &name, until())?;
        let bell = Bell::receive(stream, &name, until())?;
        bootstrap.bells.insert(peer, Arc::new(bell));
    }
    Ok(())
}

impl Bootstrap {
    /// Keeps the listeners open as the port of links to these ranks, by which subgroups come too;
    /// `early` streams have come already.
    fn open_port(
        &mut self,
        bell: Arc<Bell>,
        peers: BTreeMap<u32, PortPeer>,
        early: Vec<EarlyStream>,
        recorder: &Arc<Recorder>,
    ) -> Result<()> {
        let (listeners, unlinked) = (mem::take(&mut self.tcp), UnlinkedPeers::of(self));
        if listeners.is_empty() || peers.is_empty() && unlinked.is_none() {
            return Ok(());
        }
        let settings = StreamSettings {
            encrypt: self.config.encrypt,
            streams: self.config.tcp_sockets,
            congestion: self.config.tcp_congestion.clone(),
            peer_timeout: self.config.peer_timeout,
            recorder: Some(Arc::clone(recorder)),
        };
        let port = LinkPort::new(self.rank, listeners, bell, (peers, unlinked), settings)?;
        early.into_iter().for_each(|stream| port.take_over(stream));
        self.port = Some(Arc::new(port));
        Ok(())
    }

    /// Opens the links to and from the ranks of this host, whose memory these streams pass.
    fn add_near_links(
        &self,
        planner: &Planner,
        near: &BTreeMap<usize, LivenessStream>,
        deadline: Instant,
        (links, messages): (&mut LinkSet, &mut MessageLinks),
    ) -> Result<()> {
        let me = self.rank;
        for (&peer, liveness) in near {
            let name = &self.peers[peer].peer().to_string();
            let to_peer = LinkPeer { liveness, name };
            let bell = &self.bells[&peer];
            let [of_calls, of_messages] =
                shm::senders(fifos(planner, messages.slots, bell, (me, peer)), to_peer)?;
            links.add_tx(peer, of_calls);
            messages.links.add_tx(peer, of_messages);
        }
        for (&peer, liveness) in near {
            let name = &self.peers[peer].peer().to_string();
            let to_peer = LinkPeer { liveness, name };
            let bell = &self.bells[&peer];
            let until = readable_until(liveness, deadline, &self.abort_flag, name);
            let [of_calls, of_messages] =
                shm::receivers(fifos(planner, messages.slots, bell, (peer, me)), to_peer, until)?;
            links.add_rx(peer, of_calls);
            messages.links.add_rx(peer, of_messages);
        }
        Ok(())
    }

    /// True if the process of this rank is on another host.
    pub(super) fn is_elsewhere(&self, peer: usize) -> bool {
        self.peers[peer].identity != self.peers[self.rank].identity
    }

    /// Adds the links to and from these ranks over TCP. Nothing is connected yet.
    ///
    /// # Errors
    /// If a rank has no connection.
    pub(super) fn add_far_links(
        &self,
        planner: &Planner,
        (peers, channels): (&[usize], &Channels),
        (links, messages): (&mut LinkSet, &mut MessageLinks),
    ) -> Result<()> {
        let unreachable =
            || Error::io("opening links", std::io::Error::other("a rank has no connection"));
        if peers.is_empty() {
            return Ok(());
        }
        let port = self.port.as_ref().ok_or_else(unreachable)?;
        let channels = &Arc::new(channels.clone());
        let streams = self.config.tcp_sockets;
        let count = StreamCount { streams, is_sealed: port.encrypts() };
        let slots = |from: usize, to: usize| planner.slots(from as u32, to as u32);
        for &peer in peers {
            let is_elsewhere = self.is_elsewhere(peer);
            let far = FarRank::new(port, channels, peer).ok_or_else(unreachable)?;
            let far = far.on_another_host(is_elsewhere);
            let (out, back) = (slots(self.rank, peer), slots(peer, self.rank));
            let checks = self.has_checksums(self.rank, peer);
            let tx = tcp::Tx::new(Box::new(CallSender(far.clone())), count, out)?;
            links.add_tx(peer, Box::new(tx.with_checksums(checks)));
            let rx = tcp::Rx::new(Box::new(CallReceiver::new(far.clone(), streams)), count, back)?;
            let rx = rx.with_checksums(checks).with_delayed_acknowledgements();
            links.add_rx(peer, Box::new(rx));
            // Both directions of messages share one stream: an answer carries the acknowledgement
            // of what it answers.
            let one = StreamCount { streams: 1, ..count };
            let (sender, receiver) = message_ends(far);
            let tx = tcp::Tx::new(Box::new(sender), one, messages.slots)?;
            let tx = tx.with_checksums(checks).with_receiver_beside();
            messages.links.add_tx(peer, Box::new(tx));
            let rx = tcp::Rx::new(Box::new(receiver), one, messages.slots)?;
            let rx = rx.with_checksums(checks).with_read_ahead();
            messages.links.add_rx(peer, Box::new(rx));
        }
        Ok(())
    }
}

/// Waits until `stream` can be read, until the deadline, or until an abort. Returns the deadline
/// for reading the stream, which after an abort is now.
fn readable_until(
    stream: &impl AsFd,
    deadline: Instant,
    abort: &AtomicBool,
    peer: &str,
) -> Instant {
    let notice = RefCell::new(WaitNotice::new());
    let is_aborted = || {
        notice.borrow_mut().tell_if_due(|waited| {
            format!("waited {waited:.0?} for the memory of {peer}; its process may be stopped")
        });
        abort.load(Ordering::Relaxed)
    };
    let waited = wait_unless(&is_aborted, (stream.as_fd(), PollFlags::POLLIN), deadline);
    waited.map_or_else(|_| Instant::now(), |()| deadline)
}
