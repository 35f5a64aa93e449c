//! Construction of a subgroup: while its ranks connect, each one watches the parent communicator's
//! failure detector.
//! Law: until all ranks have constructed it, the subgroup is part of the parent's latest call, and
//! its errors are errors of that call; a rank that fails tells the others by the parent's status
//! pages and control channels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::api::{CallOptions, Communicator, Origin};
use crate::engine::failure::PEER_FAILED;
use crate::engine::group_failure::GroupFailure;
use crate::engine::settings::Settings;
use crate::engine::{Engine, RankInfo};
use crate::error::cause::FailureCause;
use crate::error::{Error, Result, Stall};
use crate::exec::{Halt, Stop, warn_of_silence};
use crate::health::{CAUSE_WAIT, Peers, WaitTime};
use crate::sync::Instant;
use crate::transport::Fault;

/// How long to wait for the parent's failure detector to explain why a peer left. A peer publishes
/// its failure cause there before it leaves, but may be slow where CPUs are few.
const PARENT_CAUSE_WAIT: Duration = Duration::from_secs(2);

/// The watch over the parent while a rank connects, and the flags that end it.
struct ParentWatch<'a> {
    /// The subgroup's members, by their ranks in the parent.
    members: &'a [usize],
    timeout: Duration,
    /// How often a rank looks at the parent's failure detector.
    interval: Duration,
    /// The parent's abort flag.
    abort: &'a AtomicBool,
    is_over: &'a AtomicBool,
    /// All ranks have connected. From now on a member may leave because it has finished.
    all_connected: &'a AtomicBool,
}

impl ParentWatch<'_> {
    /// Watches until `is_over` or the parent's abort flag is raised. Returns the failure that makes
    /// the subgroup impossible, if there is one.
    fn first_failure(&self, peers: &mut Peers, rank_info: &RankInfo) -> Option<(usize, Fault)> {
        let (began, me, mut has_warned) = (Instant::now(), rank_info.rank, false);
        while !self.is_over.load(Ordering::Acquire) {
            let cause = peers.cause(None);
            let connects = !self.all_connected.load(Ordering::Acquire);
            let cause = cause.or_else(|| if connects { self.departed(peers, me) } else { None });
            if cause.is_some() || self.abort.load(Ordering::Relaxed) {
                return cause;
            }
            let time = WaitTime { waited: began.elapsed(), timeout: self.timeout };
            peers.keep_up(time);
            warn_of_silence(peers, Some(&rank_info.record), time, &mut has_warned);
            thread::park_timeout(self.interval);
        }
        None
    }

    /// A member that has left the parent before all ranks have connected.
    fn departed(&self, peers: &mut Peers, me: usize) -> Option<(usize, Fault)> {
        let others = self.members.iter().filter(|&&rank| rank != me);
        let mut departed =
            others.filter_map(|&rank| Some((rank, peers.links.check_alive(rank).err()?)));
        let (rank, fault) = departed.next()?;
        Some(peers.cause_of_end(&[rank], CAUSE_WAIT).unwrap_or((rank, fault)))
    }
}

impl Communicator {
    /// Constructs the subgroup of these ranks by `work`, which gives up when its abort flag is
    /// raised.
    pub(super) fn construct_group(
        &mut self,
        name: &'static str,
        members: &[usize],
        work: impl FnOnce(&Origin, &Settings, &Arc<AtomicBool>) -> Result<Self>,
    ) -> Result<Self> {
        let origin = Arc::clone(&self.origin);
        let (engine, settings) = self.engine_on_this_thread(name)?;
        let abort = Arc::new(AtomicBool::new(false));
        let sequence = engine.sequence;
        engine.peers.local_detector().reenter(sequence);
        let all_connected = AtomicBool::new(false);
        // The failure of the subgroup before all ranks have it, which is one of the parent's call.
        let early_failure = Arc::default();
        let work = || {
            let mut group = work(&origin, settings, &abort)?;
            if let Some(new_engine) = &mut group.engine {
                new_engine.group_failure = GroupFailure::of(&early_failure, members);
            }
            all_connected.store(true, Ordering::Release);
            // The barrier succeeds once every rank has connected.
            let tag = settings.tag.clone();
            group.with(CallOptions { tag, ..CallOptions::new() }).barrier()?;
            Ok(group)
        };
        let (made, cause) = if members.len() == 1 {
            (work(), None)
        } else {
            construct_watched(engine, members, settings.timeout, [&abort, &all_connected], work)
        };
        match made {
            // A failure found in the last moment counts: the subgroup's abort flag was already
            // raised.
            Ok(mut group) if cause.is_none() && !abort.load(Ordering::Acquire) => {
                engine.peers.local_detector().leave(sequence);
                if let Some(new_engine) = &mut group.engine {
                    new_engine.group_failure = GroupFailure::of(&engine.group_failure, members);
                }
                Ok(group)
            }
            made => {
                let told = early_failure.first_cause();
                let cause = (members, cause);
                Err(engine.construction_error(settings, name, cause, (made.err(), told)))
            }
        }
    }
}

/// Runs `work` while a thread watches the parent. Returns the result and the failure that the watch
/// has found.
fn construct_watched<T>(
    engine: &mut Engine,
    members: &[usize],
    timeout: Duration,
    [abort, all_connected]: [&AtomicBool; 2],
    work: impl FnOnce() -> Result<T>,
) -> (Result<T>, Option<(usize, Fault)>) {
    let is_over = &AtomicBool::new(false);
    let Engine { peers, abort: own, rank_info, backoff, .. } = engine;
    let interval = backoff.sleep_interval();
    let watch = ParentWatch { members, timeout, interval, abort: own, is_over, all_connected };
    thread::scope(|scope| {
        let look = || {
            let cause = watch.first_failure(peers, rank_info);
            // The other ranks learn the cause before they see this rank's listeners close.
            if let Some((peer, fault)) = &cause {
                let cause = FailureCause::of_fault(rank_info.rank, *peer, fault);
                peers.report_failure(peers.with_finder(cause), !fault.is_second_hand());
            }
            if !watch.is_over.load(Ordering::Acquire) {
                abort.store(true, Ordering::Release);
            }
            cause
        };
        let thread = thread::Builder::new().name("ringreduce-watch".into());
        let watcher = match thread.spawn_scoped(scope, look) {
            Ok(watcher) => watcher,
            Err(error) => {
                return (Err(Error::no_thread("starting a thread that watches", error)), None);
            }
        };
        let made = work();
        is_over.store(true, Ordering::Release);
        watcher.thread().unpark();
        let cause = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (made, cause)
    })
}

impl Engine {
    /// The error of a subgroup that could not be constructed: the first cause, with ranks of the
    /// parent. `told` is the cause that ranks of the subgroup were told of its own `error`.
    fn construction_error(
        &mut self,
        settings: &Settings,
        name: &'static str,
        (members, cause): (&[usize], Option<(usize, Fault)>),
        (error, told): (Option<Error>, Option<FailureCause>),
    ) -> Error {
        let here = |rank: usize| members.get(rank).copied().unwrap_or(self.rank_info.rank);
        let (stop, peer) = match (cause, error) {
            (Some((peer, fault)), _) => (Stop::Other { peer, fault }, peer),
            (None, Some(Error::Aborted { at, by })) if by.rank != at.rank => {
                let peer = here(by.rank);
                // The parent may know why that rank aborted.
                let parent_cause = self.peers.cause_of_end(&[peer], PARENT_CAUSE_WAIT);
                let aborted = || (peer, Fault::GaveUp(Box::new(FailureCause::aborted(peer))));
                let (peer, fault) = parent_cause.unwrap_or_else(aborted);
                (Stop::Other { peer, fault }, peer)
            }
            (None, Some(Error::Aborted { .. }) | None) => (Stop::Aborted, self.rank_info.rank),
            (None, _) if self.abort.load(Ordering::Relaxed) => (Stop::Aborted, self.rank_info.rank),
            (None, Some(Error::PeerLost { peer, evidence, .. })) => {
                let peer = here(peer.rank);
                let parent_cause = self.peers.cause_of_end(&[peer], PARENT_CAUSE_WAIT);
                // A report that others have lost this rank counts less than what this rank saw
                // itself, but more than the bare fact that a peer failed.
                let me = self.rank_info.rank;
                let is_me = |fault: &Fault| matches!(fault, Fault::GaveUp(it) if it.culprit == me);
                let parent_cause =
                    parent_cause.filter(|(_, fault)| evidence == PEER_FAILED || !is_me(fault));
                // The subgroup knows which of its ranks has seen the loss.
                let told = told.filter(|told| parent_cause.is_none() && told.culprit == peer);
                if let Some(told) = told {
                    self.announce_cause(me, told, true, false);
                }
                let (peer, fault) = parent_cause.unwrap_or((peer, Fault::Lost(evidence)));
                (Stop::Other { peer, fault }, peer)
            }
            (None, Some(Error::Stalled { peer, state, after, .. })) => {
                // A peer that misses the subgroup's first call may itself wait for another rank to
                // connect.
                let parent_cause = match state {
                    Stall::Paused { .. } => None,
                    _ => self.peers.stalled_among(|rank| members.contains(&rank), settings.timeout),
                };
                let stalled = parent_cause.unwrap_or((here(peer.rank), state));
                return self.stalled_construction_error(settings, name, stalled, after);
            }
            // A rank without memory has told the subgroup, or this rank is the one.
            (None, Some(error @ Error::Exhausted { .. })) => {
                let me = self.rank_info.rank;
                match told.filter(|told| told.culprit != me) {
                    Some(told) => {
                        let fault = Fault::GaveUp(Box::new(told));
                        (Stop::Other { peer: told.culprit, fault }, told.culprit)
                    }
                    None => return self.broken_by(error),
                }
            }
            // Errors of connecting often name no rank; the parent may know more.
            (
                None,
                Some(error @ (Error::Handshake { .. } | Error::Timeout { .. } | Error::Io { .. })),
            ) => {
                let timeout = settings.timeout;
                if let Some((peer, fault)) = self.peers.cause_of_end(members, CAUSE_WAIT) {
                    (Stop::Other { peer, fault }, peer)
                } else if let Error::Io { .. } = error {
                    // The failure is this rank's own.
                    return self.broken_by(error);
                } else if let Some(stalled) =
                    self.peers.stalled_among(|rank| members.contains(&rank), timeout)
                {
                    return self.stalled_construction_error(settings, name, stalled, timeout);
                } else if let Error::Timeout { peer, after, .. } = error {
                    (Stop::Timeout(after), here(peer.rank))
                } else {
                    return self.broken_by(error);
                }
            }
            (None, Some(error)) => return self.broken_by(error),
        };
        self.fail(settings, name, Halt { stop, step: 0, peer })
    }

    /// The error of a subgroup that waits for a stalled rank.
    fn stalled_construction_error(
        &mut self,
        settings: &Settings,
        name: &'static str,
        (rank, state): (usize, Stall),
        after: Duration,
    ) -> Error {
        let at = self.place(settings, name, 0);
        self.announce_cause(
            self.rank_info.rank,
            FailureCause::stalled(rank, state, after),
            true,
            false,
        );
        let peer = Box::new(self.rank_info.peers[rank].clone());
        self.broken_by(Error::Stalled { at, peer, state, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::cause::FailureReason;

    /// Rank 0 hears in a subgroup of all ranks that rank 1 has lost rank 2.
    #[test]
    fn the_parent_is_told_which_rank_of_the_subgroup_saw_a_loss() {
        let mut ranks = Communicator::local(3).unwrap();
        let (engine, settings) = ranks[0].engine_on_this_thread("split").unwrap();
        let at = engine.place(settings, "split", 0);
        let peer = Box::new(engine.rank_info.peers[2].clone());
        let error = Error::PeerLost { at, peer, evidence: "rank 1 gave up on it".into() };
        let told = FailureCause::lost_as_seen_by(1, 2);
        let all = (&[0, 1, 2][..], None);
        let error = engine.construction_error(settings, "split", all, (Some(error), Some(told)));
        assert!(matches!(&error, Error::PeerLost { peer, .. } if peer.rank == 2), "{error}");
        let (engine, _) = ranks[1].engine_on_this_thread("split").unwrap();
        engine.peers.local_detector().enter(1, 7);
        let found = engine.peers.cause(None);
        let Some((0, Fault::GaveUp(cause))) = found else { panic!("{found:?}") };
        assert_eq!((cause.culprit, cause.reason), (2, FailureReason::Lost { found_by: Some(1) }));
    }

    /// Rank 0 hears in a subgroup of all ranks that rank 2 has no memory.
    #[test]
    fn the_parent_is_told_which_rank_of_the_subgroup_lacks_memory() {
        for culprit in [2, 0] {
            let mut ranks = Communicator::local(3).unwrap();
            let (engine, settings) = ranks[0].engine_on_this_thread("split").unwrap();
            let error = Error::io("memory", std::io::ErrorKind::OutOfMemory);
            let told = FailureCause { culprit, reason: FailureReason::NoMemory };
            let all = (&[0, 1, 2][..], None);
            engine.construction_error(settings, "split", all, (Some(error), Some(told)));
            let (engine, _) = ranks[1].engine_on_this_thread("split").unwrap();
            engine.peers.local_detector().enter(1, 7);
            let found = engine.peers.cause(None);
            let Some((0, Fault::GaveUp(cause))) = found else { panic!("{found:?}") };
            assert_eq!((cause.culprit, cause.reason), (culprit, FailureReason::NoMemory));
        }
    }
}
