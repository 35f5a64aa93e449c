//! The store while links are opened: who can't open them says there why, so that the others name
//! the first cause and not the neighbour that closed. May touch: store, server, wire.
//! Law: what is said first counts; to say it and to look for it takes no time to speak of.

use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags};
use socket2::Socket;

use super::kv::client::Store;
use super::kv::protocol::{Broken, Reader, Writer};
use super::kv::server::Server;
use super::socket::wait;
use super::{AFTERCARE, Meeting, ONE_AT_A_TIME};
use crate::error::{Error, Result};

/// What ended a rank is said before its connections end: how long it may take to get there.
const SHORTLY: Duration = Duration::from_millis(20);
/// How often a rank looks that has no other sign of who failed.
const SELDOM: Duration = Duration::from_secs(1);

/// A rank's way to the store, and the store, if it is its own.
#[derive(Debug)]
pub(super) struct Entrance {
    pub(super) store: Store,
    pub(super) server: Option<Server>,
    /// When all must have passed.
    pub(super) until: Instant,
    /// Is it one stream for all communicators of this process?
    pub(super) shared: bool,
    /// The number of the job.
    pub(super) job: u64,
}

impl Entrance {
    /// This rank has all its links. Who has the store waits for the others.
    pub(super) fn leave(self) {
        let Self { store, server, until, .. } = self;
        drop(store);
        if let Some(server) = server {
            server.finish(0, until.max(Instant::now() + AFTERCARE));
        }
    }

    /// Who has failed, and of what.
    fn first(&mut self) -> Option<(usize, String)> {
        let (key, _turn) = (self.key(), self.turn()?);
        let said = self.store.get(&key, Instant::now() + SHORTLY).ok()??;
        decode(&said).ok()
    }

    /// Where it is said. Another meeting may have begun on this stream.
    fn key(&self) -> String {
        format!("links/{:016x}", self.job)
    }

    /// This thread's turn at the store; none while another one meets there.
    fn turn(&self) -> Option<Option<MutexGuard<'static, ()>>> {
        if self.shared { ONE_AT_A_TIME.try_lock().ok().map(Some) } else { Some(None) }
    }

    /// Says that this rank has failed of this.
    fn say(&mut self, rank: usize, error: &Error) {
        let (key, Some(_turn)) = (self.key(), self.turn()) else { return };
        let why = Writer::default().u32(rank as u32).text(&error.to_string());
        // Who can't say it fails all the same, and so do the others when it closes.
        let _said = self.store.set_new(&key, &why.0, Instant::now() + AFTERCARE);
    }

    /// This rank, one of so many, has failed. Who has the store lets the others hear of it.
    fn end(self, size: usize) {
        drop(self.store);
        if let Some(server) = self.server {
            server.finish(size, Instant::now() + AFTERCARE);
        }
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<(usize, String), Broken> {
    let mut fields = Reader(bytes);
    Ok((fields.u32()? as usize, fields.text()?))
}

/// While others are still to come: whoever took a stream and closes it again may have failed, and
/// then others wait for it in vain. The store knows.
pub(super) struct Watch<'a> {
    entrance: Option<&'a mut Entrance>,
    /// How many streams were closed when it last looked there, and when that was.
    closed: usize,
    looked: Instant,
}

impl<'a> Watch<'a> {
    pub(super) fn new(entrance: Option<&'a mut Entrance>) -> Self {
        Self { entrance, closed: 0, looked: Instant::now() }
    }

    /// Why another rank has failed, if one has.
    pub(super) fn look<'s>(
        &mut self,
        meeting: &Meeting,
        streams: impl Iterator<Item = &'s Socket>,
    ) -> Option<Error> {
        if self.entrance.is_none() && !meeting.config.joins {
            return None;
        }
        let flags = PollFlags::from_bits_retain(POLLRDHUP);
        let mut fds: Vec<_> = streams.map(|it| PollFd::new(it.as_fd(), flags)).collect();
        wait(&mut fds, Some(Instant::now())).ok()?;
        let closed = fds.iter().filter(|fd| fd.any() != Some(false)).count();
        let Some(entrance) = self.entrance.as_mut() else {
            let reason = "it let this rank in no more, for another one was lost".to_string();
            return (closed > 0).then(|| Error::Handshake { peer: "a member".into(), reason });
        };
        // Who may have failed without a word to the store may be called so by another one.
        let again = closed > 0 && self.looked.elapsed() > SELDOM;
        if closed == self.closed && !again {
            return None;
        }
        (self.closed, self.looked) = (closed, Instant::now());
        meeting.first(entrance)
    }
}

impl Meeting {
    /// What somebody else has said to have failed of.
    fn first(&self, entrance: &mut Entrance) -> Option<Error> {
        let (rank, why) = entrance.first()?;
        let peer = self.peers.get(rank)?.peer().to_string();
        Some(Error::Handshake { peer, reason: format!("it gave up: {why}") })
    }

    /// This rank has all its links: nobody needs the store any more.
    pub(crate) fn is_complete(&mut self) {
        if let Some(entrance) = self.entrance.take() {
            entrance.leave();
        }
    }

    /// This rank can't open its links: all hear of it. Gives the first cause.
    pub(crate) fn failed(&mut self, error: Error) -> Error {
        let Some(mut entrance) = self.entrance.take() else { return error };
        let own = matches!(error, Error::Exhausted { .. });
        let first = if own { None } else { self.first(&mut entrance) };
        let error = first.unwrap_or(error);
        entrance.say(self.rank, &error);
        // Who waits to be let in here comes to hear of it.
        (self.unix, self.tcp) = (None, None);
        entrance.end(self.size());
        error
    }
}
