//! The streams of links: the sender of a link dials its receiver, and every stream passes the
//! handshake. May touch: handshake, socket, peers.
//! Law: accepting runs beside dialling, so no order of ranks can deadlock; a stranger takes a place
//! in a bounded list for two seconds at most, and nothing else.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::Meeting;
use super::handshake::{HELLO, Identity, Stage};
use super::peers::{LinkKind, PeerInfo};
use super::socket::{
    connect_tcp, connect_unix, recv_exact, recv_now, same_user, send_all, send_now, wait,
};
use super::wire::Broken;
use crate::error::{Error, Result};

/// How long a caller may take for its part of the handshake.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many callers may be in their handshake beside those that are expected.
const MAX_CALLERS: usize = 64;
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
    /// One stream, to hand over memory with [`crate::link::shm`] and to notice the peer's death.
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
}

impl Meeting {
    /// Opens the streams of the links that this rank sends on (`dial`) and receives on (`accept`).
    /// All ranks call this with matching lists. The connections come in the order of the lists,
    /// first those of `dial`.
    ///
    /// # Errors
    /// [`Error::Handshake`] naming the peer that can't be reached or does not come in time.
    pub fn connect(&mut self, dial: &[PairKey], accept: &[PairKey]) -> Result<Vec<Connection>> {
        let until = Instant::now() + self.config.timeout;
        let meeting = &*self;
        let io = |error: io::Error| Error::io("connecting ranks", error);
        let (cancel, cancelled) = UnixStream::pair().map_err(io)?;
        let expected = meeting.streams_of(accept)?;
        let wanted = meeting.streams_of(dial)?;
        let (dialled, accepted) = thread::scope(|scope| {
            let thread = thread::Builder::new().name("ringreduce-accept".into());
            let accepting = || meeting.accept_all(&expected, &cancelled, until);
            let acceptor = thread.spawn_scoped(scope, accepting).map_err(io)?;
            let dialled: Result<Vec<_>> =
                wanted.iter().map(|stream| meeting.dial(stream, until)).collect();
            let dialled = dialled.inspect_err(|_| drop(cancel.shutdown(std::net::Shutdown::Both)));
            let accepted = acceptor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((dialled?, accepted?))
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
            let count = self.streams_per_link(kind) as u16;
            let (job, epoch, from, to) = (self.job, self.epoch, from as u32, to as u32);
            let stream = |index| Identity { job, epoch, from, to, kind, index, count };
            streams.extend((0..count).map(stream));
        }
        Ok(streams)
    }

    fn streams_per_link(&self, kind: LinkKind) -> usize {
        match kind {
            LinkKind::Shm => 1,
            LinkKind::Tcp => self.config.tcp_sockets,
        }
    }

    fn bundle(
        &self,
        pair: PairKey,
        sockets: &mut impl Iterator<Item = Socket>,
    ) -> Result<Connection> {
        let kind = self.link_kind(pair.from, pair.to);
        let mut mine: Vec<Socket> = sockets.take(self.streams_per_link(kind)).collect();
        for socket in &mine {
            socket.set_nonblocking(false).map_err(|e| Error::io("preparing a link", e))?;
        }
        let streams = match (kind, mine.pop()) {
            (LinkKind::Shm, Some(socket)) => Streams::Shm(socket.into()),
            (_, last) => Streams::Tcp(mine.into_iter().chain(last).map(TcpStream::from).collect()),
        };
        Ok(Connection { pair, streams })
    }

    /// One stream to the receiver of a link.
    fn dial(&self, stream: &Identity, until: Instant) -> Result<Socket> {
        let peer = &self.peers[stream.to as usize];
        let fail = |reason: String| Err(Error::Handshake { peer: peer.peer().to_string(), reason });
        loop {
            let error = match open(peer, stream.kind, until) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return fail("it refuses connections; has it ended?".into());
                }
                Err(error) => error,
                Ok(socket) => match offer(&socket, stream, until) {
                    Ok(()) => return Ok(socket),
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        return fail(error.to_string());
                    }
                    Err(error) => error,
                },
            };
            if Instant::now() + PAUSE >= until {
                return fail(format!(
                    "no connection within {:.1?} ({error}). RINGREDUCE_TIMEOUT sets how long to \
                     wait, RINGREDUCE_IFNAME which network to use",
                    self.config.timeout
                ));
            }
            thread::sleep(PAUSE);
        }
    }

    /// The streams `expected`, from whoever dials them.
    fn accept_all(
        &self,
        expected: &[Identity],
        cancelled: &UnixStream,
        until: Instant,
    ) -> Result<Vec<Socket>> {
        let mut door = Door {
            expected,
            taken: expected.iter().map(|_| None).collect(),
            callers: Vec::new(),
            strangers: 0,
        };
        let unix = self.unix.as_ref().map(|listener| (listener, LinkKind::Shm));
        let tcp = self.tcp.as_ref().map(|listener| (listener, LinkKind::Tcp));
        let listeners: Vec<_> = unix.into_iter().chain(tcp).collect();
        while let Some(missing) = door.taken.iter().position(Option::is_none) {
            let turn = door.turn(&listeners, cancelled, until);
            if turn.map_err(|e| Error::io("accepting ranks", e))? {
                continue;
            }
            let peer = self.peers[expected[missing].from as usize].peer().to_string();
            let reason = format!(
                "it did not connect within {:.1?}; {} strangers were turned away",
                self.config.timeout, door.strangers
            );
            return Err(Error::Handshake { peer, reason });
        }
        Ok(door.taken.into_iter().flatten().collect())
    }
}

fn open(peer: &PeerInfo, kind: LinkKind, until: Instant) -> io::Result<Socket> {
    match (kind, peer.tcp) {
        (LinkKind::Shm, _) => connect_unix(&peer.unix),
        (LinkKind::Tcp, Some(address)) => connect_tcp(address, until),
        (LinkKind::Tcp, None) => Err(ErrorKind::AddrNotAvailable.into()),
    }
}

/// The dialler's part of the handshake; [`ErrorKind::InvalidData`] if the other end is wrong.
fn offer(socket: &Socket, stream: &Identity, until: Instant) -> io::Result<()> {
    for (say, hear) in [(Stage::Offer, Stage::Answer), (Stage::Confirm, Stage::Welcome)] {
        send_all(socket, &stream.encode(say), until)?;
        let mut bytes = [0; HELLO];
        recv_exact(socket, &mut bytes, until)?;
        let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
        match Identity::decode(&bytes, hear) {
            Ok(answer) if answer == *stream => {}
            Ok(answer) => return Err(invalid(format!("wanted {stream:?}, found {answer:?}"))),
            Err(Broken::Closed) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(Broken::Garbage(text)) => return Err(invalid(text)),
        }
    }
    Ok(())
}

/// Who knocks, and who was let in.
struct Door<'a> {
    expected: &'a [Identity],
    taken: Vec<Option<Socket>>,
    callers: Vec<Caller>,
    strangers: usize,
}

/// A connection in its handshake.
struct Caller {
    socket: Socket,
    kind: LinkKind,
    stage: Stage,
    bytes: [u8; HELLO],
    filled: usize,
    until: Instant,
}

impl Door<'_> {
    /// Waits for news and deals with it; false when time is over or the dialling failed.
    fn turn(
        &mut self,
        listeners: &[(&Socket, LinkKind)],
        cancelled: &UnixStream,
        until: Instant,
    ) -> io::Result<bool> {
        let reading = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![reading(cancelled.as_fd())];
        fds.extend(self.callers.iter().map(|caller| reading(caller.socket.as_fd())));
        fds.extend(listeners.iter().map(|(listener, _)| reading(listener.as_fd())));
        let soonest = self.callers.iter().map(|caller| caller.until).min();
        wait(&mut fds, Some(soonest.map_or(until, |soonest| soonest.min(until))))?;
        let news: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        if news[0] || Instant::now() >= until {
            return Ok(false);
        }
        let mut spoke = news[1..].iter().copied();
        let callers = std::mem::take(&mut self.callers);
        for caller in callers {
            let spoke = spoke.next().unwrap_or(false);
            match spoke {
                true => self.hear(caller),
                false if caller.until <= Instant::now() => self.strangers += 1,
                false => self.callers.push(caller),
            }
        }
        for (&(listener, kind), knocks) in listeners.iter().zip(spoke) {
            if knocks {
                self.welcome(listener, kind)?;
            }
        }
        Ok(true)
    }

    fn welcome(&mut self, listener: &Socket, kind: LinkKind) -> io::Result<()> {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => match error.kind() {
                // The caller has gone again.
                ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {
                    return Ok(());
                }
                _ => return Err(error),
            },
        };
        if kind == LinkKind::Shm && same_user(&socket).is_err() {
            self.strangers += 1;
            return Ok(());
        }
        if self.callers.len() >= MAX_CALLERS + 2 * self.expected.len() {
            self.callers.remove(0);
            self.strangers += 1;
        }
        let until = Instant::now() + PATIENCE;
        let (stage, bytes, filled) = (Stage::Offer, [0; HELLO], 0);
        self.callers.push(Caller { socket, kind, stage, bytes, filled, until });
        Ok(())
    }

    /// Goes on with a caller that has spoken; one that does not belong here is dropped.
    fn hear(&mut self, mut caller: Caller) {
        match recv_now(&caller.socket, &mut caller.bytes[caller.filled..]) {
            Ok(Some(count)) if count > 0 => caller.filled += count,
            Ok(None) => return self.callers.push(caller),
            _ => return self.strangers += 1,
        }
        if caller.filled < HELLO {
            return self.callers.push(caller);
        }
        caller.filled = 0;
        let place = match Identity::decode(&caller.bytes, caller.stage) {
            Ok(stream) if stream.kind == caller.kind => self.place_of(&stream),
            _ => None,
        };
        let answer = match caller.stage {
            Stage::Offer => Stage::Answer,
            _ => Stage::Welcome,
        };
        let said = place.is_some_and(|place| {
            let bytes = self.expected[place].encode(answer);
            matches!(send_now(&caller.socket, &bytes), Ok(Some(HELLO)))
        });
        match (place, answer) {
            (Some(place), Stage::Welcome) if said => {
                let Caller { socket, kind, .. } = caller;
                let nodelay = kind == LinkKind::Tcp && socket.set_tcp_nodelay(true).is_err();
                self.taken[place] = (!nodelay).then_some(socket);
            }
            (Some(_), _) if said => {
                caller.stage = Stage::Confirm;
                self.callers.push(caller);
            }
            _ => self.strangers += 1,
        }
    }

    /// The place of a stream that is expected and not there yet.
    fn place_of(&self, stream: &Identity) -> Option<usize> {
        let place = self.expected.iter().position(|expected| expected == stream)?;
        self.taken[place].is_none().then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the door says to `words`, one after the other.
    fn call(door: &mut Door<'_>, words: &[[u8; HELLO]]) -> Vec<Option<Identity>> {
        let (dialler, socket) =
            Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let (stage, bytes, filled) = (Stage::Offer, [0; HELLO], 0);
        let until = Instant::now() + PATIENCE;
        door.callers.push(Caller { socket, kind: LinkKind::Shm, stage, bytes, filled, until });
        let mut answers = Vec::new();
        for (word, stage) in words.iter().zip([Stage::Answer, Stage::Welcome]) {
            let _gone = send_now(&dialler, word);
            if let Some(caller) = door.callers.pop() {
                door.hear(caller);
            }
            let mut bytes = [0; HELLO];
            let heard = matches!(recv_now(&dialler, &mut bytes), Ok(Some(HELLO)));
            answers.push(Identity::decode(&bytes, stage).ok().filter(|_| heard));
        }
        answers
    }

    #[test]
    fn only_the_expected_come_in_and_only_once() {
        let kind = LinkKind::Shm;
        let right = Identity { job: 7, epoch: 0, from: 1, to: 0, kind, index: 0, count: 1 };
        let expected = [right];
        let mut door =
            Door { expected: &expected, taken: vec![None], callers: Vec::new(), strangers: 0 };
        let wrong = [
            Identity { job: 8, ..right },
            Identity { epoch: 1, ..right },
            Identity { from: 2, ..right },
            Identity { to: 1, ..right },
            Identity { index: 1, ..right },
            Identity { count: 2, ..right },
            Identity { kind: LinkKind::Tcp, ..right },
        ];
        for wrong in wrong {
            assert_eq!(call(&mut door, &[wrong.encode(Stage::Offer)]), [None]);
            // Nor may it change its mind.
            let words = [right.encode(Stage::Offer), wrong.encode(Stage::Confirm)];
            assert_eq!(call(&mut door, &words), [Some(right), None]);
        }
        assert_eq!(call(&mut door, &[right.encode(Stage::Confirm)]), [None]);
        assert_eq!(door.strangers, 15);
        assert!(door.taken[0].is_none() && door.callers.is_empty());
        let words = [right.encode(Stage::Offer), right.encode(Stage::Confirm)];
        assert_eq!(call(&mut door, &words), [Some(right), Some(right)]);
        assert!(door.taken[0].is_some());
        assert_eq!(call(&mut door, &words), [None, None], "a second one is refused");
    }
}
