//! The one wait loop for links: spin, yield, then sleep on a futex or in `poll`; with a deadline
//! (each wait lasts at most the timeout of the call), an abort flag and, while it sleeps, a look
//! from time to time (`Backoff`) whether the peer is alive.
//!
//! Law ("no select"): a rank waits for one named end of a link. Meanwhile the loop flushes bytes
//! already committed to other links, which changes no order, and a long wait also looks whether a
//! peer makes another call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::health::{Peers, WaitTime};
use crate::memory::Buffer;
use crate::schedule::{Algorithm, Space};
use crate::sync::{Backoff, Instant, is_interrupted};
use crate::trace::{Direction, Position, RecordWriter};
use crate::transport::{Fault, Frame};

/// A rank that has waited so long for a peer warns the user once.
const PEER_SILENCE_WARNING: Duration = Duration::from_secs(5);

/// Warns the user, once per wait, of the peer that keeps this rank waiting.
pub(crate) fn warn_of_silence(
    peers: &mut Peers,
    recorder: Option<&RecordWriter>,
    WaitTime { waited, timeout }: WaitTime,
    warned: &mut bool,
) {
    if waited < PEER_SILENCE_WARNING || std::mem::replace(warned, true) {
        return;
    }
    if let Some((recorder, (rank, state))) = recorder.zip(peers.stalled_peer(timeout)) {
        recorder.warn_of_silence(waited, rank, &state);
    }
}

/// Why a wait ended early.
#[derive(Debug)]
pub enum Stop {
    /// The link failed.
    Fault(Fault),
    /// A rank other than the awaited one makes another call.
    Other {
        /// The rank that makes the other call.
        peer: usize,
        /// How the calls differ.
        fault: Fault,
    },
    /// The deadline passed.
    Timeout(Duration),
    /// The abort flag was raised, or the program gives up.
    Aborted,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A stop, with the step and the peer.
#[derive(Debug)]
pub struct Halt {
    /// Why the wait ended.
    pub stop: Stop,
    /// The step of the schedule, from 0.
    pub step: usize,
    /// The rank at the other end of the link.
    pub peer: usize,
}

impl Halt {
    /// This rank itself lacks memory before the first step.
    pub(crate) fn no_memory(error: Error) -> Self {
        Self { stop: Stop::Fault(Fault::NoMemory(Box::new(error))), step: 0, peer: 0 }
    }
}

/// The parameters of the waits of one call.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    pub(crate) backoff: &'a Backoff,
    pub(crate) timeout: Duration,
    pub(crate) abort: &'a AtomicBool,
    /// The frame of all slots of the call, if all have the same; `None` in an uneven call.
    pub(super) call: Option<Frame>,
    /// Steps of the call before those that the executor counts from 0.
    pub(super) first_step: usize,
    pub(super) recorder: Option<&'a RecordWriter>,
}

/// An event of one link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event<'f> {
    /// A filled slot from this peer, with this frame.
    Filled(usize, &'f Frame),
    /// A payload from this peer, with this frame, received into the buffer at this offset.
    Received(usize, &'f Frame, &'f Buffer<'f>, Space, usize),
    /// An empty slot to this peer.
    Empty(usize),
    /// All bytes committed to this peer have left.
    Flushed(usize),
}

impl<'a> Wait<'a> {
    /// Waits of up to `timeout` each, ended early if `abort` becomes true.
    #[must_use]
    pub fn new(backoff: &'a Backoff, timeout: Duration, abort: &'a AtomicBool) -> Self {
        Self { backoff, timeout, abort, call: None, first_step: 0, recorder: None }
    }

    pub(crate) fn with_recorder(self, recorder: &'a RecordWriter) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Records the number of steps of earlier rounds.
    pub(super) fn record_steps_before(&self, steps: usize) {
        if let Some(recorder) = self.recorder {
            recorder.set_steps_before(steps as u64);
        }
    }

    /// Records that the call goes by another algorithm than planned.
    pub(crate) fn record_algorithm(&self, algorithm: Algorithm) {
        if let Some(recorder) = self.recorder {
            recorder.set_plan(algorithm, 0);
        }
    }

    #[inline]
    pub(super) fn record_position(&self, place: Position) {
        if let Some(recorder) = self.recorder {
            recorder.set_position(place.after(self.first_step));
        }
    }

    #[inline]
    pub(super) fn record_sent(&self, bytes: usize) {
        if let Some(recorder) = self.recorder {
            recorder.add_sent(bytes);
        }
    }

    pub(super) fn record_sleep(&self, toward: Direction, peer: usize) {
        if let Some(recorder) = self.recorder {
            recorder.set_direction(toward, peer);
        }
    }

    pub(super) fn record_slept(&self, time: Duration) {
        if let Some(recorder) = self.recorder {
            recorder.add_wait(time);
        }
    }

    /// Waits until the bytes to all peers have left, which completes a call. Names a late peer.
    pub(super) fn until_flushed(&self, peers: &mut Peers) -> Result<(), (usize, Stop)> {
        for at in 0..peers.links.buffered_peers().len() {
            let peer = peers.links.buffered_peers()[at];
            self.until(peers, Event::Flushed(peer)).map_err(|stop| (peer, stop))?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn until(&self, peers: &mut Peers, event: Event<'_>) -> Result<(), Stop> {
        if event.try_complete(peers)? { Ok(()) } else { self.wait_for(peers, event) }
    }

    /// Waits for an event that has not happened yet. The loop is a function of its own so that a
    /// caller whose event is there does not set up its memory and registers.
    #[inline(never)]
    fn wait_for(&self, peers: &mut Peers, event: Event<'_>) -> Result<(), Stop> {
        let is_syscall_backed = event.end().is_syscall_backed(peers)?;
        let mut round = 0;
        let backoff = self.backoff.begin(is_syscall_backed);
        while backoff.wait(round) {
            if event.try_complete(peers)? {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) {
                peers.links.flush();
                if self.abort.load(Ordering::Relaxed) {
                    return Err(Stop::Aborted);
                }
            }
        }
        match event.end() {
            LinkEnd::From(peer) => self.record_sleep(Direction::From, peer),
            LinkEnd::To(peer) => self.record_sleep(Direction::To, peer),
        }
        let done = self.sleep(peers, event, backoff.began());
        self.record_slept(backoff.began().elapsed());
        done
    }

    fn sleep(&self, peers: &mut Peers, event: Event<'_>, began: Instant) -> Result<(), Stop> {
        let mut warned = false;
        loop {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Stop::Aborted);
            }
            let waited = began.elapsed();
            // A look asks every peer's page, so a rank that is woken often does not look each time.
            let mut limit =
                self.backoff.time_to_look(began).min(self.timeout.saturating_sub(waited));
            if limit.is_zero() {
                let look_began = Instant::now();
                if self.look(peers, event, waited, &mut warned)? {
                    return Ok(());
                }
                self.backoff.note_look(look_began);
                limit = self.backoff.sleep_interval().min(self.timeout - waited);
            }
            peers.links.flush();
            event.end().park(peers, limit)?;
            if event.try_complete(peers)? {
                return Ok(());
            }
        }
    }

    /// Looks for the cause of a wait of `waited`, and tells the peers that this rank waits; true if
    /// the event has happened meanwhile.
    fn look(
        &self,
        peers: &mut Peers,
        event: Event<'_>,
        waited: Duration,
        warned: &mut bool,
    ) -> Result<bool, Stop> {
        // The root cause comes first: a lost link may only be its consequence.
        let cause = peers.cause(self.call.as_ref());
        if let Some((peer, fault)) = cause {
            return Err(Stop::Other { peer, fault });
        }
        event.end().check_alive(peers)?;
        // A peer that closed its end may have sent the awaited bytes before.
        if event.try_complete(peers)? {
            return Ok(true);
        }
        if waited >= self.timeout {
            return Err(Stop::Timeout(self.timeout));
        }
        if is_interrupted() {
            return Err(Stop::Aborted);
        }
        let time = WaitTime { waited, timeout: self.timeout };
        peers.keep_up(time);
        warn_of_silence(peers, self.recorder, time, warned);
        Ok(false)
    }
}

impl Event<'_> {
    /// Looks for the event and completes it if it is there. Never blocks.
    #[inline]
    fn try_complete(self, peers: &mut Peers) -> Result<bool, Fault> {
        match self {
            Event::Filled(peer, frame) => peers.links.rx(peer)?.ready(frame),
            Event::Received(peer, frame, buffer, space, at) => peers
                .links
                .rx(peer)?
                .recv_into(frame, buffer.dst(space, at..at + frame.len as usize)),
            Event::Empty(peer) => peers.links.tx(peer)?.ready(),
            Event::Flushed(peer) => peers.links.tx(peer)?.flush(),
        }
    }

    /// The link end that the event comes from.
    fn end(self) -> LinkEnd {
        match self {
            Event::Filled(peer, _) | Event::Received(peer, ..) => LinkEnd::From(peer),
            Event::Empty(peer) | Event::Flushed(peer) => LinkEnd::To(peer),
        }
    }
}

/// The receiving or the sending end of a link to a peer.
#[derive(Clone, Copy, Debug)]
enum LinkEnd {
    From(usize),
    To(usize),
}

impl LinkEnd {
    fn peer(self) -> usize {
        let (Self::From(peer) | Self::To(peer)) = self;
        peer
    }

    fn is_syscall_backed(self, peers: &mut Peers) -> Result<bool, Fault> {
        Ok(match self {
            Self::From(peer) => peers.links.rx(peer)?.is_syscall_backed(),
            Self::To(peer) => peers.links.tx(peer)?.is_syscall_backed(),
        })
    }

    fn check_alive(self, peers: &mut Peers) -> Result<(), Fault> {
        peers.control_channels().unreachable_fault(self.peer()).map_or(Ok(()), Err)?;
        match self {
            Self::From(peer) => peers.links.rx(peer)?.check_alive(),
            Self::To(peer) => peers.links.tx(peer)?.check_alive(),
        }
    }

    fn park(self, peers: &mut Peers, limit: Duration) -> Result<(), Fault> {
        let outgoing = peers.links.outgoing();
        match self {
            Self::From(peer) => peers.links.rx(peer)?.park(limit, &outgoing),
            Self::To(peer) => peers.links.tx(peer)?.park(limit, &outgoing),
        }
        peers.links.return_outgoing(outgoing);
        Ok(())
    }
}
