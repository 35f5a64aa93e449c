//! The acceptor of control channels: one poll loop accepts connections, runs their handshakes side
//! by side, and keeps the expected streams. Streams of links, which come early where the other rank
//! has connected first, are kept for the port.
//! Law: an unknown connection takes one place in a bounded list, for two seconds at most, and
//! nothing else.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::acceptor::{Handshake, PendingPeer, StreamKeys, to_displace};
use super::handshake::{StreamId, StreamRole};
use super::hello::MAGIC;
use super::keys::Keys;
use super::rejected::{Rejection, RejectionLog};
use crate::bootstrap::socket::{Accepted, accept, pending_limit, same_user, wait};
use crate::sync::Instant;

/// The most connections that may be in their handshake; in large worlds the limit is twice the
/// number of expected streams.
const BASE_PENDING_LIMIT: usize = 64;
/// Connections accepted from one listener before pending handshakes go on.
const MAX_ACCEPTS_PER_POLL: usize = 32;

/// Accepts the expected streams from the listeners of a rank.
pub(crate) struct ControlListener<'a> {
    pub(crate) expected: &'a [StreamId],
    keys: &'a Keys,
    pub(crate) accepted: Vec<Option<AcceptedStream>>,
    /// Streams of links, whose ranks have connected before this one.
    early: Vec<EarlyStream>,
    pending: Vec<PendingConnection>,
    max_pending: usize,
    pub(crate) rejections: RejectionLog,
}

/// A stream whose handshake has ended.
pub(crate) type AcceptedStream = (Socket, StreamKeys);

/// A connection that is, or may be, the stream of a link.
#[derive(Debug)]
pub(crate) struct EarlyStream {
    pub(crate) socket: Socket,
    /// The number of bytes of the hello's magic that have been read.
    pub(crate) read: usize,
    peer: PendingPeer,
}

/// An accepted connection in its handshake.
struct PendingConnection {
    socket: Socket,
    role: StreamRole,
    handshake: Handshake,
}

impl<'a> ControlListener<'a> {
    /// Expects these streams and no others; this rank dials `dialled` streams at the same time,
    /// which need descriptors too.
    pub(crate) fn new(expected: &'a [StreamId], keys: &'a Keys, dialled: usize) -> Self {
        let accepted = expected.iter().map(|_| None).collect();
        let wanted = BASE_PENDING_LIMIT.max(2 * expected.len());
        let max_pending = pending_limit(wanted, expected.len() + dialled);
        let rank = expected.first().map_or(0, |stream| stream.to);
        let rejections = RejectionLog::new(format!("rank {rank}"));
        let (pending, early) = (Vec::new(), Vec::new());
        Self { expected, keys, accepted, early, pending, max_pending, rejections }
    }

    /// Waits for events and processes them; false if the deadline has come or the dialler has
    /// failed.
    pub(crate) fn poll_once(
        &mut self,
        listeners: &[(&Socket, StreamRole)],
        cancelled: &UnixStream,
        deadline: Instant,
    ) -> io::Result<bool> {
        let reading = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![reading(cancelled.as_fd())];
        fds.extend(self.pending.iter().map(|it| reading(it.socket.as_fd())));
        fds.extend(listeners.iter().map(|(listener, _)| reading(listener.as_fd())));
        let soonest = self.pending.iter().map(|it| it.handshake.peer.deadline).min();
        wait(&mut fds, Some(soonest.map_or(deadline, |soonest| soonest.min(deadline))))?;
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        let now = Instant::now();
        if ready[0] || now >= deadline {
            return Ok(false);
        }
        let mut ready = ready[1..].iter().copied();
        for connection in std::mem::take(&mut self.pending) {
            match ready.next() {
                Some(true) => self.advance(connection),
                _ if connection.handshake.peer.deadline <= now => {
                    self.rejections.record(Rejection::TimedOut, now);
                }
                _ => self.pending.push(connection),
            }
        }
        for (&(listener, role), is_ready) in listeners.iter().zip(ready) {
            for _ in 0..if is_ready { MAX_ACCEPTS_PER_POLL } else { 0 } {
                if !self.accept_one(listener, role)? {
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Accepts one connection; false if the backlog is empty.
    fn accept_one(&mut self, listener: &Socket, role: StreamRole) -> io::Result<bool> {
        let socket = match accept(listener)? {
            Accepted::Connection(socket) => socket,
            Accepted::Nothing => return Ok(false),
            // Displacing a pending connection frees a descriptor. If there is none, the lack is
            // this process's own.
            Accepted::NoDescriptor(_) if self.displace_one(Rejection::NoDescriptor) => {
                return Ok(true);
            }
            Accepted::NoDescriptor(error) => return Err(error),
        };
        let now = Instant::now();
        if role == StreamRole::Shm && same_user(&socket).is_err() {
            self.rejections.record(Rejection::OtherUser, now);
            return Ok(true);
        }
        if self.pending.len() >= self.max_pending {
            self.displace_one(Rejection::Displaced);
        }
        let handshake = Handshake::new(&socket, now);
        self.pending.push(PendingConnection { socket, role, handshake });
        Ok(true)
    }

    /// Rejects one pending connection; false if there is none.
    fn displace_one(&mut self, reason: Rejection) -> bool {
        let handshakes = self.pending.iter().map(|it| &it.handshake).enumerate();
        let Some(index) = Handshake::to_displace(handshakes) else { return false };
        self.pending.swap_remove(index);
        self.rejections.record(reason, Instant::now());
        true
    }

    /// Continues the handshake of a connection that has sent something, and drops a rejected one.
    fn advance(&mut self, mut connection: PendingConnection) {
        let expected_for = |stream: &StreamId| {
            // A dialler that differs in encryption alone is answered, so that it learns the reason.
            let own = [stream.encrypted, !stream.encrypted]
                .map(|encrypted| StreamId { encrypted, ..*stream });
            let own = own.into_iter().find(|own| self.missing_index(own).is_some());
            own.filter(|_| stream.role == connection.role)
        };
        match connection.handshake.receive(&connection.socket, self.keys, expected_for) {
            Ok(None) => self.pending.push(connection),
            Ok(Some((stream, stream_keys))) => {
                let PendingConnection { socket, role, .. } = connection;
                let nodelay = role == StreamRole::Tcp && socket.set_tcp_nodelay(true).is_err();
                if let Some(index) = self.missing_index(&stream).filter(|_| !nodelay) {
                    self.accepted[index] = Some((socket, stream_keys));
                }
            }
            Err(Rejection::LinkStream) => {
                if self.early.len() >= self.max_pending
                    && let peers = self.early.iter().map(|early| early.peer).enumerate()
                    && let Some(index) = to_displace(peers)
                {
                    self.early.swap_remove(index);
                    self.rejections.record(Rejection::Displaced, Instant::now());
                }
                let PendingConnection { socket, handshake, .. } = connection;
                self.early.push(EarlyStream { socket, read: MAGIC.len(), peer: handshake.peer });
            }
            Err(reason) => self.rejections.record(reason, Instant::now()),
        }
    }

    /// The accepted streams, and those that are or may be of links.
    pub(crate) fn finish(self) -> (Vec<AcceptedStream>, Vec<EarlyStream>) {
        let mut early = self.early;
        for PendingConnection { socket, role, handshake } in self.pending {
            if let (StreamRole::Tcp, Some(read)) = (role, handshake.hello_bytes()) {
                early.push(EarlyStream { socket, read, peer: handshake.peer });
            }
        }
        (self.accepted.into_iter().flatten().collect(), early)
    }

    /// Index of an expected stream that was not accepted yet.
    fn missing_index(&self, stream: &StreamId) -> Option<usize> {
        let index = self.expected.iter().position(|expected| expected == stream)?;
        self.accepted[index].is_none().then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Dialler, MESSAGE_LEN};
    use super::*;
    use crate::bootstrap::socket::{try_recv, try_send};
    use crate::config::Secret;

    /// True if the listener accepts a dialler of `stream`.
    fn dial(listener: &mut ControlListener<'_>, keys: &Keys, stream: StreamId) -> bool {
        let (dialler, socket) =
            Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let handshake = Handshake::new(&socket, Instant::now());
        listener.pending.push(PendingConnection { socket, role: StreamRole::Shm, handshake });
        let (mut state, mut outgoing) = Dialler::new(keys, stream, [5; 32]);
        loop {
            try_send(&dialler, &outgoing).unwrap();
            let it = listener.pending.pop().unwrap();
            listener.advance(it);
            let mut bytes = [0; MESSAGE_LEN];
            if !matches!(try_recv(&dialler, &mut bytes), Ok(Some(MESSAGE_LEN))) {
                return false;
            }
            match state.receive(keys, &bytes) {
                Ok(Some(next)) => outgoing = next,
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// A stream of a link may come, in any part of its first bytes, while this rank connects.
    #[test]
    fn streams_of_links_are_kept_with_what_has_been_read_of_them() {
        let keys = Keys::new(None, 7);
        let mut listener = ControlListener::new(&[], &keys, 0);
        let mut peers = Vec::new();
        let tcp = StreamRole::Tcp;
        for (role, bytes) in [
            (tcp, &[&MAGIC[..], &[7; 5]].concat()[..]),
            (tcp, &MAGIC[..3]),
            (tcp, b""),
            (tcp, b"RRH"),
            (tcp, b"GET / HTTP/1.1"),
            (StreamRole::Shm, &MAGIC[..3]),
        ] {
            let (peer, socket) =
                Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
            let handshake = Handshake::new(&socket, Instant::now());
            try_send(&peer, bytes).unwrap();
            listener.advance(PendingConnection { socket, role, handshake });
            peers.push(peer);
        }
        let (accepted, early) = listener.finish();
        assert!(accepted.is_empty());
        let read: Vec<_> = early.iter().map(|stream| stream.read).collect();
        assert_eq!(read, [MAGIC.len(), 3, 0]);
        let mut rest = [0; 5];
        assert!(matches!(try_recv(&early[0].socket, &mut rest), Ok(Some(5))) && rest == [7; 5]);
    }

    #[test]
    fn each_expected_stream_is_accepted_once_and_no_other() {
        let role = StreamRole::Shm;
        let (job, encrypted) = (7, false);
        let right = StreamId { job, epoch: 0, from: 1, to: 0, role, encrypted };
        let (expected, secret) = ([right], Secret::from(&[3; 32]));
        let keys = Keys::new(Some(&secret), right.job);
        let mut listener = ControlListener::new(&expected, &keys, 0);
        let wrong = [
            StreamId { job: 8, ..right },
            StreamId { epoch: 1, ..right },
            StreamId { from: 2, ..right },
            StreamId { to: 1, ..right },
            StreamId { role: StreamRole::Tcp, ..right },
            StreamId { role: StreamRole::Store, ..right },
        ];
        for wrong in wrong {
            assert!(!dial(&mut listener, &keys, wrong), "{wrong:?}");
        }
        assert_eq!(listener.rejections.total(), wrong.len() as u64);
        let outsider = Keys::new(Some(&Secret::from(&[4; 32])), right.job);
        let encrypted = StreamId { encrypted: true, ..right };
        for (keys, stream) in [(&outsider, right), (&Keys::new(None, 7), right), (&keys, encrypted)]
        {
            assert!(!dial(&mut listener, keys, stream));
            // The next read notices that the peer has closed.
            let it = listener.pending.pop().unwrap();
            listener.advance(it);
        }
        assert!(listener.accepted[0].is_none() && listener.pending.is_empty());
        assert!(dial(&mut listener, &keys, right));
        assert!(listener.accepted[0].is_some());
        assert!(!dial(&mut listener, &keys, right), "a second one is refused");
    }
}
