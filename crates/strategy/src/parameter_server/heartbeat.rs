//! Signs of life between ranks: a failure detector by heartbeats (Chandra and Toueg, 1996). So a
//! rank tells a peer whose step takes long from one whose process is stopped or cut off, and from a
//! server that is stuck in what the program does there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use ringreduce::{Messenger, Monitor, Peer};

use super::protocol::{ALIVE, HEADER, Header};
use crate::JobError;

/// The heartbeats that a rank sends in the time after which peers give it up: one may be late.
const BEATS_PER_TIMEOUT: u32 = 4;
/// The longest wait for all peers that do not take a heartbeat.
const SEND_LIMIT: Duration = Duration::from_millis(500);

/// The messages of a heartbeat: more will follow, none will, or the rank is stuck.
const BEAT: [u8; 1] = [0];
const LAST: [u8; 1] = [1];
const STUCK: [u8; 1] = [2];

/// The activity of a rank, for the thread of its heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Since when a server executes what the program may make long, and for how long it may.
    busy: Mutex<Option<(Instant, Duration)>>,
    /// Whether a worker waits for servers.
    is_waiting: AtomicBool,
}

impl Activity {
    /// This server begins work that peers shall wait for no longer than `limit`; `None` ends it.
    pub(crate) fn set_busy(&self, limit: Option<Duration>) {
        let busy = limit.map(|limit| (Instant::now(), limit));
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = busy;
    }

    /// This worker begins to wait for servers, or ends it.
    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
    }

    fn beat(&self) -> [u8; 1] {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.is_some_and(|(since, limit)| since.elapsed() > limit) { STUCK } else { BEAT }
    }
}

/// Why a rank does not wait for a peer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No heartbeat has come for too long.
    Silent,
    /// The peer is alive, and stuck in what the program does there.
    Stuck,
}

/// A rank whose heartbeats this rank expects.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) peer: Peer,
    /// The communicators whose calls wait for the rank: they are aborted once it is silent.
    pub(crate) calls: Vec<Monitor>,
    heard: Instant,
    is_stuck: bool,
}

impl Watched {
    pub(crate) fn new(peer: Peer, calls: Vec<Monitor>) -> Self {
        Self { peer, calls, heard: Instant::now(), is_stuck: false }
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
        self.is_stuck = beat == STUCK;
        received.is_ok() && beat != LAST
    }

    fn failure(&self, timeout: Duration, activity: &Activity) -> Option<Failure> {
        let is_waiting = activity.is_waiting.load(Ordering::Relaxed);
        if self.is_stuck && is_waiting {
            return Some(Failure::Stuck);
        }
        (self.heard.elapsed() > timeout).then_some(Failure::Silent)
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
    fn send(&self, messages: &Messenger, beat: [u8; 1]) {
        // The rank itself notes the loss of a peer.
        for server in &self.servers {
            let _ = messages.send(&Header::Alive.words(), *server, HEADER);
        }
        for rank in &self.others {
            let _ = messages.send(&beat, *rank, ALIVE);
        }
    }
}

/// The first peer for which a rank does not wait any more.
#[derive(Debug, Default)]
struct FirstFailure {
    failed: Mutex<Option<(Peer, Failure)>>,
    is_known: Condvar,
}

impl FirstFailure {
    fn lock(&self) -> MutexGuard<'_, Option<(Peer, Failure)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, peer: &Peer, failure: Failure) {
        self.lock().get_or_insert_with(|| (peer.clone(), failure));
        self.is_known.notify_all();
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
    activity: Arc<Activity>,
    first_failure: Arc<FirstFailure>,
}

impl Heartbeat {
    pub(crate) fn start(
        messages: &Messenger,
        (watching, mut watched): (Watching, Vec<Watched>),
        timeout: Duration,
    ) -> Result<Self, JobError> {
        let interval = timeout / BEATS_PER_TIMEOUT;
        let count = (watching.servers.len() + watching.others.len()).max(1) as u32;
        let patient = messages.with_timeout(timeout);
        let messages = messages.with_timeout(SEND_LIMIT.min(interval) / count);
        let first_failure = Arc::<FirstFailure>::default();
        let (stop, stopped) = channel::<()>();
        let watching = Arc::new(Mutex::new(watching));
        let (all, found) = (Arc::clone(&watching), Arc::clone(&first_failure));
        let activity = Arc::<Activity>::default();
        let mine = Arc::clone(&activity);
        let beat = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let beat = mine.beat();
                all.lock().unwrap_or_else(PoisonError::into_inner).send(&messages, beat);
                watched.retain_mut(|it| it.hear(&messages));
                watched.retain(|it| {
                    let Some(failure) = it.failure(timeout, &mine) else { return true };
                    found.set(&it.peer, failure);
                    it.calls.iter().for_each(Monitor::abort);
                    false
                });
            }
            // No message is left behind that nobody receives.
            watched.retain_mut(|it| it.hear(&messages));
            watched
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(beat);
        let thread = thread.map_err(JobError::Thread)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { messages: patient, stop, thread, watching, activity, first_failure })
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

    /// The activity of this rank.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The first peer for which this rank does not wait any more.
    pub(crate) fn failed(&self) -> Option<(Peer, Failure)> {
        self.first_failure.lock().clone()
    }

    /// Waits for [`Self::failed`], which another rank knows already.
    pub(crate) fn await_failed(&self, limit: Duration) {
        let failed = self.first_failure.lock();
        drop(self.first_failure.is_known.wait_timeout_while(failed, limit, |it| it.is_none()));
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop();
    }
}
