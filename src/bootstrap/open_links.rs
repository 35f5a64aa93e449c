//! Communicators of ranks that are processes: bootstrap, then one link per pair of ranks that a
//! plan may use, with control channel and failure detector.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::PollFlags;
use socket2::Socket;

use super::connect::{Connection, PairKey, Streams};
use super::socket::wait_unless;
use super::topology::LinkKind;
use super::{Bootstrap, rendezvous};
use crate::api::{Communicator, Origin};
use crate::config::{Config, deadline_after};
use crate::engine::settings::Preferences;
use crate::engine::{Engine, RankInfo, SpeedsAreIn};
use crate::error::{Error, Peer, Result};
use crate::health::Peers;
use crate::health::control_channel::{ControlChannels, set_keepalive};
use crate::health::local_detector::{LocalDetector, StatusFds};
use crate::messages::{MessageEngine, MessageLinks};
use crate::partition::SlotShape;
use crate::plan::{Planner, Slots, least_chunk, message_slots};
use crate::schedule::Ring;
use crate::sync::{Backoff, Instant, Process, WaitNotice};
use crate::trace::{Recorder, launcher_record};
use crate::transport::aead::AeadKeys;
use crate::transport::shm::FifoShape;
use crate::transport::tcp::{self, tune};
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
        let planner = bootstrap.planner()?;
        let connected = connect(&mut bootstrap, &planner, deadline);
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
        comm.share_with_groups()?;
        Ok(comm)
    }

    /// The communicator of a bootstrap whose links are open.
    pub(super) fn over_links(
        bootstrap: Bootstrap,
        planner: Planner,
        (peer_table, messages): (Peers, MessageLinks),
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let (timeout, rank) = (bootstrap.config.timeout, bootstrap.rank);
        let preferences = Preferences::from(&bootstrap.config);
        let backoff = Backoff::for_ranks(bootstrap.ranks_on_host, bootstrap.cpus_on_host);
        let abort = Arc::clone(&bootstrap.abort_flag);
        let peers: Arc<[Peer]> = bootstrap.peers.iter().map(|info| info.peer()).collect();
        let transports = peer_table.links.transports();
        let folder = bootstrap.config.cache.clone();
        let name = Arc::default();
        let rank_info = Arc::new(RankInfo {
            rank,
            local_rank: bootstrap.local_rank(),
            local_size: bootstrap.local_size(),
            peers: Arc::clone(&peers),
            transports,
            shares_memory: bootstrap.shares_regions() && !bootstrap.needs_tcp(),
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
            speeds: SpeedsAreIn::Folder(folder),
        });
        let mut engine = Engine::new(rank_info, planner, peer_table, backoff, abort);
        if preferences.failures.uniform && !engine.has_all_control_channels() {
            let expected = format!(
                "off in a world of {} ranks, unless RINGREDUCE_ALL_PAIRS or Builder::all_pairs \
                 gives all of them links to each other",
                engine.rank_info.size()
            );
            return Err(Error::argument("build", "uniform", "on", expected));
        }
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
        let slots = Slots::of(self.needs_tcp(), self.size());
        let min_chunk = least_chunk(self.needs_tcp(), self.ranks_per_cpu);
        Ok(Planner::new(ring, self.rank as u32, slots, min_chunk))
    }
}

/// Connects this rank to every peer of the planner's plans.
fn connect(
    bootstrap: &mut Bootstrap,
    planner: &Planner,
    deadline: Instant,
) -> Result<(Peers, MessageLinks)> {
    let (me, size) = (bootstrap.rank, bootstrap.size());
    let slots = message_slots(bootstrap.needs_tcp(), size);
    let bell = Arc::new(Bell::new()?);
    bootstrap.bells.insert(me, Arc::clone(&bell));
    let mut messages = MessageLinks::new(planner.ring(), slots, bell);
    if size == 1 {
        return Ok((Peers::new(LinkSet::new(size)), messages));
    }
    let peers: Vec<_> = planner.peers().into_iter().map(|peer| peer as usize).collect();
    let dial: Vec<_> = peers.iter().map(|&to| PairKey { from: me, to }).collect();
    let accept: Vec<_> = peers.iter().map(|&from| PairKey { from, to: me }).collect();
    let (key, limit) = (bootstrap.job, bootstrap.config.peer_timeout);
    let mut controls = ControlChannels::new((me, size), key, limit);
    // Status entry and control channel exist before any other rank can connect. If this rank ends
    // soon after, the other ranks read there that it has voted for nothing.
    let (mut local_detector, fds) = LocalDetector::new(me, size)?;
    let launched = bootstrap.launched();
    let mut connections = bootstrap.connect(&dial, &accept)?;
    // The control channel of each peer, which one of the two connections with the peer carries. To
    // a peer of this host it is a Unix stream that passes descriptors first, and links share it.
    let mut liveness: BTreeMap<usize, LivenessStream> = BTreeMap::new();
    for Connection { pair, control, .. } in &mut connections {
        if let Some(control) = control.take() {
            let peer = pair.peer_of(me);
            liveness.insert(peer, controls.add(peer, control)?);
        }
    }
    liveness.retain(|&peer, _| bootstrap.link_kind(me, peer) == LinkKind::Shm);
    exchange_descriptors(bootstrap, &liveness, (&fds, &mut local_detector), deadline)?;
    let mut links = LinkSet::new(size);
    for connection in connections {
        let PairKey { from, to } = connection.pair;
        let slots = planner.slots(from as u32, to as u32);
        let peer = connection.pair.peer_of(me);
        match connection.streams {
            Streams::Shm => {
                let name = &bootstrap.peers[peer].peer().to_string();
                let liveness = &liveness[&peer];
                let to_peer = LinkPeer { liveness, name };
                let bell = Arc::clone(&bootstrap.bells[&peer]);
                let fifos = [FifoShape(slots, None), FifoShape(messages.slots, Some(bell))];
                if from == me {
                    let [of_calls, of_messages] = shm::senders(fifos, to_peer)?;
                    links.add_tx(to, of_calls);
                    messages.links.add_tx(to, of_messages);
                } else {
                    let until = readable_until(liveness, deadline, &bootstrap.abort_flag, name);
                    let [of_calls, of_messages] = shm::receivers(fifos, to_peer, until)?;
                    links.add_rx(from, of_calls);
                    messages.links.add_rx(from, of_messages);
                }
            }
            Streams::Tcp(_) => {
                TcpOpener::open(bootstrap, connection, slots, (&mut links, &mut messages))?;
            }
        }
    }
    let mut peers = Peers::new(links);
    peers.set_control_channels(controls);
    peers.set_local_sources(local_detector, launched);
    Ok((peers, messages))
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

/// Makes links over the TCP connections of a pair of ranks.
pub(super) struct TcpOpener<'a> {
    bootstrap: &'a Bootstrap,
    pair: PairKey,
}

impl TcpOpener<'_> {
    /// Opens the link of a connection, and those of messages if it has them.
    ///
    /// # Errors
    /// If the system refuses a setting of a socket.
    pub(super) fn open(
        bootstrap: &Bootstrap,
        connection: Connection,
        slots: SlotShape,
        (links, messages): (&mut LinkSet, &mut MessageLinks),
    ) -> Result<()> {
        let Connection { pair, streams, stream_keys, messages: both_ways, .. } = connection;
        let Streams::Tcp(sockets) = streams else { return Ok(()) };
        let opener = TcpOpener { bootstrap, pair };
        opener.open_link(sockets, stream_keys, slots, links)?;
        match both_ways {
            Some((socket, keys)) => opener.open_message_links(socket, keys, messages),
            None => Ok(()),
        }
    }

    fn tune(&self, sockets: &[TcpStream]) -> Result<()> {
        let congestion = self.bootstrap.config.tcp_congestion.as_deref();
        sockets.iter().try_for_each(|socket| tune(socket, congestion))
    }

    /// A link in one direction.
    fn open_link(
        &self,
        sockets: Vec<TcpStream>,
        keys: Vec<AeadKeys>,
        slots: SlotShape,
        links: &mut LinkSet,
    ) -> Result<()> {
        self.tune(&sockets)?;
        let PairKey { from, to } = self.pair;
        let checks = self.bootstrap.has_checksums(from, to);
        let (sealers, openers) = keys.into_iter().map(|keys| (keys.sealer, keys.opener)).unzip();
        if from == self.bootstrap.rank {
            let link = tcp::Tx::new(sockets, sealers, slots)?;
            links.add_tx(to, Box::new(link.with_checksums(checks)));
        } else {
            let link = tcp::Rx::new(sockets, openers, slots)?;
            links.add_rx(from, Box::new(link.with_checksums(checks)));
        }
        Ok(())
    }

    /// The links of messages in both directions, over one connection: an answer carries the
    /// acknowledgement of what it answers.
    fn open_message_links(
        &self,
        socket: Socket,
        keys: Option<AeadKeys>,
        messages: &mut MessageLinks,
    ) -> Result<()> {
        // Messages outlive a failed call, and with it the control channel's look at the peer.
        set_keepalive(&socket, self.bootstrap.config.peer_timeout)
            .map_err(|e| Error::io("preparing a connection of messages", e))?;
        let socket = TcpStream::from(socket);
        self.tune(std::slice::from_ref(&socket))?;
        let socket = Arc::new(socket);
        let PairKey { from, to } = self.pair;
        let (peer, checks) =
            (self.pair.peer_of(self.bootstrap.rank), self.bootstrap.has_checksums(from, to));
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        let tx = tcp::Tx::new(vec![Arc::clone(&socket)], Vec::from_iter(sealer), messages.slots)?;
        let tx = tx.with_checksums(checks).with_receiver_beside();
        let rx = tcp::Rx::new(vec![socket], Vec::from_iter(opener), messages.slots)?;
        let rx = rx.with_checksums(checks).with_read_ahead();
        messages.links.add_tx(peer, Box::new(tx));
        messages.links.add_rx(peer, Box::new(rx));
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
