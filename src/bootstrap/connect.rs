//! The streams of links: the sender of a link dials its receiver, and every stream passes the
//! handshake. May touch: handshake, door, socket, peers.
//! Law: accepting runs beside dialling, so no order of ranks can deadlock.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use socket2::Socket;

use super::Meeting;
use super::auth::acceptor::{Sealing, offer};
use super::auth::handshake::{Identity, Role};
use super::auth::keys::Keys;
use super::auth::listener::Door;
use super::socket::{connect_tcp, connect_unix};
use super::start_up::{Entrance, Watch};
use super::topology::{LinkKind, PeerInfo};
use crate::config::deadline_after;
use crate::error::{Error, Result};
use crate::transport::aead::Seals;

/// Between two attempts to dial.
const PAUSE: Duration = Duration::from_millis(10);

/// A link, by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairKey {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
}

/// What a link runs over; all blocking.
#[derive(Debug)]
pub enum Streams {
    /// One stream, over which [`crate::transport::shm`] passes memory and which ends with the peer.
    Shm(UnixStream),
    /// As many connections as `tcp_sockets` says, in the same order at both ends.
    Tcp(Vec<TcpStream>),
}

/// The streams of one link.
#[derive(Debug)]
pub struct Connection {
    /// Which link.
    pub pair: PairKey,
    /// Its streams.
    pub streams: Streams,
    /// What each of them is sealed by, in the same order; none if they are not.
    pub seals: Vec<Seals>,
    /// One more, once for each two ranks: for what shall not wait behind data. Over TCP it is
    /// sealed.
    pub control: Option<(Socket, Option<Seals>)>,
}

impl Meeting {
    /// Opens the streams of the links that this rank sends on (`dial`) and receives on (`accept`).
    /// All ranks call this with matching lists. The connections come in the order of the lists,
    /// first those of `dial`.
    ///
    /// # Errors
    /// [`Error::Handshake`] naming the peer that can't be reached or does not come in time.
    pub fn connect(&mut self, dial: &[PairKey], accept: &[PairKey]) -> Result<Vec<Connection>> {
        let until = deadline_after(self.config.timeout);
        let mut entrance = self.entrance.take();
        let opened = self.open(dial, accept, entrance.as_mut(), until);
        self.entrance = entrance;
        opened
    }

    fn open(
        &self,
        dial: &[PairKey],
        accept: &[PairKey],
        entrance: Option<&mut Entrance>,
        until: Instant,
    ) -> Result<Vec<Connection>> {
        let meeting = self;
        let io = |error: io::Error| Error::io("connecting ranks", error);
        let (cancel, cancelled) = UnixStream::pair().map_err(io)?;
        let expected = meeting.streams_of(accept)?;
        let wanted = meeting.streams_of(dial)?;
        let keys = &Keys::new(self.secret.as_ref(), self.job);
        let door = Door::new(&expected, keys, wanted.len());
        let (failed, ended) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let dialler = thread::current();
        let (dialled, accepted) = thread::scope(|scope| {
            let thread = thread::Builder::new().name("ringreduce-accept".into());
            let accepting = move || {
                let accepted = meeting.accept_all(door, &cancelled, until);
                failed.store(accepted.is_err(), Ordering::Relaxed);
                ended.store(true, Ordering::Release);
                dialler.unpark();
                accepted
            };
            let acceptor = thread.spawn_scoped(scope, accepting);
            let acceptor =
                acceptor.map_err(|e| Error::no_thread("starting a thread to accept ranks", e))?;
            let aborted = || meeting.abort.load(Ordering::Relaxed);
            let gave_up = || failed.load(Ordering::Relaxed) || aborted();
            let mut dialled: Result<Vec<_>> =
                wanted.iter().map(|stream| meeting.dial(stream, keys, until, &gave_up)).collect();
            let mut watch = Watch::new(entrance);
            while let Ok(sockets) = &dialled
                && !aborted()
                && !ended.load(Ordering::Acquire)
            {
                thread::park_timeout(PAUSE);
                if let Some(error) = watch.look(meeting, sockets.iter().map(|(it, _)| it)) {
                    dialled = Err(error);
                }
            }
            if dialled.is_err() || aborted() {
                drop(cancel.shutdown(std::net::Shutdown::Both));
            }
            let accepted = acceptor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (dialled, accepted) {
                // The acceptor's failure, not its echo in the dialler.
                (Err(_), Err(cause @ (Error::Io { .. } | Error::Exhausted { .. }))) => Err(cause),
                (dialled, accepted) => Ok((dialled?, accepted?)),
            }
        })?;
        let mut sockets = dialled.into_iter().chain(accepted);
        let pairs = dial.iter().chain(accept);
        pairs.map(|&pair| meeting.bundle(pair, &mut sockets)).collect()
    }

    /// What identifies the streams of `pairs`, in order.
    fn streams_of(&self, pairs: &[PairKey]) -> Result<Vec<Identity>> {
        let mut streams = Vec::new();
        for &PairKey { from, to } in pairs {
            if from == to || from.max(to) >= self.size() || ![from, to].contains(&self.rank) {
                return Err(Error::Argument {
                    call: "connect",
                    argument: "pair",
                    given: format!("{from} to {to}"),
                    expected: format!("two ranks below {}, one of them {}", self.size(), self.rank),
                });
            }
            let kind = self.link_kind(from, to);
            let count = self.streams_per_link(from, to) as u16;
            let (job, epoch, from, to) = (self.job, self.epoch, from as u32, to as u32);
            let role = kind.into();
            let (tcp, encrypt) = (kind == LinkKind::Tcp, self.config.encrypt);
            let controls = u16::from(has_control(from as usize, to as usize));
            let stream = |index| {
                let sealed = tcp && (encrypt || index + controls == count);
                Identity { job, epoch, from, to, role, index, count, sealed }
            };
            streams.extend((0..count).map(stream));
        }
        Ok(streams)
    }

    fn streams_per_link(&self, from: usize, to: usize) -> usize {
        let links = match self.link_kind(from, to) {
            LinkKind::Shm => 1,
            LinkKind::Tcp => self.config.tcp_sockets,
        };
        links + usize::from(has_control(from, to))
    }

    fn bundle(
        &self,
        pair: PairKey,
        sockets: &mut impl Iterator<Item = (Socket, Sealing)>,
    ) -> Result<Connection> {
        let kind = self.link_kind(pair.from, pair.to);
        let PairKey { from, to } = pair;
        let mut mine: Vec<_> = sockets.take(self.streams_per_link(from, to)).collect();
        for (socket, _) in &mine {
            socket.set_nonblocking(false).map_err(|e| Error::io("preparing a link", e))?;
        }
        let control = if has_control(from, to) { mine.pop() } else { None };
        let (mine, seals): (Vec<_>, Vec<_>) = mine.into_iter().unzip();
        let (mut mine, seals) = (mine, seals.into_iter().flatten().collect());
        let streams = match (kind, mine.pop()) {
            (LinkKind::Shm, Some(socket)) => Streams::Shm(socket.into()),
            (_, last) => Streams::Tcp(mine.into_iter().chain(last).map(TcpStream::from).collect()),
        };
        Ok(Connection { pair, streams, seals, control })
    }

    /// One stream to the receiver of a link.
    fn dial(
        &self,
        stream: &Identity,
        keys: &Keys,
        until: Instant,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Socket, Sealing)> {
        let peer = &self.peers[stream.to as usize];
        let fail = |reason: String| Err(Error::Handshake { peer: peer.peer().to_string(), reason });
        loop {
            let error = match open(peer, stream.role, until, cancelled) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return fail("it refuses connections; has it ended?".into());
                }
                Err(error) => error,
                Ok(socket) => match offer(&socket, keys, *stream, until, cancelled) {
                    Ok(sealing) => return Ok((socket, sealing)),
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        return fail(error.to_string());
                    }
                    Err(error) => error,
                },
            };
            if is_ours(&error) {
                return Err(Error::io(format!("connecting to {}", peer.peer()), error));
            }
            if Instant::now() + PAUSE >= until || cancelled() {
                return fail(format!(
                    "no connection within {:.1?} ({error}). RINGREDUCE_TIMEOUT sets how long to \
                     wait, RINGREDUCE_IFNAME which network to use",
                    self.config.timeout
                ));
            }
            thread::sleep(PAUSE);
        }
    }

    /// The streams that are expected, from whoever dials them.
    fn accept_all(
        &self,
        mut door: Door<'_>,
        cancelled: &UnixStream,
        until: Instant,
    ) -> Result<Vec<(Socket, Sealing)>> {
        let unix = self.unix.as_ref().map(|listener| (listener, Role::Shm));
        let tcp = self.tcp.as_ref().map(|listener| (listener, Role::Tcp));
        let listeners: Vec<_> = unix.into_iter().chain(tcp).collect();
        while let Some(missing) = door.taken.iter().position(Option::is_none) {
            let turn = door.turn(&listeners, cancelled, until);
            if turn.map_err(|e| Error::io("accepting ranks", e))? {
                continue;
            }
            let peer = self.peers[door.expected[missing].from as usize].peer().to_string();
            let reason = format!(
                "it did not connect within {:.1?}; {} strangers were turned away",
                self.config.timeout,
                door.strangers.total()
            );
            return Err(Error::Handshake { peer, reason });
        }
        Ok(door.taken.into_iter().flatten().collect())
    }
}

/// Of the two links between two ranks, is it the one whose streams are one more?
fn has_control(from: usize, to: usize) -> bool {
    from < to
}

/// Is this a failure of our own, which no other attempt will mend?
fn is_ours(error: &io::Error) -> bool {
    let ours = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EACCES, Errno::EPERM];
    error.kind() == ErrorKind::PermissionDenied
        || ours.iter().any(|&errno| error.raw_os_error() == Some(errno as i32))
}

fn open(
    peer: &PeerInfo,
    role: Role,
    until: Instant,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<Socket> {
    match (role, peer.tcp) {
        (Role::Shm, _) => connect_unix(&peer.unix),
        (Role::Tcp, Some(address)) => connect_tcp(address, until, cancelled),
        (Role::Tcp, None) | (Role::Store, _) => Err(ErrorKind::AddrNotAvailable.into()),
    }
}
