//! A trace of links for tests: a wrapper around any link records its slots and waits in a log of
//! fixed size, which all links of a rank share.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::delegate::{delegate_rx, delegate_tx};
use super::{Fault, Frame, Rx, Tx};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A complete slot from the peer was found.
    Receive,
    /// A slot was released to the peer.
    Release,
    /// A slot was committed to the peer.
    Commit,
    /// The rank went to sleep.
    Park,
    /// The link failed.
    Fault,
}

/// One event on a link.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The time since the log was made.
    pub time: Duration,
    /// The rank at the other end of the link.
    pub peer: u32,
    /// The kind of the event.
    pub kind: EventKind,
    /// Bytes of payload; 0 without a payload.
    pub bytes: u32,
}

/// The last events of a rank.
#[derive(Debug)]
pub struct EventLog {
    start: Instant,
    events: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    events: Vec<Event>,
    /// The number of events since the log was made.
    total: usize,
}

impl EventLog {
    /// A log of the last `capacity` events, at least one. All its memory is allocated here.
    #[must_use]
    pub fn new(capacity: usize) -> Arc<Self> {
        let events = Mutex::new(Ring { events: Vec::with_capacity(capacity.max(1)), total: 0 });
        Arc::new(Self { start: Instant::now(), events })
    }

    /// The events in the log, oldest first, and the number of overwritten ones.
    #[must_use]
    pub fn events(&self) -> (Vec<Event>, usize) {
        let ring = self.lock();
        let (mut events, lost) = (ring.events.clone(), ring.total - ring.events.len());
        let oldest = ring.total % events.len().max(1);
        events.rotate_left(oldest);
        (events, lost)
    }

    /// One thread walks the steps of a rank, so only a reader can hold this lock meanwhile.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, peer: u32, kind: EventKind, bytes: u32) {
        let mut ring = self.lock();
        let event = Event { time: self.start.elapsed(), peer, kind, bytes };
        if ring.events.len() < ring.events.capacity() {
            ring.events.push(event);
        } else {
            let oldest = ring.total % ring.events.len();
            ring.events[oldest] = event;
        }
        ring.total += 1;
    }
}

/// A link whose events go to a log. A wrapped `Box<dyn Rx>` or `Box<dyn Tx>` is an
/// [`Rx`] or [`Tx`] again.
#[derive(Debug)]
pub struct Traced<L> {
    inner: L,
    peer: u32,
    log: Arc<EventLog>,
}

impl<L> Traced<L> {
    /// `inner`, the link with `peer`, with its events written to `log`.
    pub fn new(inner: L, peer: u32, log: Arc<EventLog>) -> Self {
        Self { inner, peer, log }
    }

    fn add(&self, kind: EventKind, bytes: u32) {
        self.log.add(self.peer, kind, bytes);
    }

    fn add_fault<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        answer.inspect_err(|_| self.add(EventKind::Fault, 0))
    }
}

impl Rx for Traced<Box<dyn Rx>> {
    delegate_rx!();
    fn ready(&mut self, expect: &Frame) -> Result<bool, Fault> {
        let answer = self.inner.ready(expect);
        if let Ok(true) = answer {
            self.add(EventKind::Receive, expect.len);
        }
        self.add_fault(answer)
    }
    fn release(&mut self) {
        self.add(EventKind::Release, 0);
        self.inner.release();
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.add(EventKind::Park, 0);
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        let answer = self.inner.check_alive();
        self.add_fault(answer)
    }
}

impl Tx for Traced<Box<dyn Tx>> {
    delegate_tx!();
    fn ready(&mut self) -> Result<bool, Fault> {
        let answer = self.inner.ready();
        self.add_fault(answer)
    }
    fn commit(&mut self, frame: &Frame) -> Result<(), Fault> {
        self.add(EventKind::Commit, frame.len);
        let answer = self.inner.commit(frame);
        self.add_fault(answer)
    }
    fn flush(&mut self) -> Result<bool, Fault> {
        let answer = self.inner.flush();
        self.add_fault(answer)
    }
    fn park(&mut self, limit: Duration, outgoing: &[RawFd]) {
        self.add(EventKind::Park, 0);
        self.inner.park(limit, outgoing);
    }
    fn check_alive(&mut self) -> Result<(), Fault> {
        let answer = self.inner.check_alive();
        self.add_fault(answer)
    }
}
