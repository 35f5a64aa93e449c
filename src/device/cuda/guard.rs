//! The thread that looks after calls whose streams wait for other ranks: it finds out who does not
//! come, and lets this rank's stream pass then. May touch: board, error, link.
//! Law: whatever happens elsewhere, this rank's streams go on, and its kernels touch nothing after
//! a failure that they have not begun to touch before.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::board::{
    At, Boards, CAPTURED, Claim, EAGER, ENTERED, IN_GRAPH, MOST_RANKS, OVER, PLACES, PUT,
};
use crate::error::{Error, Result};
use crate::link::hung_up;

/// How often it looks while a call is under way.
const GLANCE: Duration = Duration::from_millis(2);
/// How often it lets streams pass, after a failure.
const RELEASE: Duration = Duration::from_micros(100);
/// Without a call for so long it sleeps until it is woken.
const QUIET: Duration = Duration::from_millis(100);
/// How much longer than for other ranks it waits, at the end, for this rank's own streams.
const LINGER: Duration = Duration::from_secs(5);

/// How long what a rank did last may take to show, after its process has ended.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// When the guard has first seen something.
struct Seen {
    /// That this rank's stream has come to a call, by place.
    since: [Option<Instant>; PLACES],
    /// That a rank's process has ended.
    ended: [Option<Instant>; MOST_RANKS],
}

/// What kept a call from its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone.
    Lost { peer: usize, evidence: String },
    /// A rank did not come in time.
    Late { peer: usize, after: Duration },
    /// A rank makes another call: fingerprints, ours first.
    Differs { peer: usize, ours: u64, theirs: u64 },
    /// A rank makes the same call, but only one of both has it captured: is it this one?
    Captured { peer: usize, ours: bool },
    /// Somebody asked for it.
    Aborted,
    /// This rank's device refused something.
    Refused(String),
}

/// What the guard and the calls share.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) boards: Boards,
    /// Is only rank 0 a worker, or everybody?
    pub(crate) alone: bool,
    /// A sign of life of each rank that is another process.
    lives: Vec<Option<UnixStream>>,
    abort: Arc<AtomicBool>,
    timeout: Duration,
    /// Calls in graphs so far.
    pub(crate) captured: AtomicU32,
    /// The call, if any, that failed, and of what.
    trouble: Mutex<Option<(Claim, Trouble)>>,
    failed: AtomicBool,
    /// Nothing is called any more.
    ends: AtomicBool,
    asleep: AtomicBool,
}

impl Watch {
    pub(crate) fn new(
        boards: Boards,
        alone: bool,
        lives: Vec<Option<UnixStream>>,
        abort: Arc<AtomicBool>,
        timeout: Duration,
    ) -> Self {
        Self {
            boards,
            alone,
            lives,
            abort,
            timeout,
            captured: AtomicU32::new(0),
            trouble: Mutex::new(None),
            failed: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        }
    }

    /// Is a rank one that launches kernels?
    pub(crate) fn is_worker(&self, rank: usize) -> bool {
        !self.alone || rank == 0
    }

    /// The first trouble there was, and the call that it was met in.
    pub(crate) fn trouble(&self) -> Option<(Claim, Trouble)> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on nothing works any more, here and for the others.
    pub(crate) fn fail(&self, claim: Claim, trouble: Trouble) {
        self.boards.stop_kernels();
        let culprit = match &trouble {
            Trouble::Lost { peer, .. }
            | Trouble::Late { peer, .. }
            | Trouble::Captured { peer, .. }
            | Trouble::Differs { peer, .. } => *peer,
            Trouble::Aborted | Trouble::Refused(_) => self.boards.me,
        };
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((claim, trouble));
        self.failed.store(true, Ordering::Release);
        self.boards.close(culprit as u32 + 2);
    }

    /// The places in use: those of calls, and those of calls in graphs.
    fn places(&self) -> impl Iterator<Item = usize> {
        let captured = self.captured.load(Ordering::Acquire) as usize;
        (0..EAGER).chain(EAGER..EAGER + captured.min(CAPTURED))
    }

    fn own(&self, place: usize) -> Claim {
        self.boards.claimed(At { rank: self.boards.me, place })
    }

    /// Calls of this rank that are not over: where, and whether its stream has come to them.
    fn open(&self) -> impl Iterator<Item = (usize, bool)> {
        self.places().filter_map(|place| {
            let reached = self.boards.reached(place);
            let is_open = if place < EAGER { reached != OVER } else { reached == ENTERED };
            (self.own(place).sequence > 0 && is_open).then_some((place, reached == ENTERED))
        })
    }

    /// Looks once.
    fn look(&self, Seen { since, ended }: &mut Seen) -> bool {
        let mut busy = false;
        let mut seen = [false; PLACES];
        // Who does not come is seen at the first call: those behind it others may not have made.
        let entered = self.open().filter(|&(_, entered)| entered);
        let first = entered.map(|(place, _)| place).min_by_key(|&it| self.own(it).number());
        for (place, entered) in self.open() {
            (busy, seen[place]) = (true, entered);
            if self.abort.load(Ordering::Relaxed) {
                self.fail(self.own(place), Trouble::Aborted);
            } else if let Some(trouble) = self.trouble_with(place, entered, ended) {
                self.fail(self.own(place), trouble);
            } else if entered {
                let began = *since[place].get_or_insert_with(Instant::now);
                if first == Some(place) && began.elapsed() > self.timeout {
                    let (peer, after) = (self.missing(place), self.timeout);
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
        for (since, seen) in since.iter_mut().zip(seen) {
            *since = since.filter(|_| seen);
        }
        busy
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.boards.size()).filter(|&rank| rank != self.boards.me)
    }

    /// Has a rank given back what it had open of others, or ended?
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.boards.closed(rank) == 1 || self.lives[rank].as_ref().is_some_and(hung_up)
    }

    /// What is wrong with the call that was claimed at a place, as far as others have made theirs.
    pub(crate) fn disagreement(&self, place: usize) -> Option<Trouble> {
        let ours = self.own(place);
        self.others()
            .find_map(|peer| differ(peer, ours, self.boards.claimed(At { rank: peer, place })))
    }

    /// What another rank does or has done that keeps a call from its end.
    fn trouble_with(
        &self,
        place: usize,
        entered: bool,
        ended: &mut [Option<Instant>; MOST_RANKS],
    ) -> Option<Trouble> {
        let ours = self.own(place);
        for peer in self.others() {
            let theirs = self.boards.claimed(At { rank: peer, place });
            let closed = self.boards.closed(peer);
            let same = theirs.sequence == ours.sequence;
            if let Some(trouble) = differ(peer, ours, theirs) {
                return Some(trouble);
            }
            if let Some(culprit) = closed.checked_sub(2).map(|rank| rank as usize) {
                let evidence = if culprit == peer {
                    "it failed, or was aborted".into()
                } else {
                    format!("rank {peer} gave up on it")
                };
                return Some(Trouble::Lost { peer: culprit, evidence });
            }
            // Who has left was done with all that it called.
            if closed == 1 && (!same || place >= EAGER && entered) {
                let evidence = "it closed its communicator".into();
                return Some(Trouble::Lost { peer, evidence });
            }
            let left = closed == 1 && same;
            if !left && self.lives[peer].as_ref().is_some_and(hung_up) {
                // It may have been done with this call: then that is over at once here too.
                if ended[peer].get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
                    return Some(Trouble::Lost { peer, evidence: "its process ended".into() });
                }
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

    /// Lets this rank's streams pass, once; false if none waits.
    fn release(&self) -> bool {
        let mut busy = false;
        for (place, _) in self.open() {
            busy = true;
            self.boards.release(place, |rank| self.is_worker(rank));
        }
        busy
    }

    /// Until the end; true if nothing on a stream may touch the boards any more.
    fn serve(&self) -> bool {
        let mut seen = Seen { since: [None; PLACES], ended: [None; MOST_RANKS] };
        let (mut idle, mut ended) = (Instant::now(), None);
        loop {
            let failed = self.failed.load(Ordering::Acquire);
            let busy = if failed { self.release() } else { self.look(&mut seen) };
            let captured = self.captured.load(Ordering::Acquire) > 0;
            if busy {
                idle = Instant::now();
            }
            if self.ends.load(Ordering::Acquire) {
                let ended: &mut Instant = ended.get_or_insert_with(Instant::now);
                if !busy || ended.elapsed() > self.timeout + LINGER {
                    // A graph may still be launched.
                    return !busy && !captured;
                }
            }
            // A graph may start at any time, and nobody says so.
            match (busy, failed) {
                (true, true) => thread::sleep(RELEASE),
                (false, _) if !captured && idle.elapsed() > QUIET => self.sleep(),
                _ => thread::sleep(GLANCE),
            }
        }
    }

    /// Until it is woken. Whoever calls something looks whether it sleeps after having said so.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        if self.open().next().is_none() && !self.ends.load(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// What is wrong if `peer` says that it makes this call.
fn differ(peer: usize, ours: Claim, theirs: Claim) -> Option<Trouble> {
    match ours.sequence ^ theirs.sequence {
        IN_GRAPH => Some(Trouble::Captured { peer, ours: ours.sequence & IN_GRAPH != 0 }),
        0 if ours.fingerprint != theirs.fingerprint => {
            let (ours, theirs) = (ours.fingerprint, theirs.fingerprint);
            Some(Trouble::Differs { peer, ours, theirs })
        }
        _ => None,
    }
}

/// The thread, and how to wake it.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) watch: Arc<Watch>,
    thread: Option<JoinHandle<bool>>,
}

impl Guard {
    pub(crate) fn new(watch: Watch) -> Result<Self> {
        let watch = Arc::new(watch);
        let its = Arc::clone(&watch);
        let builder = thread::Builder::new().name("ringreduce-guard".into());
        let thread = builder
            .spawn(move || its.serve())
            .map_err(|error| Error::io("starting the thread that guards streams", error))?;
        Ok(Self { watch, thread: Some(thread) })
    }

    /// A call was claimed.
    pub(crate) fn wake(&self) {
        if self.watch.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Waits until all calls are over; the guard sees to it that they end. Whose stream does not
    /// come to them in time has its boards left to the system, which it may still write to.
    pub(crate) fn finish(&mut self) {
        self.watch.ends.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        if !thread.join().unwrap_or(false) {
            std::mem::forget(Arc::clone(&self.watch));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
        self.watch.boards.close(1);
    }
}
