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

    /// Takes the heartbeats that have come. An error is the loss of the peer.
    pub(crate) fn hear(&mut self, messages: &Messenger) -> Result<()> {
        let rank = self.peer.rank;
        while messages.try_probe(rank, ALIVE)?.is_some() {
            messages.recv(&mut [0_u8], rank, ALIVE)?;
            self.heard = Instant::now();
        }
        Ok(())
    }
}

/// Which ranks get heartbeats of this one, and whose it expects.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// The servers of a worker, which take heartbeats among its other messages.
    pub(crate) servers: Vec<usize>,
    /// Other ranks, which watch this one.
    pub(crate) watching: Vec<usize>,
    pub(crate) watched: Vec<Watched>,
}

/// A thread that sends and takes heartbeats until this value is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The other ranks that get heartbeats.
    watching: Arc<Mutex<Vec<usize>>>,
    silent: Arc<OnceLock<Peer>>,
}

impl Heartbeat {
    pub(crate) fn start(messages: &Messenger, peers: Peers, timeout: Duration) -> Result<Self> {
        let interval = timeout / BEATS_PER_TIMEOUT;
        let count = (peers.servers.len() + peers.watching.len()).max(1) as u32;
        let messages = messages.with_timeout(SEND_LIMIT.min(interval) / count);
        let silent = Arc::new(OnceLock::new());
        let (stop, stopped) = channel::<()>();
        let Peers { servers, watching, mut watched } = peers;
        let watching = Arc::new(Mutex::new(watching));
        let (others, found) = (Arc::clone(&watching), Arc::clone(&silent));
        let beat = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // The rank itself notes the loss of a peer.
                for server in &servers {
                    let _ = messages.send(&Header::Alive.words(), *server, HEADER);
                }
                for rank in others.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    let _ = messages.send(&[0_u8], *rank, ALIVE);
                }
                watched.retain_mut(|it| it.hear(&messages).is_ok());
                let is_silent = |it: &mut Watched| it.heard.elapsed() > timeout;
                for silent in watched.extract_if(.., is_silent) {
                    let _ = found.set(silent.peer);
                    silent.calls.iter().for_each(Monitor::abort);
                }
            }
            // No message is left behind that nobody receives.
            watched.iter_mut().for_each(|it| drop(it.hear(&messages)));
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(beat).map_err(|error| {
            let expected = "a thread for heartbeats: use fewer ranks on this host";
            Error::argument("Member::new", "thread", error.to_string(), expected)
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), watching, silent })
    }

    /// Sends no more heartbeats to a rank that takes none any more.
    pub(crate) fn forget(&self, rank: usize) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.retain(|it| *it != rank);
    }

    /// The first peer that was silent for too long.
    pub(crate) fn silent(&self) -> Option<&Peer> {
        self.silent.get()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and there is nothing to do if it has.
            let _ = thread.join();
        }
    }
}
