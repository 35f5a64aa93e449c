//! The connections that have come to the port of a process: those whose hello is on its way, and
//! the streams that no link has taken.
//! Law: both lists are bounded. A stream is kept until its link takes it, however late its
//! communicator is made here, unless thousands of others wait too. Of each stream at most the first
//! connection and the newest later one are kept.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use crate::bootstrap::auth::acceptor::{PendingPeer, to_displace};
use crate::bootstrap::auth::hello::{Hello, HelloBytes, LinkStream};
use crate::bootstrap::auth::rejected::{Rejection, RejectionLog};
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, OpeningKey, SealingKey};
use crate::transport::tcp::NewerStream;

/// The most streams that no link has asked for yet. Only processes of the job can send any, or
/// whoever repeats what they have sent.
const MAX_UNCLAIMED: usize = 16 << 10;

/// A stream that is open, with the keys of both directions on an encrypted link.
#[derive(Debug)]
pub(super) struct LinkConnection {
    pub(super) stream: Arc<TcpStream>,
    pub(super) sealer: Option<SealingKey>,
    pub(super) opener: Option<OpeningKey>,
    /// The hello of a connection that takes the place of the stream's earlier one, and its bytes.
    pub(super) resumes: Option<Box<(Hello, HelloBytes)>>,
}

impl LinkConnection {
    pub(super) fn new(socket: Socket, keys: Option<AeadKeys>) -> Self {
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        Self { stream: Arc::new(socket.into()), sealer, opener, resumes: None }
    }

    /// The newer connection of a stream, and the content of its hello; `None` for the first one.
    pub(super) fn into_newer(self) -> Option<(NewerStream, Hello)> {
        let (hello, bytes) = *self.resumes?;
        // Nobody else has the connection of a stream that no link has taken.
        let stream = Arc::into_inner(self.stream)?;
        let (generation, bytes) = (hello.generation, bytes.to_vec());
        Some((NewerStream { stream, generation, hello: bytes }, hello))
    }

    /// The number of the connection among those of its stream.
    pub(super) fn generation(&self) -> u32 {
        self.resumes.as_ref().map_or(0, |resumes| resumes.0.generation)
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
        // The first connection may hold bytes that the dialler does not keep any more, since the
        // system has acknowledged them. A later one holds none before it was answered.
        let is_first = link.generation() == 0;
        let mut same = self.unclaimed.iter_mut().filter(|(other, _)| *other == stream);
        if let Some((_, known)) = same.find(|(_, known)| (known.generation() == 0) == is_first) {
            // The dialler has given the older one up.
            if known.generation() >= link.generation() {
                return Err(Rejection::Unexpected);
            }
            *known = link;
            self.kept += 1;
            return Ok(());
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

    /// Gives the stream to its link, which has its connection number `after`, if any: the first
    /// connection before a later one, whose dialler counts on all that came on the first.
    pub(super) fn claim(
        &mut self,
        stream: LinkStream,
        after: Option<u32>,
    ) -> Option<LinkConnection> {
        if let Some(after) = after {
            // An older connection has been given up at both ends.
            self.unclaimed.retain(|(other, link)| *other != stream || link.generation() > after);
        }
        let same = self.unclaimed.iter().enumerate().filter(|(_, (other, _))| *other == stream);
        let (at, _) = same.min_by_key(|(_, (_, link))| link.generation())?;
        Some(self.unclaimed.remove(at).1)
    }

    /// Drops all connections of the stream.
    pub(super) fn forget(&mut self, stream: LinkStream) {
        self.unclaimed.retain(|(other, _)| *other != stream);
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
