//! The dialler and the acceptor of the streams of links and control channels. The sender of a link
//! dials its receiver, and both pass the handshake of mutual authentication. A link in shared
//! memory has no stream but the control channel's, which the lower rank of a pair dials.
//! Law: a rank accepts while it dials, so no order of ranks can deadlock.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use socket2::Socket;

use super::Bootstrap;
use super::auth::acceptor::{StreamKeys, dial_handshake};
use super::auth::handshake::{StreamId, StreamRole};
use super::auth::keys::Keys;
use super::auth::listener::LinkListener;
use super::late_peers::way_to;
use super::socket::{connect_tcp, connect_unix, unix_pair};
use super::startup_store::{FailureWatch, StartupStore};
use super::topology::{LinkKind, PeerInfo};
use crate::config::deadline_after;
use crate::error::{Error, Limit, Result};
use crate::sync::{Instant, WaitNotice};
use crate::transport::aead::AeadKeys;

/// Pause between two attempts to dial a peer.
const REDIAL_INTERVAL: Duration = Duration::from_millis(10);

/// A link, identified by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairKey {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
}

impl PairKey {
    /// The other end than `rank`.
    pub(super) fn peer_of(self, rank: usize) -> usize {
        if self.from == rank { self.to } else { self.from }
    }
}

/// Connected streams of a link, all blocking.
#[derive(Debug)]
pub enum Streams {
    /// The link has no stream. The control channel passes the descriptor of its memory before the
    /// first message.
    Shm,
    /// As many TCP connections as `tcp_sockets` says, in the same order at both ends.
    Tcp(Vec<TcpStream>),
}

/// The streams of one link.
#[derive(Debug)]
pub struct Connection {
    /// The link that the streams belong to.
    pub pair: PairKey,
    /// The data streams.
    pub streams: Streams,
    /// AEAD keys of each data stream, in the same order; empty if the job does not encrypt.
    pub stream_keys: Vec<AeadKeys>,
    /// The connection of messages in both directions, over TCP, one per pair of ranks.
    pub messages: Option<(Socket, Option<AeadKeys>)>,
    /// The control channel, one per pair of ranks, for messages that must not wait behind data;
    /// none if the ranks have a parent's. Over TCP it is always encrypted.
    pub control: Option<(Socket, Option<AeadKeys>)>,
}

impl Bootstrap {
    /// Dials the streams of the links that this rank sends on (`dial`) and accepts those of the
    /// links that it receives on (`accept`). All ranks must call this with matching lists. The
    /// connections come in the order of the lists, first those of `dial`.
    ///
    /// # Errors
    /// [`Error::Handshake`] naming the peer that can't be reached or does not come in time.
    pub fn connect(&mut self, dial: &[PairKey], accept: &[PairKey]) -> Result<Vec<Connection>> {
        let deadline = deadline_after(self.config.timeout);
        let mut startup_store = self.startup_store.take();
        let opened = self.open(dial, accept, startup_store.as_deref_mut(), deadline);
        self.startup_store = startup_store;
        opened
    }

    fn open(
        &self,
        dial: &[PairKey],
        accept: &[PairKey],
        startup_store: Option<&mut StartupStore>,
        deadline: Instant,
    ) -> Result<Vec<Connection>> {
        let bootstrap = self;
        let io = |error: io::Error| Error::io("connecting ranks", error);
        let (cancel_sender, cancelled) = unix_pair().map_err(io)?;
        let expected = bootstrap.stream_ids(accept)?;
        let dial_ids = bootstrap.stream_ids(dial)?;
        let keys = &Keys::new(self.secret.as_ref(), self.job);
        let listener = LinkListener::new(&expected, keys, dial_ids.len());
        let (accept_failed, accept_ended) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let dialler = thread::current();
        let (dialled, accepted) = thread::scope(|scope| {
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
        let mut sockets = dialled.into_iter().chain(accepted);
        let pairs = dial.iter().chain(accept);
        pairs.map(|&pair| bootstrap.assemble(pair, &mut sockets)).collect()
    }

    /// Identities of the streams of `pairs`, in order.
    fn stream_ids(&self, pairs: &[PairKey]) -> Result<Vec<StreamId>> {
        let mut streams = Vec::new();
        for &PairKey { from, to } in pairs {
            if from == to || from.max(to) >= self.size() || ![from, to].contains(&self.rank) {
                let given = format!("{from} to {to}");
                let expected =
                    format!("two ranks below {}, one of them {}", self.size(), self.rank);
                return Err(Error::argument("connect", "pair", given, expected));
            }
            let kind = self.link_kind(from, to);
            let count = self.streams_per_link(from, to) as u16;
            let (job, epoch, from, to) = (self.job, self.epoch, from as u32, to as u32);
            let role = kind.into();
            let (tcp, encrypt) = (kind == LinkKind::Tcp, self.config.encrypt);
            let carries_control = carries_both_ways(from as usize, to as usize);
            let control_streams = u16::from(carries_control && !self.shares_channels);
            let stream = |index| {
                let encrypted = tcp && (encrypt || index + control_streams == count);
                StreamId { job, epoch, from, to, role, index, count, encrypted }
            };
            streams.extend((0..count).map(stream));
        }
        Ok(streams)
    }

    fn streams_per_link(&self, from: usize, to: usize) -> usize {
        let (links, messages) = match self.link_kind(from, to) {
            LinkKind::Shm => (0, 0),
            LinkKind::Tcp => (self.config.tcp_sockets, 1),
        };
        let both_ways = messages + usize::from(!self.shares_channels);
        links + if carries_both_ways(from, to) { both_ways } else { 0 }
    }

    fn assemble(
        &self,
        pair: PairKey,
        sockets: &mut impl Iterator<Item = (Socket, StreamKeys)>,
    ) -> Result<Connection> {
        let PairKey { from, to } = pair;
        let kind = self.link_kind(from, to);
        let mut own: Vec<_> = sockets.take(self.streams_per_link(from, to)).collect();
        for (socket, _) in &own {
            socket.set_nonblocking(false).map_err(|e| Error::io("preparing a link", e))?;
        }
        let both_ways = carries_both_ways(from, to);
        let control = if both_ways && !self.shares_channels { own.pop() } else { None };
        let messages = if both_ways && kind == LinkKind::Tcp { own.pop() } else { None };
        let (own, keys): (Vec<_>, Vec<_>) = own.into_iter().unzip();
        let keys = keys.into_iter().flatten().collect();
        let streams = match kind {
            LinkKind::Shm => Streams::Shm,
            LinkKind::Tcp => Streams::Tcp(own.into_iter().map(TcpStream::from).collect()),
        };
        Ok(Connection { pair, streams, stream_keys: keys, messages, control })
    }

    /// Dials one stream to the receiver of a link, until the handshake succeeds or the deadline has
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
        let fail = |reason: String| Err(Error::Handshake { peer: peer.peer().to_string(), reason });
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
        loop {
            let error = match open(peer, stream.role, deadline, cancelled) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return fail(self.refusal(peer, stream.role));
                }
                Err(error) => error,
                Ok(socket) => match dial_handshake(&socket, keys, *stream, deadline, cancelled) {
                    Ok(stream_keys) => return Ok((socket, stream_keys)),
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        return fail(error.to_string());
                    }
                    Err(error) => error,
                },
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

    /// Accepts all expected streams, in the order of the list.
    fn accept_expected(
        &self,
        mut listener: LinkListener<'_>,
        cancelled: &UnixStream,
        deadline: Instant,
    ) -> Result<Vec<(Socket, StreamKeys)>> {
        let unix = self.unix.as_ref().map(|listener| (listener, StreamRole::Shm));
        let tcp = self.tcp.as_ref().map(|listener| (listener, StreamRole::Tcp));
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
        Ok(listener.accepted.into_iter().flatten().collect())
    }
}

/// True for one of the two links between a pair of ranks: its streams include those that both ranks
/// send on, for messages and for the control channel.
fn carries_both_ways(from: usize, to: usize) -> bool {
    from < to
}

/// True for a limit or a permission of this process, which no further attempt can mend.
fn is_local_failure(error: &io::Error) -> bool {
    Limit::of(error).is_some() || error.kind() == ErrorKind::PermissionDenied
}

fn open(
    peer: &PeerInfo,
    role: StreamRole,
    deadline: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<Socket> {
    match (role, peer.tcp) {
        (StreamRole::Shm, _) => connect_unix(&peer.unix),
        (StreamRole::Tcp, Some(address)) => connect_tcp(address, deadline, cancelled),
        (StreamRole::Tcp, None) | (StreamRole::Store, _) => Err(ErrorKind::AddrNotAvailable.into()),
    }
}
