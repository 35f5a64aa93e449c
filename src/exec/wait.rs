//! The one place where a rank waits: look, spin, give way, park; with a deadline, an abort flag
//! and, now and then, a look whether the peer still lives. May touch: link, sync.
//!
//! The law "no select": a wait is for one named link, or for the first of several processes that
//! can move (`messages`). While it lasts, bytes already committed to other links are moved on, for
//! that changes no order, and who waits for long looks whether others make another call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::health::Links;
use crate::memory::Buffer;
use crate::plan::fingerprint::{DIRECT, WAY};
use crate::schedule::Space;
use crate::sync::Patience;
use crate::trace::{Flight, Toward, Where};
use crate::transport::{Fault, Frame};

/// How often a parked rank looks for an abort and for the peer's death.
pub(super) const GLANCE: Duration = Duration::from_millis(10);

/// After so long a rank says for whom it waits.
const SOON: Duration = Duration::from_secs(5);

/// Says, once, who keeps this rank waiting; in a message of this number, for that rank.
pub(crate) fn remind(
    links: &mut Links,
    flight: Option<&Flight>,
    (waited, most): (Duration, Duration),
    of: (usize, u64),
    said: &mut bool,
) {
    if waited < SOON || std::mem::replace(said, true) {
        return;
    }
    if let Some((flight, (rank, state))) = flight.zip(links.stalled(of, most)) {
        flight.remind(waited, rank, &state);
    }
}

/// Do two calls differ in nothing but that one of them goes without links? Whether they do so, and
/// why, is said by the lines of those that share memory.
pub(super) fn differ_by_lines(ours: u64, theirs: u64) -> bool {
    let goes_direct = |print: u64| print & WAY == DIRECT;
    (ours ^ theirs) & !WAY == 0 && goes_direct(ours) != goes_direct(theirs)
}

/// Why a wait ended without what it waited for.
#[derive(Debug)]
pub enum Stop {
    /// The link failed.
    Fault(Fault),
    /// Another rank than the one that is waited for makes another call.
    Other {
        /// That rank.
        peer: usize,
        /// How its call differs.
        fault: Fault,
    },
    /// The deadline passed.
    Timeout(Duration),
    /// The abort flag was raised.
    Aborted,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A stop, and where: at which step, waiting for whom.
#[derive(Debug)]
pub struct Halt {
    /// Why.
    pub stop: Stop,
    /// The step of the schedule.
    pub step: usize,
    /// The rank at the other end of the link.
    pub peer: usize,
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    pub(crate) patience: &'a Patience,
    pub(crate) timeout: Duration,
    pub(crate) abort: &'a AtomicBool,
    /// What all slots of the call say of it, if they all say the same.
    pub(super) call: Option<Frame>,
    /// The number of the message that it is, if it is one.
    pub(super) message: Option<u64>,
    /// Where it is written down how far the call is.
    pub(super) flight: Option<&'a Flight>,
}

/// What is waited for.
pub(super) trait Awaited {
    /// Never blocks.
    fn happened(&mut self, links: &mut Links) -> Result<bool, Fault>;

    /// Is a look a system call?
    fn is_dear(&mut self, links: &mut Links) -> Result<bool, Fault>;

    /// Where it is waited for, if at one end.
    fn end(&self) -> Option<End>;

    /// Can it still happen?
    fn check_alive(&mut self, links: &mut Links) -> Result<(), Fault>;

    /// Sleeps until it may have happened, or `limit` has passed, after so long a wait; may return
    /// early.
    fn park(&mut self, links: &mut Links, waited: Duration, limit: Duration) -> Result<(), Fault>;
}

/// What is waited for on one link.
#[derive(Clone, Copy, Debug)]
enum Event<'f> {
    /// A filled slot from this peer, with this frame.
    Filled(usize, &'f Frame),
    /// The same, put into the buffer, at this offset of a space.
    Landed(usize, &'f Frame, &'f Buffer<'f>, Space, usize),
    /// An empty slot to this peer.
    Empty(usize),
    /// Everything committed to this peer on its way.
    Flushed(usize),
}

impl Event<'_> {
    fn place(&self) -> End {
        match *self {
            Self::Filled(peer, _) | Self::Landed(peer, ..) => End::From(peer),
            Self::Empty(peer) | Self::Flushed(peer) => End::To(peer),
        }
    }
}

impl<'a> Wait<'a> {
    /// Up to `timeout` for each wait, or until `abort` is raised.
    #[must_use]
    pub fn new(patience: &'a Patience, timeout: Duration, abort: &'a AtomicBool) -> Self {
        Self { patience, timeout, abort, call: None, message: None, flight: None }
    }

    /// The same, written down by `flight`.
    pub(crate) fn recorded(self, flight: &'a Flight) -> Self {
        Self { flight: Some(flight), ..self }
    }

    /// The call is there now.
    #[inline]
    pub(super) fn at(&self, place: Where) {
        if let Some(flight) = self.flight {
            flight.at(place);
        }
    }

    /// It sleeps from now on.
    pub(super) fn sleeps(&self, toward: Toward, peer: usize) {
        if let Some(flight) = self.flight {
            flight.turn(toward, peer);
        }
    }

    /// It has slept for so long.
    pub(super) fn slept(&self, time: Duration) {
        if let Some(flight) = self.flight {
            flight.waited(time);
        }
    }

    pub(super) fn filled(&self, links: &mut Links, peer: usize, frame: &Frame) -> Result<(), Stop> {
        self.until(links, Event::Filled(peer, frame))
    }

    /// As [`Self::filled`], and the payload is in `buffer`, from byte `at` of the space on.
    pub(super) fn landed(
        &self,
        links: &mut Links,
        peer: usize,
        frame: &Frame,
        buffer: &Buffer<'_>,
        (space, at): (Space, usize),
    ) -> Result<(), Stop> {
        self.until(links, Event::Landed(peer, frame, buffer, space, at))
    }

    pub(super) fn empty(&self, links: &mut Links, peer: usize) -> Result<(), Stop> {
        self.until(links, Event::Empty(peer))
    }

    /// Everything on its way, to everybody: a call is over only then. Names the slow peer.
    pub(super) fn flushed(&self, links: &mut Links) -> Result<(), (usize, Stop)> {
        for at in 0..links.lazy().len() {
            let peer = links.lazy()[at];
            self.until(links, Event::Flushed(peer)).map_err(|stop| (peer, stop))?;
        }
        Ok(())
    }

    pub(super) fn until(&self, links: &mut Links, mut what: impl Awaited) -> Result<(), Stop> {
        if what.happened(links)? {
            return Ok(());
        }
        let dear = what.is_dear(links)?;
        let mut round = 0;
        let patience = self.patience.begin(dear);
        while patience.wait(round) {
            if what.happened(links)? {
                return Ok(());
            }
            round += 1;
            if round.is_multiple_of(16) {
                links.flush();
                if self.abort.load(Ordering::Relaxed) {
                    return Err(Stop::Aborted);
                }
            }
        }
        match what.end() {
            Some(End::From(peer)) => self.sleeps(Toward::From, peer),
            Some(End::To(peer)) => self.sleeps(Toward::To, peer),
            None => {}
        }
        let done = self.parked(links, &mut what, patience.began());
        self.slept(patience.began().elapsed());
        done
    }

    fn parked(
        &self,
        links: &mut Links,
        what: &mut impl Awaited,
        began: Instant,
    ) -> Result<(), Stop> {
        let mut said = false;
        loop {
            if self.abort.load(Ordering::Relaxed) {
                return Err(Stop::Aborted);
            }
            // The first cause, before links tell of what follows from it.
            let cause = links.cause(self.call.as_ref(), differ_by_lines);
            if let Some((peer, fault)) = cause {
                return Err(Stop::Other { peer, fault });
            }
            what.check_alive(links)?;
            // A peer that closed may have sent what we wait for before it did.
            if what.happened(links)? {
                return Ok(());
            }
            let waited = began.elapsed();
            if waited >= self.timeout {
                return Err(Stop::Timeout(self.timeout));
            }
            let peer = what.end().map_or(0, End::peer);
            links.wait_on((waited, self.timeout), self.message.map(|call| (call, peer)));
            let times = (waited, self.timeout);
            remind(links, self.flight, times, (peer, self.message.unwrap_or(0)), &mut said);
            links.flush();
            what.park(links, waited, GLANCE.min(self.timeout - waited))?;
            if what.happened(links)? {
                return Ok(());
            }
        }
    }
}

impl Awaited for Event<'_> {
    fn happened(&mut self, links: &mut Links) -> Result<bool, Fault> {
        match *self {
            Event::Filled(peer, frame) => links.rx(peer)?.ready(frame),
            Event::Landed(peer, frame, buffer, space, at) => {
                links.rx(peer)?.land(frame, buffer.dst(space, at..at + frame.len as usize))
            }
            Event::Empty(peer) => links.tx(peer)?.ready(),
            Event::Flushed(peer) => links.tx(peer)?.flush(),
        }
    }

    fn is_dear(&mut self, links: &mut Links) -> Result<bool, Fault> {
        self.place().is_dear(links)
    }

    fn end(&self) -> Option<End> {
        Some(self.place())
    }

    fn check_alive(&mut self, links: &mut Links) -> Result<(), Fault> {
        self.place().check_alive(links)
    }

    fn park(&mut self, links: &mut Links, _: Duration, limit: Duration) -> Result<(), Fault> {
        self.place().park(links, limit)
    }
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    From(usize),
    To(usize),
}

impl End {
    pub(super) fn peer(self) -> usize {
        let (Self::From(peer) | Self::To(peer)) = self;
        peer
    }

    pub(super) fn is_dear(self, links: &mut Links) -> Result<bool, Fault> {
        Ok(match self {
            Self::From(peer) => links.rx(peer)?.is_dear(),
            Self::To(peer) => links.tx(peer)?.is_dear(),
        })
    }

    pub(super) fn check_alive(self, links: &mut Links) -> Result<(), Fault> {
        links.controls().is_cut(self.peer()).map_or(Ok(()), Err)?;
        match self {
            Self::From(peer) => links.rx(peer)?.check_alive(),
            Self::To(peer) => links.tx(peer)?.check_alive(),
        }
    }

    pub(super) fn park(self, links: &mut Links, limit: Duration) -> Result<(), Fault> {
        let outgoing = links.outgoing();
        match self {
            Self::From(peer) => links.rx(peer)?.park(limit, &outgoing),
            Self::To(peer) => links.tx(peer)?.park(limit, &outgoing),
        }
        links.keep(outgoing);
        Ok(())
    }
}
