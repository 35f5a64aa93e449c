//! The rendezvous store while links are opened. A rank that can't open its links publishes the
//! cause there, so that every rank reports the first cause and not the neighbour that closed a
//! connection.
//! Law: the first published failure counts; publishing and reading it take at most some
//! milliseconds.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::exchange::{LINKED, LINKED_TABLE, STORE_ENDED, StoreGather, encode_error, failure_key};
use super::kv::client::Store;
use super::kv::protocol::{Decoder, Encoder, FrameKind, StreamError};
use super::kv::server::Server;
use super::launcher_stream::LauncherStream;
use super::socket::wait;
use super::{Bootstrap, STORE_LINGER};
use crate::config::deadline_after;
use crate::error::{Error, Peer, Result};
use crate::sync::{Instant, WaitNotice};

/// How long reading a published failure may take. A failure is published before the connections of
/// its rank close.
const FAILURE_READ_TIMEOUT: Duration = Duration::from_millis(20);
/// How often a rank asks the store for a failure while it opens its links. A connection that closes
/// makes it ask at once.
pub(super) const FAILURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The store's client and, on rank 0, the store's server.
#[derive(Debug)]
pub(super) struct StartupStore {
    pub(super) store: Store,
    pub(super) server: Option<Server>,
    /// Until when all ranks must have opened their links.
    pub(super) deadline: Instant,
    /// True if the client is the launcher's stream, which all communicators of this process share.
    pub(super) is_shared: bool,
    /// This communicator's turn on that stream, until its ranks know how far they are apart.
    pub(super) turn: Option<LauncherStream>,
    /// True if another process serves the store, as rank 0.
    pub(super) is_of_rank_zero: bool,
    pub(super) job: u64,
}

impl StartupStore {
    /// Rank and error text of the first published failure.
    fn first_failure(&mut self) -> Option<(usize, String)> {
        let (key, _turn) = (failure_key(self.job), self.lock_stream()?);
        let bytes = self.store.get(&key, Instant::now() + FAILURE_READ_TIMEOUT).ok()??;
        decode_failure(&bytes).ok()
    }

    /// True if the store of rank 0 has ended. A launcher ends its ranks itself, and the process
    /// that made a unique id may be none of them.
    pub(super) fn has_ended(&self) -> bool {
        self.is_of_rank_zero && self.store.is_closed()
    }

    /// Takes a turn on the launcher's stream if that needs one; none while another communicator has
    /// it.
    fn lock_stream(&self) -> Option<Option<LauncherStream>> {
        let needs_turn = self.is_shared && self.turn.is_none();
        if needs_turn { LauncherStream::try_lock().map(Some) } else { Some(None) }
    }

    /// Publishes the failure of this rank; an earlier one stays.
    fn publish_failure(&mut self, peer: &Peer, error: &Error) {
        let (key, Some(_turn)) = (failure_key(self.job), self.lock_stream()) else { return };
        let reason = format!("it gave up: {error}");
        let of_links = Encoder::default().u32(peer.rank as u32).text(&reason).0;
        let as_error = Error::Handshake { peer: peer.to_string(), reason };
        let of_table = encode_error(&as_error, peer.rank);
        let until = Instant::now() + STORE_LINGER;
        for (key, value) in [(&*key, of_links), (LINKED_TABLE, of_table)] {
            // A rank that can't publish its failure still fails, and the others see its
            // connections close.
            if self.store.set_new(key, &value, until).is_err() {
                return;
            }
        }
    }

    /// Closes the store. The server ends once `expected` clients have come and all have left, or at
    /// `deadline`.
    fn close(mut self, expected: usize, deadline: Instant) {
        if !self.is_shared {
            self.store.send_unanswered(FrameKind::Leave, "", &[]);
        }
        drop(self.store);
        if let Some(server) = self.server {
            server.finish(expected, deadline);
        }
    }
}

pub(super) fn decode_failure(bytes: &[u8]) -> Result<(usize, String), StreamError> {
    let mut fields = Decoder(bytes);
    Ok((fields.u32()? as usize, fields.text()?))
}

/// Watches accepted streams while other ranks are still expected. A peer that closes a stream again
/// may have failed; then the store has the cause.
pub(super) struct FailureWatch<'a> {
    startup_store: Option<&'a mut StartupStore>,
    /// Number of closed streams at the last poll of the store, and its time.
    closed_streams: usize,
    polled_at: Instant,
}

impl<'a> FailureWatch<'a> {
    pub(super) fn new(startup_store: Option<&'a mut StartupStore>) -> Self {
        Self { startup_store, closed_streams: 0, polled_at: Instant::now() }
    }

    /// The failure of another rank, if one is known.
    pub(super) fn failure<'s>(
        &mut self,
        bootstrap: &Bootstrap,
        streams: impl Iterator<Item = &'s Socket>,
    ) -> Option<Error> {
        if self.startup_store.is_none() && !bootstrap.config.is_joiner {
            return None;
        }
        let flags = PollFlags::from_bits_retain(POLLRDHUP);
        let mut fds: Vec<_> = streams.map(|it| PollFd::new(it.as_fd(), flags)).collect();
        wait(&mut fds, Some(Instant::now())).ok()?;
        let closed_streams = fds.iter().filter(|fd| fd.any() != Some(false)).count();
        let Some(startup_store) = self.startup_store.as_mut() else {
            let reason = "it let this rank in no more, for another one was lost".to_string();
            return (closed_streams > 0)
                .then(|| Error::Handshake { peer: "a member".into(), reason });
        };
        let is_due = self.polled_at.elapsed() > FAILURE_POLL_INTERVAL;
        if closed_streams == self.closed_streams && !is_due && !startup_store.has_ended() {
            return None;
        }
        (self.closed_streams, self.polled_at) = (closed_streams, Instant::now());
        bootstrap.first_failure(startup_store)
    }
}

impl Bootstrap {
    /// The first failure that another rank has published, as an error of this rank, or the end of
    /// the store: rank 0 keeps it until all ranks have their links.
    fn first_failure(&self, startup_store: &mut StartupStore) -> Option<Error> {
        let published = startup_store.first_failure();
        let of_store = || startup_store.has_ended().then(|| (0, STORE_ENDED.to_string()));
        let (rank, reason) = published.or_else(of_store)?;
        let peer = self.peers.get(rank)?.peer().to_string();
        Some(Error::Handshake { peer, reason })
    }

    /// Waits until all ranks have their links. If a rank fails or ends before that, no rank's start
    /// succeeds, and all name that rank. A launcher ends all ranks itself, and another rendezvous
    /// may already use its stream.
    pub(crate) fn await_links(&mut self) -> Result<()> {
        let deadline = deadline_after(self.config.timeout);
        let Some(startup_store) = self.startup_store.as_mut().filter(|it| !it.is_shared) else {
            return Ok(());
        };
        let mut gather = StoreGather {
            store: &mut startup_store.store,
            server: startup_store.server.as_ref(),
            is_of_rank_zero: startup_store.is_of_rank_zero,
            rank: self.rank,
            size: self.peers.len(),
            deadline,
            topic: LINKED,
            process_table: None,
            listens_at: "",
            own_address: None,
            notice: WaitNotice::new(),
        };
        let linked = gather.publish(&[]).and_then(|_| gather.gather_all(Ok));
        linked.map(drop).map_err(|error| gather.explain(error, &self.peers[0]))
    }

    /// Closes the store once this rank has all its links.
    pub(crate) fn release_store(&mut self) {
        if let Some(startup_store) = self.startup_store.take() {
            let deadline = startup_store.deadline.max(Instant::now() + STORE_LINGER);
            startup_store.close(0, deadline);
        }
    }

    /// Publishes that this rank can't open its links. Returns the first cause, which may be another
    /// rank's.
    pub(crate) fn report_failure(&mut self, error: Error) -> Error {
        let Some(mut startup_store) = self.startup_store.take() else { return error };
        let is_local = matches!(error, Error::Exhausted { .. });
        let first_failure = if is_local { None } else { self.first_failure(&mut startup_store) };
        let error = first_failure.unwrap_or(error);
        startup_store.publish_failure(&self.peers[self.rank].peer(), &error);
        // Closed listeners tell the ranks that still dial this one.
        (self.unix, self.tcp) = (None, vec![]);
        startup_store.close(self.size(), Instant::now() + STORE_LINGER);
        error
    }
}
