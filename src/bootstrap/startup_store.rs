//! The rendezvous store while links are opened. A rank that can't open its links publishes the
//! cause there, so that every rank reports the first cause and not the neighbour that closed a
//! connection.
//! Law: the first published failure counts; publishing and reading it take at most some
//! milliseconds.

use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::time::Duration;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::exchange::failure_key;
use super::kv::client::Store;
use super::kv::protocol::{Decoder, Encoder, FrameKind, StreamError};
use super::kv::server::Server;
use super::socket::wait;
use super::{Bootstrap, LAUNCHER_STREAM, STORE_LINGER};
use crate::error::{Error, Result};
use crate::sync::Instant;

/// How long reading a published failure may take. A failure is published before the connections of
/// its rank close.
const FAILURE_READ_TIMEOUT: Duration = Duration::from_millis(20);
/// How often a rank asks the store for a failure while it opens its links. A connection that closes
/// makes it ask at once.
const FAILURE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The store's client and, on rank 0, the store's server.
#[derive(Debug)]
pub(super) struct StartupStore {
    pub(super) store: Store,
    pub(super) server: Option<Server>,
    /// Until when all ranks must have opened their links.
    pub(super) deadline: Instant,
    /// True if the client is the launcher's stream, which all communicators of this process share.
    pub(super) is_shared: bool,
    pub(super) job: u64,
}

impl StartupStore {
    /// Rank and error text of the first published failure.
    fn first_failure(&mut self) -> Option<(usize, String)> {
        let (key, _lock) = (failure_key(self.job), self.lock_stream()?);
        let bytes = self.store.get(&key, Instant::now() + FAILURE_READ_TIMEOUT).ok()??;
        decode_failure(&bytes).ok()
    }

    /// Locks the launcher's stream if it is shared; none while another thread uses it.
    fn lock_stream(&self) -> Option<Option<MutexGuard<'static, ()>>> {
        if self.is_shared { LAUNCHER_STREAM.try_lock().ok().map(Some) } else { Some(None) }
    }

    /// Publishes the failure of this rank; an earlier one stays.
    fn publish_failure(&mut self, rank: usize, error: &Error) {
        let (key, Some(_lock)) = (failure_key(self.job), self.lock_stream()) else { return };
        let reason = Encoder::default().u32(rank as u32).text(&format!("it gave up: {error}"));
        // A rank that can't publish its failure still fails, and the others see its connections
        // close.
        let _published = self.store.set_new(&key, &reason.0, Instant::now() + STORE_LINGER);
    }

    /// Closes the store. The server ends once `expected` clients have come and all have left, or at
    /// `deadline`.
    fn close(mut self, expected: usize, deadline: Instant) {
        if !self.is_shared {
            self.store.send_unanswered(FrameKind::Leave, &[]);
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
        if closed_streams == self.closed_streams && !is_due {
            return None;
        }
        (self.closed_streams, self.polled_at) = (closed_streams, Instant::now());
        bootstrap.first_failure(startup_store)
    }
}

impl Bootstrap {
    /// The first failure that another rank has published, as an error of this rank.
    fn first_failure(&self, startup_store: &mut StartupStore) -> Option<Error> {
        let (rank, reason) = startup_store.first_failure()?;
        let peer = self.peers.get(rank)?.peer().to_string();
        Some(Error::Handshake { peer, reason })
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
        startup_store.publish_failure(self.rank, &error);
        // Closed listeners tell the ranks that still dial this one.
        (self.unix, self.tcp) = (None, None);
        startup_store.close(self.size(), Instant::now() + STORE_LINGER);
        error
    }
}
