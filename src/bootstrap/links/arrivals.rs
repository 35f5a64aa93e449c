//! The connections that have come to the port of a process: those whose hello is on its way, and
//! the streams that no link has taken.
//! Law: both lists are bounded. A stream is kept until its link takes it, however late its
//! communicator is made here, unless thousands of others wait too.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use crate::bootstrap::auth::acceptor::{PendingPeer, to_displace};
use crate::bootstrap::auth::hello::{HelloBytes, LinkStream};
use crate::bootstrap::auth::rejected::{Rejection, RejectionLog};
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, OpeningKey, SealingKey};

/// The most streams that no link has asked for yet. Only processes of the job can send any, or
/// whoever repeats what they have sent.
const MAX_UNCLAIMED: usize = 16 << 10;

/// A stream that is open, with the keys of both directions on an encrypted link.
#[derive(Debug)]
pub(super) struct LinkConnection {
    pub(super) stream: Arc<TcpStream>,
    pub(super) sealer: Option<SealingKey>,
    pub(super) opener: Option<OpeningKey>,
}

impl LinkConnection {
    pub(super) fn new(socket: Socket, keys: Option<AeadKeys>) -> Self {
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        Self { stream: Arc::new(socket.into()), sealer, opener }
    }
}

/// A connection whose hello has come in part.
pub(super) struct Pending {
    pub(super) socket: Socket,
    pub(super) hello: HelloBytes,
    pub(super) filled: usize,
    pub(super) peer: PendingPeer,
}

/// The connections that have come.
pub(super) struct Arrivals {
    pub(super) pending: BTreeMap<u64, Pending>,
    /// The number of the next connection.
    pub(super) next: u64,
    /// Streams that no link has taken, in the order in which they came.
    pub(super) unclaimed: Vec<(LinkStream, LinkConnection)>,
    /// Streams that were kept so far.
    pub(super) kept: u64,
    /// Until when no connection is accepted.
    pub(super) rests_until: Option<Instant>,
    pub(super) rejections: RejectionLog,
}

impl Arrivals {
    /// No connection; the first has the number `next`.
    pub(super) fn new(rejections: RejectionLog, next: u64) -> Self {
        let (pending, unclaimed) = (BTreeMap::new(), Vec::new());
        Self { pending, next, unclaimed, kept: 0, rests_until: None, rejections }
    }

    /// Keeps a stream until its link takes it.
    pub(super) fn keep(
        &mut self,
        stream: LinkStream,
        link: LinkConnection,
    ) -> Result<(), Rejection> {
        if self.unclaimed.iter().any(|(other, _)| *other == stream) {
            return Err(Rejection::Unexpected);
        }
        if self.unclaimed.len() >= MAX_UNCLAIMED {
            // A stream whose sender has ended is the least likely to be asked for.
            let ended = |(_, link): &(LinkStream, LinkConnection)| {
                let mut end =
                    [PollFd::new(link.stream.as_fd(), PollFlags::from_bits_retain(POLLRDHUP))];
                poll(&mut end, PollTimeout::ZERO).is_ok_and(|ended| ended > 0)
            };
            let at = self.unclaimed.iter().position(ended).ok_or(Rejection::Unexpected)?;
            self.unclaimed.remove(at);
        }
        self.unclaimed.push((stream, link));
        self.kept += 1;
        Ok(())
    }

    pub(super) fn claim(&mut self, stream: LinkStream) -> Option<LinkConnection> {
        let at = self.unclaimed.iter().position(|(other, _)| *other == stream)?;
        Some(self.unclaimed.remove(at).1)
    }

    /// Rejects one pending connection, if there is any.
    pub(super) fn displace_one(&mut self, now: Instant) {
        let peers = self.pending.iter().map(|(&number, pending)| (number, pending.peer));
        if let Some(number) = to_displace(peers) {
            self.pending.remove(&number);
            self.rejections.record(Rejection::Displaced, now);
        }
    }
}
