//! Signs of life between ranks: a failure detector by heartbeats (Chandra and Toueg, 1996). So a
//! rank tells a peer whose step takes long from one whose process is stopped or cut off.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use ringreduce::{Error, Messenger, Monitor, Peer, Result};

use super::protocol::{ALIVE, HEADER, Header};

/// The heartbeats that a rank sends in the time after which peers give it up: one may be late.
const BEATS_PER_TIMEOUT: u32 = 4;
/// The longest wait for all peers that do not take a heartbeat.
const SEND_LIMIT: Duration = Duration::from_millis(500);

/// What a heartbeat says: that others follow, or none.
const BEAT: [u8; 1] = [0];
const LAST: [u8; 1] = [1];

/// A rank whose heartbeats this rank expects.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) peer: Peer,
    /// The communicators whose calls wait for the rank: they are aborted once it is silent.
    pub(crate) calls: Vec<Monitor>,
    heard: Instant,
}

impl Watched {
    pub(crate) fn new(peer: Peer, calls: Vec<Monitor>) -> Self {
        Self { peer, calls, heard: Instant::now() }
    }

    /// Takes the heartbeats that have come. False if there will be no more: the last one has come,
    /// or the peer is lost.
    fn hear(&mut self, messages: &Messenger) -> bool {
        loop {
            match messages.try_probe(self.peer.rank, ALIVE) {
                Ok(None) => return true,
                Ok(Some(_)) if self.hear_next(messages) => {}
                _ => return false,
            }
        }
    }

    /// Waits for the next heartbeat. False if there will be no more.
    fn hear_next(&mut self, messages: &Messenger) -> bool {
        let mut beat = LAST;
        let received = messages.recv(&mut beat, self.peer.rank, ALIVE);
        self.heard = Instant::now();
        received.is_ok() && beat != LAST
    }
}

/// Which ranks get heartbeats of this one.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    /// The servers of a worker, which take heartbeats among its other messages.
    pub(crate) servers: Vec<usize>,
    /// Other ranks.
    pub(crate) others: Vec<usize>,
}

impl Watching {
    fn send(&self, messages: &Messenger) {
        // The rank itself notes the loss of a peer.
        for server in &self.servers {
            let _ = messages.send(&Header::Alive.words(), *server, HEADER);
        }
        for rank in &self.others {
            let _ = messages.send(&BEAT, *rank, ALIVE);
        }
    }
}

/// A thread that sends and takes heartbeats until this value is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    messages: Messenger,
    stop: Option<Sender<()>>,
    /// It returns the peers from which more heartbeats may come.
    thread: Option<JoinHandle<Vec<Watched>>>,
    watching: Arc<Mutex<Watching>>,
    silent: Arc<OnceLock<Peer>>,
}

impl Heartbeat {
    pub(crate) fn start(
        messages: &Messenger,
        (watching, mut watched): (Watching, Vec<Watched>),
        timeout: Duration,
    ) -> Result<Self> {
        let interval = timeout / BEATS_PER_TIMEOUT;
        let count = (watching.servers.len() + watching.others.len()).max(1) as u32;
        let patient = messages.with_timeout(timeout);
        let messages = messages.with_timeout(SEND_LIMIT.min(interval) / count);
        let silent = Arc::new(OnceLock::new());
        let (stop, stopped) = channel::<()>();
        let watching = Arc::new(Mutex::new(watching));
        let (all, found) = (Arc::clone(&watching), Arc::clone(&silent));
        let beat = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                all.lock().unwrap_or_else(PoisonError::into_inner).send(&messages);
                watched.retain_mut(|it| it.hear(&messages));
                let is_silent = |it: &mut Watched| it.heard.elapsed() > timeout;
                for silent in watched.extract_if(.., is_silent) {
                    let _ = found.set(silent.peer);
                    silent.calls.iter().for_each(Monitor::abort);
                }
            }
            // No message is left behind that nobody receives.
            watched.retain_mut(|it| it.hear(&messages));
            watched
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(beat).map_err(|error| {
            let expected = "a thread for heartbeats: use fewer ranks on this host";
            Error::argument("Member::new", "thread", error.to_string(), expected)
        })?;
        Ok(Self { messages: patient, stop: Some(stop), thread: Some(thread), watching, silent })
    }

    /// Sends no more heartbeats to a rank that takes none any more.
    pub(crate) fn forget(&self, rank: usize) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.servers.retain(|it| *it != rank);
        watching.others.retain(|it| *it != rank);
    }

    /// Sends the last heartbeat to a rank that watches this one.
    pub(crate) fn send_last(&self, rank: usize) {
        self.forget(rank);
        // A rank that is lost takes none.
        let _ = self.messages.send(&LAST, rank, ALIVE);
    }

    /// Ends the thread, and takes the last heartbeat of each peer.
    pub(crate) fn end(mut self) {
        for mut peer in self.stop() {
            while peer.hear_next(&self.messages) {}
        }
    }

    fn stop(&mut self) -> Vec<Watched> {
        drop(self.stop.take());
        // The thread does not panic, and there is nothing to do if it has.
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }

    /// The first peer that was silent for too long.
    pub(crate) fn silent(&self) -> Option<&Peer> {
        self.silent.get()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop();
    }
}
