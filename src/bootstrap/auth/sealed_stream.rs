//! Encrypted streams of bytes between two processes that share a secret and are no ranks: a
//! launcher and its agents on other hosts.
//! Law: an unauthenticated connection takes one place in a bounded list, for two seconds at most;
//! reading and writing never wait.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::acceptor::{Handshake, dial_handshake};
use super::handshake::{StreamId, StreamRole};
use super::keys::Keys;
use super::rejected::Rejection;
use super::wrong_secrets::{WrongSecrets, has_closed};
use crate::bootstrap::dial::connect_tcp;
use crate::bootstrap::listen::listen_at_free_port;
use crate::bootstrap::socket::{Accepted, accept, listen_tcp, try_recv, try_send, wait};
use crate::config::{Config, SECRET_LEN, Secret};
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, TAG};

/// The most bytes of a piece, without its length and its tag.
const MAX_PIECE: usize = 16 << 10;
/// Bytes after which one read ends, so that a fast sender fills no memory.
const MAX_READ: usize = 1 << 20;
/// Bytes of the length before a piece.
const LENGTH: usize = 2;
/// The time without an acknowledgement after which a connection is broken, so that its client makes
/// another one.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(3);
/// The pause after a connection for which there was no descriptor.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(200);
/// The most connections in their handshake.
const MAX_PENDING: usize = 64;

/// The stream of the client with this number.
pub(super) fn identity(number: u32) -> StreamId {
    let role = StreamRole::Launcher;
    StreamId { job: 0, epoch: 0, from: number, to: 0, role, encrypted: true }
}

pub(super) fn keys(secret: &[u8; SECRET_LEN]) -> Keys {
    Keys::new(Some(&Secret::from(secret)), 0)
}

/// Accepts the streams of clients that know a secret.
pub struct SealedListener {
    sockets: Vec<Socket>,
    port: u16,
    keys: Keys,
    pending: Vec<(Socket, Handshake)>,
    wrong_secrets: WrongSecrets,
    report: Box<dyn FnMut(IpAddr) + Send>,
}

impl SealedListener {
    /// Listens at all addresses of this host, at one port, of `RINGREDUCE_PORT_RANGE` where
    /// `config` has it.
    ///
    /// # Errors
    /// The system's answer.
    pub fn new(secret: &[u8; SECRET_LEN], config: &Config) -> io::Result<Self> {
        let v4 = listen_at_free_port(Ipv4Addr::UNSPECIFIED.into(), config, listen_tcp);
        let (first, port) = match v4 {
            Ok(socket) => port_of(socket)?,
            // A host without IPv4.
            Err(_) => {
                port_of(listen_at_free_port(Ipv6Addr::UNSPECIFIED.into(), config, listen_tcp)?)?
            }
        };
        let also = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        let sockets = [Some(first), listen_tcp(also).ok()].into_iter().flatten().collect();
        let (wrong_secrets, report) = (WrongSecrets::default(), Box::new(|_| {}));
        Ok(Self { sockets, port, keys: keys(secret), pending: vec![], wrong_secrets, report })
    }

    /// Calls `report` with the address of clients that have another secret, once for each address.
    pub fn report_wrong_secrets(&mut self, report: impl FnMut(IpAddr) + Send + 'static) {
        self.report = Box::new(report);
    }

    /// The port of all addresses.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until a client has proved that it knows the secret: its number, which clients give
    /// themselves, and its stream. None once `cancelled` can be read.
    ///
    /// # Errors
    /// If the system can't wait.
    pub fn accept(&mut self, cancelled: BorrowedFd<'_>) -> io::Result<Option<(u32, SealedStream)>> {
        loop {
            let mut fds = vec![reading(cancelled)];
            fds.extend(self.pending.iter().map(|(socket, _)| reading(socket.as_fd())));
            fds.extend(self.sockets.iter().map(|socket| reading(socket.as_fd())));
            let soonest = self.pending.iter().map(|(_, it)| it.peer.deadline).min();
            wait(&mut fds, soonest)?;
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
            drop(fds);
            if ready[0] {
                return Ok(None);
            }
            let mut ready = ready[1..].iter().copied();
            let (now, mut opened) = (Instant::now(), None);
            for (socket, handshake) in std::mem::take(&mut self.pending) {
                let is_ready = ready.next() == Some(true);
                if opened.is_none() && is_ready {
                    opened = self.advance(socket, handshake);
                } else if is_ready || handshake.peer.deadline > now {
                    self.pending.push((socket, handshake));
                }
            }
            if opened.is_some() {
                return Ok(opened);
            }
            for (at, _) in ready.enumerate().filter(|(_, is_ready)| *is_ready) {
                if self.accept_one(at, now).is_err() {
                    // No descriptor is left: others may give some back.
                    let mut fds = [reading(cancelled)];
                    wait(&mut fds, Some(now + DESCRIPTOR_PAUSE))?;
                }
            }
        }
    }

    fn accept_one(&mut self, at: usize, now: Instant) -> io::Result<()> {
        let socket = match accept(&self.sockets[at])? {
            Accepted::Connection(socket) => socket,
            Accepted::Nothing => return Ok(()),
            Accepted::NoDescriptor(_) if !self.pending.is_empty() => {
                self.displace_one();
                return Ok(());
            }
            Accepted::NoDescriptor(error) => return Err(error),
        };
        if self.pending.len() >= MAX_PENDING {
            self.displace_one();
        }
        let handshake = Handshake::new(&socket, now);
        self.pending.push((socket, handshake));
        Ok(())
    }

    fn displace_one(&mut self) {
        let handshakes = self.pending.iter().map(|(_, handshake)| handshake).enumerate();
        if let Some(at) = Handshake::to_displace(handshakes) {
            self.pending.swap_remove(at);
        }
    }

    /// Goes on with a handshake; a connection that is rejected is dropped.
    fn advance(&mut self, socket: Socket, mut handshake: Handshake) -> Option<(u32, SealedStream)> {
        let expected_for = |stream: &StreamId| Some(identity(stream.from));
        let peer = handshake.peer_ip();
        let gave_up = !handshake.peer.has_offered() && has_closed(&socket);
        match handshake.receive(&socket, &self.keys, expected_for) {
            Ok(Some((stream, keys))) => {
                peer.into_iter().for_each(|peer| self.wrong_secrets.forgive(peer));
                let _ = socket.set_tcp_nodelay(true);
                Some((stream.from, SealedStream::new(socket, keys?.aead)))
            }
            Ok(None) => {
                self.pending.push((socket, handshake));
                None
            }
            Err(rejection) => {
                tracing::debug!("rejected a connection of an agent: it {rejection}");
                let differs = match rejection {
                    // One that had closed before it was answered has not seen the answer.
                    Rejection::ClosedAfterAnswer => !gave_up,
                    other => other == Rejection::BadTag,
                };
                if differs
                    && let Some(peer) = peer
                    && self.wrong_secrets.record(peer)
                {
                    (self.report)(peer);
                }
                None
            }
        }
    }
}

fn reading(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

fn port_of(socket: Socket) -> io::Result<(Socket, u16)> {
    let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket, bound.port()))
}

/// An encrypted stream. Each piece is its number of bytes (`u16`, little-endian) and the sealed
/// bytes with their tag.
pub struct SealedStream {
    socket: Socket,
    keys: Box<AeadKeys>,
    /// Bytes that came, up to the end of the last whole piece.
    incoming: Vec<u8>,
    /// The rest of a sealed piece that the socket has not taken.
    outgoing: Vec<u8>,
}

impl SealedStream {
    fn new(socket: Socket, keys: AeadKeys) -> Self {
        // Without it a broken connection is noticed later.
        let _ = socket.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN));
        Self { socket, keys: Box::new(keys), incoming: vec![], outgoing: vec![] }
    }

    /// Connects to a [`SealedListener`] as client `number`.
    ///
    /// # Errors
    /// The system's answer; [`io::ErrorKind::InvalidData`] if the other side does not know the
    /// secret.
    pub fn dial(
        address: SocketAddr,
        secret: &[u8; SECRET_LEN],
        number: u32,
        deadline: Instant,
    ) -> io::Result<Self> {
        let socket = connect_tcp(address, deadline, &|| false)?;
        let stream = dial_handshake(&socket, &keys(secret), identity(number), deadline, &|| false)?;
        let keys = stream.ok_or(io::ErrorKind::InvalidData)?.aead;
        Ok(Self::new(socket, keys))
    }

    /// The descriptor to wait for, to read and to write.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Appends what has come to `bytes`, or a part of it; false once the other side has closed the
    /// stream.
    ///
    /// # Errors
    /// The system's answer; [`io::ErrorKind::InvalidData`] if a piece is forged.
    pub fn read(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let mut part = vec![0; 4 * MAX_PIECE];
        let is_open = loop {
            match try_recv(&self.socket, &mut part) {
                Ok(Some(0)) => break Ok(false),
                Ok(Some(length)) => self.incoming.extend_from_slice(&part[..length]),
                Ok(None) => break Ok(true),
                // The bytes that came before the error count.
                Err(error) => break Err(error),
            }
            if self.incoming.len() >= MAX_READ {
                break Ok(true);
            }
        };
        let mut taken = 0;
        while let Some(length) = self.incoming[taken..].first_chunk::<LENGTH>() {
            let (from, length) = (taken + LENGTH, usize::from(u16::from_le_bytes(*length)));
            let Some(piece) = self.incoming.get_mut(from..from + length + TAG) else { break };
            let forged = || io::Error::new(io::ErrorKind::InvalidData, "a piece is forged");
            self.keys.opener.open(piece).map_err(|_| forged())?;
            bytes.extend_from_slice(&piece[..length]);
            taken = from + length + TAG;
        }
        self.incoming.drain(..taken);
        is_open
    }

    /// True if the socket has not taken all that was written.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Seals and sends some of the bytes, and gives their number: 0 while the socket takes none.
    ///
    /// # Errors
    /// The system's answer.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while self.flush()? && taken < bytes.len() {
            let text = &bytes[taken..bytes.len().min(taken + MAX_PIECE)];
            self.outgoing.extend((text.len() as u16).to_le_bytes());
            let from = self.outgoing.len();
            self.outgoing.resize(from + text.len() + TAG, 0);
            let sealed = self.keys.sealer.seal_from(text, &mut self.outgoing[from..]);
            sealed.map_err(|fault| io::Error::other(format!("{fault:?}")))?;
            taken += text.len();
        }
        Ok(taken)
    }

    /// True if the socket has taken everything.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match try_send(&self.socket, &self.outgoing)? {
                Some(length) => drop(self.outgoing.drain(..length)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    const SECRET: [u8; SECRET_LEN] = [7; SECRET_LEN];

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn at(listener: &SealedListener) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, listener.port()).into()
    }

    #[test]
    fn bytes_pass_both_ways_as_they_were_and_encrypted() {
        let mut listener = SealedListener::new(&SECRET, &Config::default()).unwrap();
        let address = at(&listener);
        let dial = std::thread::spawn(move || SealedStream::dial(address, &SECRET, 3, soon()));
        let (open, _cancel) = UnixStream::pair().unwrap();
        let (number, mut there) = listener.accept(open.as_fd()).unwrap().unwrap();
        let mut here = dial.join().unwrap().unwrap();
        assert_eq!(number, 3);
        let text: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut got) = (0, vec![]);
        while got.len() < text.len() {
            sent += here.write(&text[sent..]).unwrap();
            assert!(there.read(&mut got).unwrap());
        }
        assert!(got == text && !here.has_unsent());
        there.write(b"answer").unwrap();
        drop(there);
        let mut answer = vec![];
        while here.read(&mut answer).unwrap() {}
        assert_eq!(answer, b"answer");
    }

    #[test]
    fn who_does_not_know_the_secret_is_rejected_and_delays_nobody() {
        let mut listener = SealedListener::new(&SECRET, &Config::default()).unwrap();
        let address = at(&listener);
        let mut others: Vec<_> =
            (0..2 * MAX_PENDING).map(|_| TcpStream::connect(address).unwrap()).collect();
        others[0].write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let dial = std::thread::spawn(move || {
            let wrong = SealedStream::dial(address, &[8; SECRET_LEN], 3, soon());
            let refused = wrong.err().map(|error| error.to_string());
            (refused, SealedStream::dial(address, &SECRET, 4, soon()))
        });
        let (open, _cancel) = UnixStream::pair().unwrap();
        let (number, _stream) = listener.accept(open.as_fd()).unwrap().unwrap();
        let (refused, right) = dial.join().unwrap();
        assert!(refused.is_some() && right.is_ok(), "{refused:?}");
        assert_eq!(number, 4);
    }

    #[test]
    fn a_changed_byte_ends_the_stream() {
        let (one, other) =
            Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let key = [1; SECRET_LEN];
        let [mut here, raw] = [one, other]
            .map(|socket| SealedStream::new(socket, AeadKeys::new(&key, &key).unwrap()));
        here.write(b"text").unwrap();
        let mut bytes = [0; 64];
        let length = try_recv(&raw.socket, &mut bytes).unwrap().unwrap();
        bytes[LENGTH] ^= 1;
        let mut there = raw;
        there.incoming = bytes[..length].to_vec();
        assert_eq!(there.read(&mut vec![]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_cancelled_listener_accepts_no_more() {
        let mut listener = SealedListener::new(&SECRET, &Config::default()).unwrap();
        let (cancelled, cancel) = UnixStream::pair().unwrap();
        drop(cancel);
        assert!(listener.accept(cancelled.as_fd()).unwrap().is_none());
    }
}
