//! A group in the making: while its ranks connect, each looks at what the communicator that they
//! come from knows of them. May touch: as `comm`.
//! Law: until all have made it the group is a part of that communicator's latest call, whose errors
//! are its errors; who fails tells the others there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::api::options::Settings;
use crate::api::{CallOptions, Communicator, Seat};
use crate::engine::Engine;
use crate::engine::failure::FAILED;
use crate::error::cause::Blame;
use crate::error::{Error, Result, Stall};
use crate::exec::{Halt, Stop, remind};
use crate::health::{Links, SHORTLY};
use crate::transport::Fault;

/// Who has failed in a group says why where its ranks come from, and may take so long to get there:
/// it has much to do before where CPUs are few.
const TOLD: Duration = Duration::from_secs(2);
/// How often a rank looks.
const GLANCE: Duration = Duration::from_millis(10);

/// Because of whom a rank will leave a communicator: a group of its ranks has failed.
#[derive(Debug, Default)]
pub(crate) struct Because {
    first: OnceLock<Blame>,
    /// The communicator that this one is a group of, and its ranks there.
    elder: Option<(Arc<Self>, Vec<usize>)>,
}

impl Because {
    /// That of a group of these ranks.
    fn of(elder: &Arc<Self>, members: &[usize]) -> Arc<Self> {
        let elder = Some((Arc::clone(elder), members.to_vec()));
        Arc::new(Self { elder, ..Self::default() })
    }

    /// The communicator has failed. What is said first counts.
    pub(crate) fn say(&self, blame: Blame) {
        if let Some((elder, members)) = &self.elder
            && let Some(there) = blame.renumbered(|rank| members.get(rank).copied())
        {
            let there = *elder.first.get_or_init(|| there);
            elder.say(there);
        }
    }
}

/// What a rank that waits while it connects looks at, and what ends it.
struct Watch<'a> {
    /// Of those that become the group's.
    members: &'a [usize],
    most: Duration,
    /// That of the communicator.
    abort: &'a AtomicBool,
    over: &'a AtomicBool,
    /// All have connected: from then on others may be done with it before this rank.
    connected: &'a AtomicBool,
}

impl Watch<'_> {
    /// Looks until it is over; the cause, if there is one, that the group can't be made.
    fn look(&self, links: &mut Links, seat: &Seat) -> Option<(usize, Fault)> {
        let (began, me, mut said) = (Instant::now(), seat.rank, false);
        while !self.over.load(Ordering::Acquire) {
            let cause = links.cause(None, |_, _| false);
            let connects = !self.connected.load(Ordering::Acquire);
            let cause = cause.or_else(|| if connects { self.left(links, me) } else { None });
            if cause.is_some() || self.abort.load(Ordering::Relaxed) {
                return cause;
            }
            let times = (began.elapsed(), self.most);
            links.wait_on(times, None);
            remind(links, Some(&seat.flight), times, (me, 0), &mut said);
            thread::park_timeout(GLANCE);
        }
        None
    }

    /// One of the group that has left meanwhile: nobody has made it without this rank.
    fn left(&self, links: &mut Links, me: usize) -> Option<(usize, Fault)> {
        let others = self.members.iter().filter(|&&rank| rank != me);
        let mut left = others.filter_map(|&rank| Some((rank, links.check_alive(rank).err()?)));
        let (rank, fault) = left.next()?;
        Some(links.why_ended(&[rank], SHORTLY).unwrap_or((rank, fault)))
    }
}

impl Communicator {
    /// Makes the group of these ranks by `work`, which gives up when the flag is raised.
    pub(super) fn make(
        &mut self,
        name: &'static str,
        members: &[usize],
        work: impl FnOnce(&Seat, &Settings, &Arc<AtomicBool>) -> Result<Self>,
    ) -> Result<Self> {
        let (engine, seat, settings) = self.at_home(name)?;
        let abort = Arc::new(AtomicBool::new(false));
        let again = engine.sequence;
        engine.links.lives().stay(again);
        let connected = AtomicBool::new(false);
        let work = || {
            let mut group = work(seat, settings, &abort)?;
            connected.store(true, Ordering::Release);
            // Every rank has connected, or none goes on.
            let tag = settings.tag.clone();
            group.with(CallOptions { tag, ..CallOptions::new() }).barrier()?;
            Ok(group)
        };
        let (made, cause) = if members.len() == 1 {
            (work(), None)
        } else {
            watched(engine, members, (seat, settings), [&abort, &connected], work)
        };
        match made {
            // What was found out in the last moment counts: the group has been told to end.
            Ok(mut group) if cause.is_none() && !abort.load(Ordering::Acquire) => {
                engine.links.lives().leave(again);
                if let Some(its) = &mut group.engine {
                    its.because = Because::of(&engine.because, members);
                }
                Ok(group)
            }
            made => Err(engine.unmade(seat, settings, name, (members, cause), made.err())),
        }
    }
}

/// Does the work, and looks meanwhile; what comes of both.
fn watched<T>(
    engine: &mut Engine,
    members: &[usize],
    (seat, settings): (&Seat, &Settings),
    [abort, connected]: [&AtomicBool; 2],
    work: impl FnOnce() -> Result<T>,
) -> (Result<T>, Option<(usize, Fault)>) {
    let over = &AtomicBool::new(false);
    let Engine { links, abort: own, .. } = engine;
    let watch = Watch { members, most: settings.timeout, abort: own, over, connected };
    thread::scope(|scope| {
        let look = || {
            let cause = watch.look(links, seat);
            // The others learn of it before they see this rank's doors close.
            if let Some((peer, fault)) = &cause {
                links.blame(Blame::of_fault(seat.rank, *peer, fault), !fault.is_hearsay());
            }
            if !watch.over.load(Ordering::Acquire) {
                abort.store(true, Ordering::Release);
            }
            cause
        };
        let thread = thread::Builder::new().name("ringreduce-watch".into());
        let watcher = match thread.spawn_scoped(scope, look) {
            Ok(watcher) => watcher,
            Err(error) => {
                return (Err(Error::no_thread("starting a thread that looks", error)), None);
            }
        };
        let made = work();
        over.store(true, Ordering::Release);
        watcher.thread().unpark();
        let cause = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (made, cause)
    })
}

impl Engine {
    /// Who leaves because a group has failed says so: others may wait for it here.
    pub(crate) fn take_leave(&mut self) {
        if let Some(because) = self.because.first.get() {
            self.links.leaves_for(*because);
        }
    }

    /// The error of a group that could not be made: the first cause, as this communicator has it.
    fn unmade(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        name: &'static str,
        (members, cause): (&[usize], Option<(usize, Fault)>),
        error: Option<Error>,
    ) -> Error {
        let here = |rank: usize| members.get(rank).copied().unwrap_or(seat.rank);
        let (stop, peer) = match (cause, error) {
            (Some((peer, fault)), _) => (Stop::Other { peer, fault }, peer),
            (None, Some(Error::Aborted { at, by })) if by.rank != at.rank => {
                let peer = here(by.rank);
                // Perhaps because of what is known here.
                let known = self.links.why_ended(&[peer], TOLD);
                let aborted = || (peer, Fault::GaveUp(Box::new(Blame::aborted(peer))));
                let (peer, fault) = known.unwrap_or_else(aborted);
                (Stop::Other { peer, fault }, peer)
            }
            (None, Some(Error::Aborted { .. }) | None) => (Stop::Aborted, seat.rank),
            (None, _) if self.abort.load(Ordering::Relaxed) => (Stop::Aborted, seat.rank),
            (None, Some(Error::PeerLost { peer, evidence, .. })) => {
                let peer = here(peer.rank);
                let known = self.links.why_ended(&[peer], TOLD);
                // That others have lost this one says less than what it saw by itself, but more
                // than that one of them has failed.
                let is_me =
                    |fault: &Fault| matches!(fault, Fault::GaveUp(it) if it.culprit == seat.rank);
                let known = known.filter(|(_, fault)| evidence == FAILED || !is_me(fault));
                let (peer, fault) = known.unwrap_or((peer, Fault::Lost(evidence)));
                (Stop::Other { peer, fault }, peer)
            }
            (None, Some(Error::Stalled { peer, state, after, .. })) => {
                // Who does not come to the group's first call may wait for another one to connect.
                let known = match state {
                    Stall::Paused { .. } => None,
                    _ => self.links.stalled_of(members, settings.timeout),
                };
                let stalled = known.unwrap_or((here(peer.rank), state));
                return self.unmade_for(seat, settings, name, stalled, after);
            }
            // Whom it waited for may be said in words alone; perhaps more is known here.
            (
                None,
                Some(error @ (Error::Handshake { .. } | Error::Timeout { .. } | Error::Io { .. })),
            ) => {
                let most = settings.timeout;
                if let Some((peer, fault)) = self.links.why_ended(members, SHORTLY) {
                    (Stop::Other { peer, fault }, peer)
                } else if let Error::Io { .. } = error {
                    // It is this rank that can't.
                    return self.broken_by(error);
                } else if let Some(stalled) = self.links.stalled_of(members, most) {
                    return self.unmade_for(seat, settings, name, stalled, most);
                } else if let Error::Timeout { peer, after, .. } = error {
                    (Stop::Timeout(after), here(peer.rank))
                } else {
                    return self.broken_by(error);
                }
            }
            (None, Some(error)) => return self.broken_by(error),
        };
        self.fail(seat, settings, name, Halt { stop, step: 0, peer })
    }

    /// The same, for want of a rank that keeps the others waiting.
    fn unmade_for(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        name: &'static str,
        (rank, state): (usize, Stall),
        after: Duration,
    ) -> Error {
        let at = self.place(seat, settings, name, 0);
        self.tell_others(seat.rank, Blame::stalled(rank, state, after), true, false);
        let peer = Box::new(seat.peers[rank].clone());
        self.broken_by(Error::Stalled { at, peer, state, after })
    }
}
