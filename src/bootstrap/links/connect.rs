//! The dialler and the acceptor of control channels: the lower rank of a pair dials, and both pass
//! the handshake of mutual authentication. Links over TCP get streams of their own later
//! (`streams`).
//! Law: a rank accepts while it dials, so no order of ranks can deadlock.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use socket2::Socket;

use super::late_peers::way_to;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::acceptor::{StreamKeys, dial_handshake};
use crate::bootstrap::auth::handshake::{StreamId, StreamRole};
use crate::bootstrap::auth::keys::{Keys, SessionKeys};
use crate::bootstrap::auth::listener::{AcceptedStream, ControlListener, EarlyStream};
use crate::bootstrap::dial::connect_first;
use crate::bootstrap::socket::{connect_unix, unix_pair};
use crate::bootstrap::startup_store::{FailureWatch, StartupStore};
use crate::bootstrap::topology::PeerInfo;
use crate::config::deadline_after;
use crate::error::{Error, Limit, Result};
use crate::sync::{Instant, WaitNotice};
use crate::transport::tcp::interface;

/// Pause between two attempts to dial a peer.
const REDIAL_INTERVAL: Duration = Duration::from_millis(10);

/// The connection of the control channel to one rank, which blocks.
#[derive(Debug)]
pub struct ControlStream {
    /// The rank at the other end.
    pub peer: usize,
    /// The connection.
    pub socket: Socket,
    /// Over TCP, the keys of the connection, and the secret of the links between the two ranks.
    pub(super) keys: Option<SessionKeys>,
}

impl ControlStream {
    /// True if the connection is encrypted.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.keys.is_some()
    }
}

impl Bootstrap {
    /// Connects this rank's control channels to `peers`: the lower rank of a pair dials. All ranks
    /// must call this with matching lists.
    ///
    /// # Errors
    /// [`Error::Handshake`] naming the peer that can't be reached or does not come in time.
    pub fn connect(&mut self, peers: &[usize]) -> Result<Vec<ControlStream>> {
        self.connect_controls(peers).map(|(controls, _)| controls)
    }

    /// As [`Self::connect`], and the streams of links that have come before this rank was ready.
    pub(super) fn connect_controls(
        &mut self,
        peers: &[usize],
    ) -> Result<(Vec<ControlStream>, Vec<EarlyStream>)> {
        let deadline = deadline_after(self.config.timeout);
        let mut startup_store = self.startup_store.take();
        let opened = self.open(peers, startup_store.as_deref_mut(), deadline);
        self.startup_store = startup_store;
        let (controls, early) = opened?;
        // Links to the peer and the connections of subgroups take the way that has been found.
        for ControlStream { peer, socket, .. } in &controls {
            let other_end = socket.peer_addr().ok().and_then(|address| address.as_socket());
            if let Some(other_end) = other_end {
                self.peers[*peer].tcp.set_reached(other_end.ip());
            }
        }
        Ok((controls, early))
    }

    fn open(
        &self,
        peers: &[usize],
        startup_store: Option<&mut StartupStore>,
        deadline: Instant,
    ) -> Result<(Vec<ControlStream>, Vec<EarlyStream>)> {
        let bootstrap = self;
        let io = |error: io::Error| Error::io("connecting ranks", error);
        let (cancel_sender, cancelled) = unix_pair().map_err(io)?;
        let (dial_ids, expected): (Vec<_>, Vec<_>) =
            bootstrap.stream_ids(peers)?.into_iter().partition(|id| id.from as usize == self.rank);
        let keys = &Keys::new(self.secret.as_ref(), self.job);
        let listener = ControlListener::new(&expected, keys, dial_ids.len());
        let (accept_failed, accept_ended) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let dialler = thread::current();
        let (dialled, (accepted, early)) = thread::scope(|scope| {
            let thread = thread::Builder::new().name("ringreduce-accept".into());
            let accepting = move || {
                let accepted = bootstrap.accept_expected(listener, &cancelled, deadline);
                accept_failed.store(accepted.is_err(), Ordering::Relaxed);
                accept_ended.store(true, Ordering::Release);
                dialler.unpark();
                accepted
            };
            let acceptor = thread.spawn_scoped(scope, accepting);
            let acceptor =
                acceptor.map_err(|e| Error::no_thread("starting a thread to accept ranks", e))?;
            let is_aborted = || bootstrap.abort_flag.load(Ordering::Relaxed);
            let failure_watch = RefCell::new(FailureWatch::new(startup_store));
            let failure = RefCell::new(None);
            let is_cancelled = || {
                let mut failure = failure.borrow_mut();
                if failure.is_none() {
                    *failure = failure_watch.borrow_mut().failure(bootstrap, iter::empty());
                }
                failure.is_some() || accept_failed.load(Ordering::Relaxed) || is_aborted()
            };
            let notice = RefCell::new(WaitNotice::new());
            let mut dialled: Result<Vec<_>> = dial_ids
                .iter()
                .map(|stream| bootstrap.dial(stream, keys, deadline, &notice, &is_cancelled))
                .collect();
            if let Some(first) = failure.take() {
                dialled = dialled.and(Err(first));
            }
            while let Ok(sockets) = &dialled
                && !is_aborted()
                && !accept_ended.load(Ordering::Acquire)
            {
                thread::park_timeout(REDIAL_INTERVAL);
                let sockets = sockets.iter().map(|(socket, _)| socket);
                if let Some(error) = failure_watch.borrow_mut().failure(bootstrap, sockets) {
                    dialled = Err(error);
                }
            }
            if dialled.is_err() || is_aborted() {
                drop(cancel_sender.shutdown(std::net::Shutdown::Both));
            }
            let accepted = acceptor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (dialled, accepted) {
                // The acceptor's failure is the cause; the dialler only stopped after it.
                (Err(_), Err(cause @ (Error::Io { .. } | Error::Exhausted { .. }))) => Err(cause),
                (dialled, accepted) => Ok((dialled?, accepted?)),
            }
        })?;
        let dialled = dial_ids.iter().map(|id| id.to).zip(dialled);
        let accepted = expected.iter().map(|id| id.from).zip(accepted);
        let control = |(peer, (socket, keys)): (u32, (Socket, StreamKeys))| {
            socket.set_nonblocking(false).map_err(|e| Error::io("preparing a connection", e))?;
            Ok(ControlStream { peer: peer as usize, socket, keys })
        };
        let controls: Result<_> = dialled.chain(accepted).map(control).collect();
        Ok((controls?, early))
    }

    /// Identities of the streams to these ranks, in order.
    fn stream_ids(&self, peers: &[usize]) -> Result<Vec<StreamId>> {
        let stream = |&peer: &usize| {
            if peer == self.rank || peer >= self.size() {
                let expected = format!("another rank than {}, below {}", self.rank, self.size());
                return Err(Error::argument("connect", "peers", peer.to_string(), expected));
            }
            let (job, epoch) = (self.job, self.epoch);
            let (from, to) = (self.rank.min(peer) as u32, self.rank.max(peer) as u32);
            let role = self.link_kind(self.rank, peer).into();
            Ok(StreamId { job, epoch, from, to, role, encrypted: role == StreamRole::Tcp })
        };
        peers.iter().map(stream).collect()
    }

    /// Dials one stream, until the handshake succeeds or the deadline has
    /// come.
    fn dial(
        &self,
        stream: &StreamId,
        keys: &Keys,
        deadline: Instant,
        notice: &RefCell<WaitNotice>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Socket, StreamKeys)> {
        let peer = &self.peers[stream.to as usize];
        // The answer of another process at an address of the peer, once one has come.
        let stranger = RefCell::new(String::new());
        let fail = |reason: String| {
            let reason = reason + &stranger.borrow();
            Err(Error::Handshake { peer: peer.peer().to_string(), reason })
        };
        let last_error = RefCell::new("no answer yet".to_string());
        let cancelled = &|| {
            notice.borrow_mut().tell_if_due(|waited| {
                format!(
                    "rank {} has waited {waited:.0?} to connect to {}{}: {}. {}",
                    self.rank,
                    peer.peer(),
                    way_to(peer, stream.role),
                    last_error.borrow(),
                    self.advice(&[peer])
                )
            });
            cancelled()
        };
        let mut addresses = addresses_to_try(peer, &self.peers[self.rank].identity);
        loop {
            let error = match open((peer, &addresses), stream.role, deadline, cancelled) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return fail(self.refusal(peer, stream.role));
                }
                Err(error) => error,
                Ok((socket, address)) => {
                    match dial_handshake(&socket, keys, *stream, deadline, cancelled) {
                        Ok(stream_keys) => return Ok((socket, stream_keys)),
                        Err(error) if error.kind() == ErrorKind::InvalidData => {
                            addresses.retain(|other| Some(*other) != address);
                            let Some(address) = address.filter(|_| !addresses.is_empty()) else {
                                return fail(error.to_string());
                            };
                            // Another host may have the address too, and the next one be right.
                            stranger.replace(format!(". At {address}: {error}"));
                            error
                        }
                        Err(error) => error,
                    }
                }
            };
            if is_local_failure(&error) {
                return Err(Error::io(format!("connecting to {}", peer.peer()), error));
            }
            if Instant::now() + REDIAL_INTERVAL >= deadline || cancelled() {
                return fail(format!(
                    "no connection{} within {:.1?} ({error}). RINGREDUCE_TIMEOUT sets how long to \
                     wait. {}",
                    way_to(peer, stream.role),
                    self.config.timeout,
                    self.advice(&[peer])
                ));
            }
            last_error.replace(error.to_string());
            thread::sleep(REDIAL_INTERVAL);
        }
    }

    /// The addresses of the peer for streams of links, in the order in which to try them. A peer
    /// that this rank has dialled was reached at the first one. A peer that has dialled this rank
    /// may let nothing in at the address that it came from, so the others are tried too.
    pub(super) fn link_addresses(&self, peer: usize) -> Vec<SocketAddr> {
        let mut addresses = addresses_to_try(&self.peers[peer], &self.peers[self.rank].identity);
        if peer > self.rank {
            addresses.truncate(1);
        }
        addresses
    }

    /// Accepts all expected streams, in the order of the list; and streams of links, which come
    /// early.
    fn accept_expected(
        &self,
        mut listener: ControlListener<'_>,
        cancelled: &UnixStream,
        deadline: Instant,
    ) -> Result<(Vec<AcceptedStream>, Vec<EarlyStream>)> {
        let unix = self.unix.as_ref().map(|listener| (listener, StreamRole::Shm));
        let tcp = self.tcp.iter().map(|listener| (listener, StreamRole::Tcp));
        let listeners: Vec<_> = unix.into_iter().chain(tcp).collect();
        let mut notice = WaitNotice::new();
        while let Some(missing) = listener.accepted.iter().position(Option::is_none) {
            let poll_end = deadline.min(notice.due_at());
            let went_on = listener.poll_once(&listeners, cancelled, poll_end);
            if went_on.map_err(|e| Error::io("accepting ranks", e))? {
                continue;
            }
            if poll_end < deadline && Instant::now() >= poll_end {
                notice.tell_if_due(|waited| {
                    let (me, missing) = (self.rank, self.missing_diallers(&listener));
                    format!("rank {me} has waited {waited:.0?} for {missing}")
                });
                continue;
            }
            let peer = self.peers[listener.expected[missing].from as usize].peer().to_string();
            let reason = format!(
                "it did not connect within {:.1?}; {} other connections were turned away. This \
                 rank waits for {}",
                self.config.timeout,
                listener.rejections.total(),
                self.missing_diallers(&listener)
            );
            return Err(Error::Handshake { peer, reason });
        }
        Ok(listener.finish())
    }
}

/// The addresses of the peer in the order in which to try them, from the host of this identity. An
/// address that this host has too leads to no other host.
pub(super) fn addresses_to_try(peer: &PeerInfo, identity: &str) -> Vec<SocketAddr> {
    let all: Vec<_> = peer.tcp.to_try().collect();
    if all.len() < 2 || *peer.identity == *identity {
        return all;
    }
    let here = interface::list().unwrap_or_default();
    let is_own = |address: &SocketAddr| here.iter().any(|own| own.address == address.ip());
    let foreign: Vec<_> = all.iter().copied().filter(|address| !is_own(address)).collect();
    if foreign.is_empty() { all } else { foreign }
}

/// True for a limit or a permission of this process, which no further attempt can mend.
fn is_local_failure(error: &io::Error) -> bool {
    Limit::of(error).is_some() || error.kind() == ErrorKind::PermissionDenied
}

fn open(
    (peer, addresses): (&PeerInfo, &[SocketAddr]),
    role: StreamRole,
    deadline: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<(Socket, Option<SocketAddr>)> {
    match role {
        StreamRole::Shm => connect_unix(&peer.unix).map(|socket| (socket, None)),
        StreamRole::Tcp => {
            let connected = connect_first(addresses, deadline, cancelled);
            connected.map(|(socket, address)| (socket, Some(address)))
        }
        StreamRole::Store | StreamRole::Launcher => Err(ErrorKind::AddrNotAvailable.into()),
    }
}
