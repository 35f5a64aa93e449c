//! The port of a process at which the streams of links over TCP arrive, those of a communicator and
//! of its subgroups. No thread serves it: whoever waits for a stream takes in all that have come,
//! and rings for those of others.
//! Law: a stream begins with a hello, whose proof needs the secret of both processes; any other
//! connection takes one place in a bounded list, and nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::arrivals::{Arrivals, LinkConnection, Pending};
use super::port_peer::{PortPeer, StreamSettings};
use super::unlinked::UnlinkedPeers;
use crate::bootstrap::auth::acceptor::PendingPeer;
use crate::bootstrap::auth::handshake::Side;
use crate::bootstrap::auth::hello::{
    HELLO_LEN, Hello, HelloBytes, LinkStream, MAGIC, draw_nonce, may_begin,
};
use crate::bootstrap::auth::keys::LinkSecret;
use crate::bootstrap::auth::listener::EarlyStream;
use crate::bootstrap::auth::rejected::{Rejection, RejectionLog};
use crate::bootstrap::socket::{Accepted, accept, pending_limit, try_recv};
use crate::bootstrap::tcp_addresses::MAX_ADDRESSES;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result, warn};
use crate::health::control_channel::set_idle_keepalive;
use crate::sync::{Instant, Process};
use crate::transport::aead::AeadKeys;
use crate::transport::tcp::{is_own_lack, loss, tune};
use crate::transport::{Bell, Doorbell, Fault, LinkContent};

/// The most connections whose hello has not come yet, where descriptors are not few: this many, or
/// four for each stream that the peers of one communicator may dial.
const MAX_PENDING: usize = 256;
const PENDING_PER_STREAM: usize = 4;
/// The most connections that one look accepts: a crowd of others must not keep a call from its
/// deadline.
const MAX_ACCEPTS: usize = 32;
/// How long no connection is accepted after this process has lacked a descriptor.
const REST: Duration = Duration::from_millis(100);
/// The most events of one look at the connections.
const EVENTS_PER_POLL: usize = 32;
/// The numbers of the listeners among the connections are below this one.
const FIRST_CONNECTION: u64 = MAX_ADDRESSES as u64 + 1;

/// The port of a process.
pub(in crate::bootstrap) struct LinkPort {
    /// The rank of this process in the communicator that met.
    me: u32,
    /// Ready while something has come that nobody has taken in.
    poll: Epoll,
    pub(super) bell: Arc<Bell>,
    /// By their ranks in the communicator that met.
    peers: BTreeMap<u32, PortPeer>,
    /// The other ranks of that communicator, if control channels to them may be made.
    pub(super) unlinked: Option<UnlinkedPeers>,
    pub(super) settings: StreamSettings,
    max_pending: usize,
    pub(super) process: Process,
    pub(super) arrivals: Mutex<Arrivals>,
}

impl LinkPort {
    /// The port of rank `me`, whose bell wakes all that wait for a stream.
    ///
    /// # Errors
    /// If the system lacks the chosen congestion control, or a descriptor.
    pub(in crate::bootstrap) fn new(
        me: usize,
        listeners: Vec<Socket>,
        bell: Arc<Bell>,
        (peers, unlinked): (BTreeMap<u32, PortPeer>, Option<UnlinkedPeers>),
        settings: StreamSettings,
    ) -> Result<Self> {
        let io = |no| Error::io("preparing the port of links", name_refused_call("epoll", no));
        let poll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io)?;
        for (number, listener) in (0..).zip(&listeners) {
            poll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, number)).map_err(io)?;
        }
        // A setting that the system lacks is told before any call needs it. Without one, the choice
        // depends on the peer of each stream, which would inherit the listener's.
        if let (Some(congestion), Some(listener)) = (&settings.congestion, listeners.first())
            && let Some(own) = listener.local_addr().ok().and_then(|own| own.as_socket())
        {
            tune(listener, own, Some(congestion), false)?;
        }
        let rejections = RejectionLog::new(format!("rank {me}"));
        let arrivals = Mutex::new(Arrivals::new(listeners, rejections, FIRST_CONNECTION));
        let (me, process) = (me as u32, Process::default());
        let due = peers.len() * settings.streams + unlinked.as_ref().map_or(0, UnlinkedPeers::len);
        let max_pending = pending_limit(MAX_PENDING.max(PENDING_PER_STREAM * due), due);
        Ok(Self { me, poll, bell, peers, unlinked, settings, max_pending, process, arrivals })
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    pub(super) fn encrypts(&self) -> bool {
        self.settings.encrypt
    }

    /// A place to sleep until the port has taken in streams.
    pub(super) fn doorbell(&self) -> Doorbell {
        Doorbell::at(Arc::clone(&self.bell))
    }

    /// The descriptor that is readable while something has come.
    pub(super) fn descriptor(&self) -> RawFd {
        self.poll_fd().as_raw_fd()
    }

    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.poll.0.as_fd()
    }

    /// Dials a stream: the connection, which may not stand yet, and the hello that goes out first.
    /// Waits for an answer only until one of a peer's several addresses has answered, and at most
    /// 250 ms for each.
    ///
    /// # Errors
    /// If the peer is known to be out of reach, for a stream that `resumes` by its refusal alone;
    /// [`Fault::NoMemory`] at a limit of this process.
    pub(super) fn dial(
        &self,
        stream: LinkStream,
        resumes: bool,
    ) -> Result<(LinkConnection, HelloBytes), Fault> {
        let peer = self.peers.get(&stream.acceptor);
        let peer = peer.ok_or_else(|| Fault::Lost("there is no connection to it".into()))?;
        let nonce = draw_nonce().ok_or_else(|| Fault::Lost("no random numbers for it".into()))?;
        let hello = Hello::first(stream, nonce).encode(&peer.secret);
        let keys = self.keys(&hello, &peer.secret, Side::Dialler)?;
        let connected = peer.connect(resumes).and_then(|(socket, address)| {
            self.settings.prepare(&socket, (address, peer.is_far), stream.content)?;
            Ok(socket)
        });
        let socket = connected.map_err(|error| match is_own_lack(&error) {
            true => Fault::NoMemory(Box::new(Error::io("connecting a link", error))),
            false => Fault::Lost(loss(&error)),
        })?;
        Ok((LinkConnection::new(socket, keys), hello))
    }

    /// The secret of this process and the one of this rank.
    pub(super) fn secret_with(&self, rank: u32) -> Option<&LinkSecret> {
        self.peer(rank).map(|peer| &peer.secret)
    }

    /// How long the host of a peer may be out of reach.
    pub(super) fn patience(&self) -> Duration {
        self.settings.peer_timeout
    }

    /// The process of this rank, as far as the port knows it.
    pub(super) fn peer(&self, rank: u32) -> Option<&PortPeer> {
        let unlinked = || self.unlinked.as_ref()?.get(rank);
        self.peers.get(&rank).or_else(unlinked)
    }

    /// Begins another connection of a stream, to this address of its acceptor. Never waits.
    pub(super) fn redial(&self, stream: LinkStream, address: SocketAddr) -> io::Result<TcpStream> {
        let peer = self.peer(stream.acceptor).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = peer.connect_to(address)?;
        self.settings.prepare(&socket, (address, peer.is_far), stream.content)?;
        // The answer may get lost with what a NAT knows of the connection, and nothing is under way
        // then that the system would send again.
        if stream.content == LinkContent::Calls {
            set_idle_keepalive(&socket)?;
        }
        if let Some(own) = socket.local_addr().ok().and_then(|own| own.as_socket()) {
            let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            // Peers do not reach this process at an address that its host has lost.
            if let Err(error) = arrivals.listen_at(own.ip(), &self.poll) {
                let (me, ip) = (self.me, own.ip());
                warn(&format!("rank {me}: peers can't reach it at its new address {ip}: {error}"));
            }
        }
        Ok(socket.into())
    }

    fn keys(
        &self,
        hello: &HelloBytes,
        secret: &LinkSecret,
        side: Side,
    ) -> Result<Option<AeadKeys>, Fault> {
        if !self.settings.encrypt {
            return Ok(None);
        }
        let keys = secret.stream_keys(side, hello);
        keys.map(Some).ok_or_else(|| Fault::Lost("no keys for the connection to it".into()))
    }

    /// The stream, if it has come.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] if this process lacks a descriptor for what has come.
    pub(super) fn take(&self, stream: LinkStream) -> Result<Option<LinkConnection>, Fault> {
        self.take_newer(stream, None)
    }

    /// A connection of the stream after that of `generation`, if it has come.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) fn take_newer(
        &self,
        stream: LinkStream,
        generation: Option<u32>,
    ) -> Result<Option<LinkConnection>, Fault> {
        // In a forked child the streams are the parent's, and a thread that the child lacks may
        // hold the lock.
        if !self.process.is_current() {
            return Ok(None);
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = arrivals.claim(stream, generation) {
            return Ok(Some(taken));
        }
        let before = arrivals.kept;
        let received = self.receive(&mut arrivals);
        let taken = arrivals.claim(stream, generation);
        if arrivals.kept > before + u64::from(taken.is_some()) {
            self.bell.ring();
        }
        if taken.is_none() {
            received?;
        }
        Ok(taken)
    }

    /// Drops the stream if it has come, because nobody will take it any more.
    pub(super) fn forget(&self, stream: LinkStream) {
        // A stream that lacks a descriptor stays in the backlog.
        let _ = self.take(stream);
        if self.process.is_current() {
            self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).forget(stream);
        }
    }

    /// Takes in what has come, without waiting; the next look goes on where much has come.
    pub(super) fn receive(&self, arrivals: &mut Arrivals) -> Result<(), Fault> {
        let now = Instant::now();
        match arrivals.rests_until {
            // The awaited stream may be in the backlog.
            Some(until) if now < until => return Err(exhausted(Errno::EMFILE.into())),
            Some(_) => self.listen(arrivals, EpollFlags::EPOLLIN),
            None => {}
        }
        arrivals.rests_until = None;
        let mut events = [EpollEvent::empty(); EVENTS_PER_POLL];
        let count = self.poll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            match event.data() {
                number if number >= FIRST_CONNECTION => self.advance(arrivals, number, now),
                number => self.accept_some(arrivals, number as usize, now)?,
            }
        }
        Ok(())
    }

    /// Looks for connections, or rests.
    fn listen(&self, arrivals: &Arrivals, events: EpollFlags) {
        for (number, listener) in (0..).zip(&arrivals.listeners) {
            // The system refuses only what is not there.
            let _ = self.poll.modify(listener, &mut EpollEvent::new(events, number));
        }
    }

    /// Accepts connections that have come.
    fn accept_some(&self, arrivals: &mut Arrivals, at: usize, now: Instant) -> Result<(), Fault> {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = arrivals.listeners.get(at) else { break };
            let socket = match accept(listener).map_err(exhausted)? {
                Accepted::Connection(socket) => socket,
                Accepted::Nothing => break,
                Accepted::NoDescriptor(error) => {
                    // The connection stays in the backlog, and would end each sleep at once.
                    self.listen(arrivals, EpollFlags::empty());
                    arrivals.rests_until = Some(now + REST);
                    return Err(exhausted(error));
                }
            };
            self.begin(arrivals, socket, &[], now);
        }
        Ok(())
    }

    /// Takes over a connection that has come while control channels were connected.
    pub(super) fn take_over(&self, EarlyStream { socket, read, .. }: EarlyStream) {
        let arrivals = &mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin(arrivals, socket, &MAGIC[..read], Instant::now());
    }

    /// Begins with the hello of a connection, of which these bytes have been read.
    fn begin(&self, arrivals: &mut Arrivals, socket: Socket, read: &[u8], now: Instant) {
        if arrivals.pending.len() >= self.max_pending {
            arrivals.displace_one(now);
        }
        // No time is too long for a hello, but the oldest connections give their places up first.
        let peer = PendingPeer::new(&socket, now);
        let mut pending = Pending { socket, hello: [0; HELLO_LEN], filled: read.len(), peer };
        pending.hello[..read.len()].copy_from_slice(read);
        let number = arrivals.next;
        arrivals.next += 1;
        match self.poll.add(&pending.socket, EpollEvent::new(EpollFlags::EPOLLIN, number)) {
            Ok(()) => {
                arrivals.pending.insert(number, pending);
                // The hello of most connections has come with them.
                self.advance(arrivals, number, now);
            }
            Err(_) => arrivals.rejections.record(Rejection::NoDescriptor, now),
        }
    }

    /// Goes on with the hello of a connection.
    fn advance(&self, arrivals: &mut Arrivals, number: u64, now: Instant) {
        let Some(pending) = arrivals.pending.get_mut(&number) else { return };
        let read = loop {
            if pending.filled == HELLO_LEN {
                break Ok(());
            }
            match try_recv(&pending.socket, &mut pending.hello[pending.filled..]) {
                Ok(Some(0)) | Err(_) => break Err(Rejection::ClosedEarly),
                Ok(None) => return,
                Ok(Some(count)) => pending.filled += count,
            }
            if !may_begin(&pending.hello[..pending.filled]) {
                break Err(Rejection::Malformed);
            }
        };
        let Some(pending) = arrivals.pending.remove(&number) else { return };
        // The descriptor leaves the poll when it is closed, too.
        let _ = self.poll.delete(&pending.socket);
        let opened = read.and_then(|()| self.open(pending));
        let done = opened.and_then(|(stream, link)| arrivals.keep(stream, link));
        if let Err(reason) = done {
            arrivals.rejections.record(reason, now);
        }
    }

    /// The stream of a connection whose hello has come.
    fn open(&self, pending: Pending) -> Result<(LinkStream, LinkConnection), Rejection> {
        let hello = Hello::decode(&pending.hello)?;
        let stream = hello.stream;
        let peer = match stream.content {
            LinkContent::Control => self.peer(stream.dialler),
            _ => self.peers.get(&stream.dialler),
        };
        let peer = peer.filter(|_| stream.acceptor == self.me);
        let peer = peer.ok_or(Rejection::Unexpected)?;
        if !peer.secret.verify(&pending.hello) {
            return Err(Rejection::BadTag);
        }
        // The control channel keeps its keys.
        let keys = match stream.content {
            LinkContent::Control => Ok(None),
            _ => self.keys(&hello.of_keys(&peer.secret), &peer.secret, Side::Acceptor),
        };
        let keys = keys.map_err(|_| Rejection::BadTag)?;
        let socket = pending.socket;
        if let Some(address) = socket.peer_addr().ok().and_then(|address| address.as_socket()) {
            // A stream that has ended may refuse settings; its link finds the end.
            let set = socket.set_nonblocking(true);
            let _ = set.and_then(|()| {
                self.settings.prepare(&socket, (address, peer.is_far), stream.content)
            });
            if hello.generation > 0 {
                peer.note_came_from(address.ip().to_canonical());
            }
        }
        let link = LinkConnection::new(socket, keys);
        let resumes = (hello.generation > 0).then(|| Box::new((hello, pending.hello)));
        Ok((stream, LinkConnection { resumes, ..link }))
    }
}

/// The fault of this process, which lacks a descriptor.
fn exhausted(error: io::Error) -> Fault {
    Fault::NoMemory(Box::new(Error::io("accepting the connection of a link", error)))
}

impl fmt::Debug for LinkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkPort").field("me", &self.me).finish_non_exhaustive()
    }
}
