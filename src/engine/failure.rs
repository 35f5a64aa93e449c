//! How a call fails: the error that names the failed rank and the place, and the failure cause that
//! the other ranks are told.
//! Law: after the first failure every further call fails and says why.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use super::call::number_in_words;
use super::settings::Settings;
use crate::error::cause::{FailureCause, FailureReason};
use crate::error::{Error, Peer, Place, Result, Stall};
use crate::exec::{Halt, Stop};
use crate::health::CAUSE_WAIT;
use crate::plan::fingerprint;
use crate::sync::Instant;
use crate::transport::{Fault, MismatchField};

impl Engine {
    /// An error, if an earlier call failed.
    #[inline]
    pub(crate) fn check_usable(&self, call: &'static str) -> Result<()> {
        let Some(first) = self.broken.get() else { return Ok(()) };
        Err(broken_before(call, first))
    }

    pub(crate) fn fail(
        &mut self,
        settings: &Settings,
        operation: &'static str,
        halt: Halt,
    ) -> Error {
        self.fail_with_count(settings, (operation, None), halt)
    }

    /// The error of a call that `halt` has ended, which breaks the communicator. `count` is the
    /// number of elements of a collective.
    #[cold]
    pub(crate) fn fail_with_count(
        &mut self,
        settings: &Settings,
        (operation, count): (&'static str, Option<usize>),
        halt: Halt,
    ) -> Error {
        let Halt { stop, step, peer } = halt;
        let peer = if let Stop::Other { peer, .. } = stop { peer } else { peer };
        let (peer, stop) = match stop {
            Stop::Fault(Fault::Lost(evidence)) => {
                let abort = &self.abort;
                let is_aborted = || abort.load(Ordering::Relaxed);
                match self.peers.cause_of_broken_link(peer, settings.timeout, is_aborted) {
                    Some((peer, fault)) => (peer, Stop::Other { peer, fault }),
                    None => (peer, Stop::Fault(Fault::Lost(evidence))),
                }
            }
            Stop::Timeout(after) => {
                match self.peers.cause_of_timeout(after, CAUSE_WAIT.min(after / 4)) {
                    Some((peer, fault)) => (peer, Stop::Other { peer, fault }),
                    None => (peer, Stop::Timeout(after)),
                }
            }
            stop => (peer, stop),
        };
        let is_second_hand = match &stop {
            Stop::Fault(fault) | Stop::Other { fault, .. } => fault.is_second_hand(),
            _ => false,
        };
        let (peer, stop) = first_cause(self.rank_info.rank, peer, stop, self.rank_info.peers.len());
        let stalled = match stop {
            Stop::Timeout(after) if !after.is_zero() => self.peers.stalled_peer(after),
            _ => None,
        };
        let peer = stalled.map_or(peer, |(culprit, _)| culprit);
        let at = self.place(settings, operation, step);
        // After a timeout of unknown cause the other ranks are told nothing: the slow rank records
        // its own cause, and ranks that wait for it read the cause there.
        let is_cause_unknown = matches!(stop, Stop::Timeout(_)) && stalled.is_none();
        let cause = match &stop {
            Stop::Aborted => FailureCause::aborted(self.rank_info.rank),
            Stop::Timeout(after) => match stalled {
                Some((_, state)) => FailureCause::stalled(peer, state, *after),
                None => FailureCause::lost(peer),
            },
            Stop::Fault(fault) | Stop::Other { fault, .. } => {
                FailureCause::of_fault(self.rank_info.rank, peer, fault)
            }
        };
        self.announce_cause(self.rank_info.rank, cause, !is_second_hand, is_cause_unknown);
        let error = match stop {
            Stop::Aborted => Error::Aborted {
                at,
                by: Box::new(self.rank_info.peers[self.rank_info.rank].clone()),
            },
            Stop::Timeout(after) => {
                let peer = Box::new(self.rank_info.peers[peer].clone());
                match stalled {
                    Some((_, state)) => Error::Stalled { at, peer, state, after },
                    None => Error::Timeout { at, peer, after },
                }
            }
            Stop::Fault(fault) | Stop::Other { fault, .. } => {
                self.of_fault(at, (peer, fault), count)
            }
        };
        let error = self.with_launcher_status(error);
        let error = self.as_of_parent(settings, peer, error);
        self.broken_by(error)
    }

    /// The error about rank `peer`; or that of the call which made this subgroup, if the rank has
    /// not come because it failed or waits there, for a third one.
    fn as_of_parent(&mut self, settings: &Settings, peer: usize, error: Error) -> Error {
        let channels = self.peers.control_channels().channels();
        let found = match &error {
            // Calls of parts of a larger call are told apart by ranks of this communicator.
            _ if settings.parent_call.is_some() => None,
            Error::PeerLost { evidence, .. } => {
                // The peer shows its failure to ranks of its host before it tells the cause.
                let may_come = evidence == PEER_FAILED && channels.has_parent();
                let began = Instant::now();
                loop {
                    let found = channels.failure_in_parent(peer);
                    if found.is_some() || !may_come || began.elapsed() >= CAUSE_WAIT {
                        break found;
                    }
                    std::thread::sleep(CAUSE_WAIT / 20);
                }
            }
            Error::Stalled { state: Stall::Paused { .. } | Stall::InCall { .. }, .. } => None,
            Error::Timeout { after, .. } | Error::Stalled { after, .. } => {
                channels.failure_in_parent(peer).or_else(|| channels.wait_in_parent(peer, *after))
            }
            _ => None,
        };
        found.unwrap_or(error)
    }

    /// The error of a message whose other end, `peer`, is lost or has given it up, by the first
    /// cause; gives `at` back if no cause is known after a wait of `most`.
    pub(super) fn lost(
        &mut self,
        at: Box<Place>,
        peer: &Peer,
        most: Duration,
    ) -> std::result::Result<Error, Box<Place>> {
        let Some((rank, fault)) = self.peers.cause_of_end(&[peer.rank], most) else {
            return Err(at);
        };
        let stop = Stop::Other { peer: rank, fault };
        match first_cause(self.rank_info.rank, rank, stop, self.rank_info.peers.len()) {
            (rank, Stop::Fault(fault) | Stop::Other { fault, .. }) => {
                let error = self.of_fault(at, (rank, fault), None);
                Ok(self.with_launcher_status(error))
            }
            (_, _) => Err(at),
        }
    }

    /// Adds the lost rank's exit status, if the launcher has reported one by now.
    pub(super) fn with_launcher_status(&self, mut error: Error) -> Error {
        if let Error::PeerLost { peer, evidence, .. } = &mut error
            && let Some(how) = self.peers.launched_ranks.ended(peer.rank)
        {
            evidence.push_str(&format!("; its launcher saw it {how}"));
        }
        error
    }

    /// Tells the other ranks, and the communicators that this one is a group of, the failure cause
    /// as far as this rank knows it.
    pub(crate) fn announce_cause(
        &mut self,
        me: usize,
        cause: FailureCause,
        first_hand: bool,
        is_cause_unknown: bool,
    ) {
        let cause = self.peers.with_finder(cause);
        if !is_cause_unknown {
            self.peers.report_failure(cause, first_hand);
        }
        if cause.culprit != me {
            self.group_failure.record(cause);
        }
    }

    /// The error for a fault of a link or a peer.
    fn of_fault(
        &self,
        at: Box<Place>,
        (rank, fault): (usize, Fault),
        count: Option<usize>,
    ) -> Error {
        let peer = Box::new(self.rank_info.peers[rank].clone());
        let differ = |ranks: [usize; 2], values: [u64; 2], field, count| {
            let [theirs, ours] = values;
            let (ours, world) = ((ours, count), self.planner.world_digest);
            let (field, ours, theirs) = difference(field, ours, theirs, world);
            let ranks = Box::new(ranks.map(|rank| self.rank_info.peers[rank].clone()));
            Error::Mismatch { at: at.clone(), ranks, field, values: [theirs, ours] }
        };
        match fault {
            Fault::Lost(evidence) => Error::PeerLost { at, peer, evidence },
            Fault::Corrupt { slot, sent, found } => Error::Corrupt { at, peer, slot, sent, found },
            Fault::Forged { slot } => Error::Forged { at, peer, slot },
            Fault::NoMemory(error) => match *error {
                Error::Exhausted { doing, limit, answer } => {
                    Error::Exhausted { doing: format!("{at}: {doing}"), limit, answer }
                }
                error => error,
            },
            Fault::Mismatch { field, ours, theirs } => {
                differ([rank, self.rank_info.rank], [theirs, ours], field, count)
            }
            Fault::GaveUp(cause) => match cause.reason {
                FailureReason::Lost { .. } => {
                    Error::PeerLost { at, peer, evidence: PEER_FAILED.into() }
                }
                FailureReason::Aborted => Error::Aborted { at, by: peer },
                FailureReason::NoMemory => {
                    Error::io(format!("{at}: memory of {peer}"), ErrorKind::OutOfMemory)
                }
                FailureReason::Stalled(state, millis) => {
                    Error::Stalled { at, peer, state, after: Duration::from_millis(millis) }
                }
                FailureReason::Differs(it) => {
                    // If one of the two calls is this rank's call too, the error compares the other
                    // one with it.
                    let print = self.peers.local_detector().fingerprint(self.sequence);
                    let count = count.filter(|_| [it.ours, it.theirs].map(Some).contains(&print));
                    if print == Some(it.ours) {
                        differ([it.with, rank], [it.theirs, it.ours], it.field, count)
                    } else {
                        differ([rank, it.with], [it.ours, it.theirs], it.field, count)
                    }
                }
            },
        }
    }

    /// This rank's place in its call, for an error.
    pub(crate) fn place(
        &self,
        settings: &Settings,
        operation: &'static str,
        step: usize,
    ) -> Box<Place> {
        let Peer { rank, host, .. } = self.rank_info.peers[self.rank_info.rank].clone();
        let tag = settings.tag.as_deref().map(str::to_owned);
        let (operation, sequence) = settings.parent_call.unwrap_or((operation, self.sequence));
        let communicator = self.rank_info.name.copy();
        Box::new(Place { rank, host, operation, sequence, tag, communicator, step })
    }

    /// Breaks the communicator by `error`.
    #[cold]
    pub(crate) fn broken_by(&mut self, error: Error) -> Error {
        self.give_up(error.clone());
        error
    }

    /// Breaks the communicator; the first failure, `why`, is the cause that later calls report.
    /// Peers notice by the closed links and the closed lines of shared memory, unless they have
    /// been told the cause.
    pub(crate) fn give_up(&mut self, why: Error) {
        let reason = FailureReason::of_own(&why);
        // A failure that came before stays the first.
        let _ = self.broken.set(why);
        self.peers.report_own_failure(reason);
        self.peers.links.close();
        self.registry.close();
    }
}

/// The error of a call on a communicator that an earlier failure has broken.
#[cold]
fn broken_before(call: &'static str, first: &Error) -> Error {
    let first = match first {
        Error::Broken { first, .. } => first.clone(),
        first => first.to_string(),
    };
    Error::Broken { call, first }
}

/// Evidence for the loss of a rank that failed without a cause of its own.
pub(crate) const PEER_FAILED: &str = "it failed";

/// The rank at fault and the fault, if `peer` gave up because of another rank.
fn first_cause(me: usize, peer: usize, stop: Stop, size: usize) -> (usize, Stop) {
    let (Stop::Fault(Fault::GaveUp(cause)) | Stop::Other { fault: Fault::GaveUp(cause), .. }) =
        stop
    else {
        return (peer, stop);
    };
    let FailureCause { culprit, reason } = *cause;
    let lost = |peer, evidence: String| (peer, Fault::Lost(evidence));
    let (peer, fault) = match reason {
        _ if !cause.is_within(size) => {
            lost(peer, "it gave up on a rank that does not exist".into())
        }
        FailureReason::Lost { .. } | FailureReason::Stalled(..) if culprit == me => {
            lost(peer, "it gave up on this rank".into())
        }
        FailureReason::Lost { .. } if culprit == peer => lost(peer, PEER_FAILED.into()),
        FailureReason::Lost { .. } => lost(culprit, format!("rank {peer} gave up on it")),
        FailureReason::Aborted
        | FailureReason::NoMemory
        | FailureReason::Stalled(..)
        | FailureReason::Differs(_) => match cause.as_mismatch(me, None) {
            Some(fault) => (culprit, fault),
            None => (culprit, Fault::GaveUp(cause)),
        },
    };
    (peer, Stop::Other { peer, fault })
}

/// The field in which two calls differ, and both values, in words. `count` is the element count of
/// this rank's call, whose value is `ours`; `world` is the planner's digest.
fn difference(
    field: MismatchField,
    (ours, count): (u64, Option<usize>),
    theirs: u64,
    world: u64,
) -> (&'static str, String, String) {
    match field {
        MismatchField::Fingerprint => fingerprint::describe_mismatch((ours, count), theirs, world),
        MismatchField::Earlier => fingerprint::describe_mismatch((ours, None), theirs, world),
        // The fingerprint of a call on device buffers has no digest of the world.
        MismatchField::DeviceCall => fingerprint::describe_mismatch((ours, count), theirs, 0),
        MismatchField::Sequence => (field.name(), number_in_words(ours), number_in_words(theirs)),
        field => (field.name(), ours.to_string(), theirs.to_string()),
    }
}
