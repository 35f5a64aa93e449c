//! What looks after calls whose streams wait for other ranks: it finds out who does not come, and
//! lets this rank's stream pass then. May touch: board, error, link.
//! Law: whatever happens elsewhere, this rank's streams go on, and its kernels touch nothing after
//! a failure that they have not begun to touch before.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::control_block::{At, Boards, CAPTURED, EAGER, ENTERED, MOST_RANKS, OVER, PLACES, PUT};
use super::failure::{Claim, IN_GRAPH, Trouble, closing, differ, why_closed};
use super::release::Health;
use crate::transport::hung_up;

/// How often it looks while a call is under way.
const GLANCE: Duration = Duration::from_millis(2);
/// How often it lets streams pass, after a failure.
pub(super) const RELEASE: Duration = Duration::from_micros(100);
/// Without a call for so long it sleeps until it is woken.
const QUIET: Duration = Duration::from_millis(100);
/// How long what another rank has done may take to show here.
const SHOWS: Duration = Duration::from_secs(1);
/// How long this rank's own part of a call may take on a device that has much else to do.
const KERNEL: Duration = Duration::from_secs(20);
/// How much longer than for other ranks it waits, at the end, for this rank's own streams.
const LINGER: Duration = Duration::from_secs(5);
/// How often it asks whether processes live, which takes a system call each.
const LIVES: Duration = Duration::from_millis(10);
/// How long what a rank did last may take to show, after its process has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// When the guard has first seen something.
struct Seen {
    /// That this rank's stream has come to a call, by place.
    since: [Option<Instant>; PLACES],
    /// That a rank's process has ended.
    ended: [Option<Instant>; MOST_RANKS],
    /// That a rank has left.
    left: [Option<Instant>; MOST_RANKS],
    /// When it looked for that.
    looked: Instant,
}

/// What the guard and the calls share.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) boards: Boards,
    pub(super) health: Health,
    /// Is only rank 0 a worker, or everybody?
    pub(crate) alone: bool,
    /// A sign of life of each rank that is another process.
    pub(super) lives: Vec<Option<UnixStream>>,
    /// What other processes see of this one: open as long as this is.
    _own: Vec<UnixStream>,
    abort: Arc<AtomicBool>,
    /// Nanoseconds that a call may last once its stream has come to it.
    timeout: AtomicU64,
    /// Calls in graphs so far.
    pub(crate) captured: AtomicU32,
    /// Calls whose stream does not say when it is over.
    pub(super) abandoned: [AtomicBool; PLACES],
    /// The call, if any, that failed, and of what.
    trouble: Mutex<Option<(Claim, Trouble)>>,
    /// Is there some? And are streams let pass because of it?
    said: AtomicBool,
    failed: AtomicBool,
    /// Nothing is called any more.
    pub(super) ends: AtomicBool,
    /// Nobody waits for the guard.
    pub(super) left_behind: AtomicBool,
    pub(super) asleep: AtomicBool,
}

impl Watch {
    pub(crate) fn new(
        (boards, health): (Boards, Health),
        alone: bool,
        (lives, own): (Vec<Option<UnixStream>>, Vec<UnixStream>),
        abort: Arc<AtomicBool>,
    ) -> Self {
        Self {
            boards,
            health,
            alone,
            lives,
            _own: own,
            abort,
            timeout: AtomicU64::new(u64::MAX),
            captured: AtomicU32::new(0),
            abandoned: [const { AtomicBool::new(false) }; PLACES],
            trouble: Mutex::new(None),
            said: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            left_behind: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        }
    }

    /// Is a rank one that launches kernels?
    pub(crate) fn is_worker(&self, rank: usize) -> bool {
        !self.alone || rank == 0
    }

    /// From here on calls may last so long.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.timeout.store(nanos, Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// The first trouble there was, and the call that it was met in: also if another rank has
    /// failed in a call that is over here, for what came out of it may be wrong.
    pub(crate) fn trouble(&self, latest: Claim) -> Option<(Claim, Trouble)> {
        if !self.said.load(Ordering::Acquire) {
            let peer = self.others().find(|&peer| self.boards.closed(peer) > 1)?;
            let places = (0..EAGER).filter(|&place| self.own(place).sequence > 0);
            let differing = places.filter_map(|place| Some((place, self.disagreement(place)?)));
            let (claim, trouble) = match differing.last() {
                Some((place, trouble)) => (self.own(place), trouble),
                None => (latest, self.gave_up(peer)?),
            };
            self.fail(claim, trouble);
        }
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on nothing works any more, here and for the others.
    pub(crate) fn fail(&self, claim: Claim, trouble: Trouble) {
        let (culprit, aborted, beyond) = match &trouble {
            Trouble::Lost { peer, .. }
            | Trouble::Late { peer, .. }
            | Trouble::Captured { peer, .. }
            | Trouble::Differs { peer, .. } => (*peer, false, None),
            Trouble::GaveUp { peer, aborted, beyond, .. } => (*peer, *aborted, *beyond),
            Trouble::Refused { beyond, .. } => (self.boards.me, false, *beyond),
            Trouble::Aborted => (self.boards.me, true, None),
        };
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((claim, trouble));
        // Whoever meets what a stopped kernel has left undone finds this out, here and elsewhere.
        self.said.store(true, Ordering::Release);
        self.boards.close(closing(culprit, aborted, beyond));
        self.boards.stop_kernels();
        self.failed.store(true, Ordering::Release);
    }

    /// What this rank's calls depend on has failed; of a rank that has no board here, if one is
    /// said.
    pub(crate) fn refuse(&self, reason: String, beyond: Option<usize>) {
        self.fail(Claim { sequence: 0, fingerprint: 0 }, Trouble::Refused { reason, beyond });
    }

    /// Why a rank has failed, if it has.
    fn gave_up(&self, by: usize) -> Option<Trouble> {
        let (peer, aborted, beyond) = why_closed(self.boards.closed(by))?;
        Some(Trouble::GaveUp { peer, by, aborted, beyond })
    }

    /// Has any call come to nothing, here or elsewhere?
    pub(crate) fn has_failed(&self) -> bool {
        let said = self.said.load(Ordering::Acquire);
        said || self.others().any(|peer| self.boards.closed(peer) > 1)
    }

    /// The places in use: those of calls, and those of calls in graphs.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let captured = self.captured.load(Ordering::Acquire) as usize;
        (0..EAGER).chain(EAGER..EAGER + captured.min(CAPTURED))
    }

    /// Are there graphs that have calls of this rank?
    fn has_graphs(&self) -> bool {
        self.places().skip(EAGER).any(|place| self.own(place).sequence > 0)
    }

    pub(super) fn own(&self, place: usize) -> Claim {
        self.boards.claimed(At { rank: self.boards.me, place })
    }

    /// Calls of this rank that are not over: where, and whether its stream has come to them.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, bool)> {
        self.places().filter_map(|place| {
            let reached = self.boards.reached(place);
            let is_open = if place < EAGER { reached != OVER } else { reached == ENTERED };
            let is_open = is_open && !self.abandoned[place].load(Ordering::Acquire);
            (self.own(place).sequence > 0 && is_open).then_some((place, reached == ENTERED))
        })
    }

    /// Has this rank's stream come to a call that is not over?
    pub(crate) fn is_in_call(&self) -> bool {
        self.open().any(|(_, entered)| entered)
    }

    /// Looks once.
    fn look(&self, it: &mut Seen) -> bool {
        if it.looked.elapsed() > LIVES && self.open().next().is_some() {
            for (life, ended) in self.lives.iter().zip(&mut it.ended) {
                let gone = life.as_ref().is_some_and(hung_up);
                *ended = if gone { ended.or_else(|| Some(Instant::now())) } else { None };
            }
            it.looked = Instant::now();
        }
        let mut busy = false;
        let mut seen = [false; PLACES];
        // Who does not come is seen at the first call: those behind it others may not have made.
        let entered = self.open().filter(|&(_, entered)| entered);
        let first = entered.map(|(place, _)| place).min_by_key(|&it| self.own(it).number());
        for (place, entered) in self.open() {
            (busy, seen[place]) = (true, entered);
            // In a graph the same call is made again.
            if entered && self.boards.has_entered_anew(place) {
                it.since[place] = None;
            }
            if self.abort.load(Ordering::Relaxed) {
                self.fail(self.own(place), Trouble::Aborted);
            } else if let Some(trouble) = self.trouble_with(place, it) {
                self.fail(self.own(place), trouble);
            } else if entered {
                let began = *it.since[place].get_or_insert_with(Instant::now);
                let after = self.timeout();
                if first == Some(place) && began.elapsed() > after {
                    let peer = self.missing(place);
                    self.fail(self.own(place), Trouble::Late { peer, after });
                }
            }
        }
        let captured = |&place: &usize| self.own(place).sequence & IN_GRAPH != 0;
        if let Some((place, trouble)) =
            (0..EAGER).filter(captured).find_map(|place| Some((place, self.disagreement(place)?)))
        {
            self.fail(self.own(place), trouble);
        }
        for (since, seen) in it.since.iter_mut().zip(seen) {
            *since = since.filter(|_| seen);
        }
        busy
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.boards.size()).filter(|&rank| rank != self.boards.me)
    }

    /// Has a rank given back what it had open of others, or ended?
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.boards.has_left(rank) || self.lives[rank].as_ref().is_some_and(hung_up)
    }

    /// What is wrong with the call that was claimed at a place, as far as others have made theirs.
    pub(crate) fn disagreement(&self, place: usize) -> Option<Trouble> {
        let ours = self.own(place);
        self.others()
            .find_map(|peer| differ(peer, ours, self.boards.claimed(At { rank: peer, place })))
    }

    /// What another rank does or has done that keeps a call from its end.
    fn trouble_with(&self, place: usize, it: &mut Seen) -> Option<Trouble> {
        let ours = self.own(place);
        for peer in self.others() {
            // First this: after it, what it has called is the last that it has.
            let closed = self.boards.closed(peer);
            let theirs = self.boards.claimed(At { rank: peer, place });
            if let Some(trouble) = differ(peer, ours, theirs) {
                return Some(trouble);
            }
            if let Some(trouble) = self.gave_up(peer) {
                return Some(trouble);
            }
            // Who has left was done with all that it called: a graph that it has launched with the
            // others is about to be over here too, and one that it has not never will be. It never
            // hears then that this rank has come; a call around a ring tells nothing of the kind.
            let left = (closed == 1).then(|| *it.left[peer].get_or_insert_with(Instant::now));
            let unheard =
                self.is_worker(peer) && self.boards.is_unheard_by(At { rank: peer, place });
            let long = |at: Instant| at.elapsed() > if unheard { SHOWS } else { KERNEL };
            let stays = || it.since[place].is_some_and(long) && left.is_some_and(long);
            let never = match place < EAGER {
                true => theirs.sequence != ours.sequence,
                // It may have given the place back, with its graph.
                false => stays() && self.boards.reached(place) == ENTERED,
            };
            if left.is_some() && never {
                let evidence = "it closed its communicator".into();
                return Some(Trouble::Lost { peer, evidence });
            }
            // It may have been done with this call: then that is over at once here too.
            if left.is_none() && it.ended[peer].is_some_and(|at| at.elapsed() > LAST_WORDS) {
                return Some(Trouble::Lost { peer, evidence: "its process ended".into() });
            }
        }
        None
    }

    /// Whom a call waits for: who has not made it, whose stream has not come to it, or the worker
    /// that has not done its part.
    fn missing(&self, place: usize) -> usize {
        let ours = self.own(place);
        let at = |rank| At { rank, place };
        let uncalled = |&peer: &usize| self.boards.claimed(at(peer)).number() < ours.number();
        let not_come = |&peer: &usize| {
            let same = self.boards.claimed(at(peer)).sequence == ours.sequence;
            let reached = self.boards.reached_at(at(peer));
            // Once more with a graph, what it says is of the time before.
            same && (reached == PUT || place >= EAGER && reached == OVER)
        };
        let undone = |&peer: &usize| self.boards.is_awaited(at(peer));
        let first = self.others().find(uncalled).or_else(|| self.others().find(not_come));
        let first = first.or_else(|| self.others().find(undone)).or_else(|| self.others().next());
        first.unwrap_or(self.boards.me)
    }

    /// Until the end; true if nothing on a stream may touch the boards any more.
    pub(super) fn serve(&self) -> bool {
        let (since, nobody, looked) = ([None; PLACES], [None; MOST_RANKS], Instant::now());
        let mut seen = Seen { since, ended: nobody, left: nobody, looked };
        let (mut idle, mut dropped, mut failed_at) = (Instant::now(), None, None);
        loop {
            let failed = self.failed.load(Ordering::Acquire);
            let busy = if failed {
                self.release(*failed_at.get_or_insert_with(Instant::now))
            } else {
                self.look(&mut seen)
            };
            let captured = self.has_graphs();
            if busy {
                idle = Instant::now();
            }
            if self.ends.load(Ordering::Acquire) {
                let dropped: &mut Instant = dropped.get_or_insert_with(Instant::now);
                let most =
                    if self.is_in_call() { self.timeout().saturating_add(LINGER) } else { LINGER };
                if !busy && !captured {
                    return true;
                }
                let behind = self.left_behind.load(Ordering::Acquire);
                if !behind && (dropped.elapsed() > most || !busy) {
                    self.leave_behind(busy);
                }
            }
            // A graph may start at any time, and nobody says so.
            match (busy, failed) {
                (true, true) => thread::sleep(RELEASE),
                (false, _) if !captured && idle.elapsed() > QUIET => self.sleep(),
                (false, true) => thread::sleep(10 * GLANCE),
                _ => thread::sleep(GLANCE),
            }
        }
    }

    /// Streams may come to calls later, or graphs be launched, when nobody waits for that any more.
    fn leave_behind(&self, busy: bool) {
        if busy {
            self.refuse("the communicator was dropped".into(), None);
        } else {
            // What was called is over and good: only what is launched now comes to nothing.
            self.boards.close(1);
            self.boards.stop_kernels_of(self.boards.me);
            self.failed.store(true, Ordering::Release);
        }
        self.left_behind.store(true, Ordering::Release);
    }

    /// Until it is woken. Whoever calls something looks whether it sleeps after having said so.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.open().next().is_none() && !self.ends.load(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}
