//! How a call fails: the error that names who and where, and who else is told.
//! May touch: as `comm`. Law: after the first failure nothing works any more, and says so.

use super::Seat;
use super::engine::{Engine, PROBE};
use super::options::Settings;
use crate::error::{Error, Peer, Place, Result};
use crate::exec::{Halt, Stop};
use crate::link::notice::Difference;
use crate::link::{Fault, MESSAGE};
use crate::plan::fingerprint;

impl Engine {
    /// An error, if a call failed before.
    pub(super) fn works(&self, call: &'static str) -> Result<()> {
        let broken = |first: &String| Error::Broken { call, first: first.clone() };
        self.broken.as_ref().map(broken).map_or(Ok(()), Err)
    }

    pub(super) fn fail(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        operation: &'static str,
        halt: Halt,
    ) -> Error {
        self.fail_of(seat, settings, (operation, None), halt)
    }

    /// The same, for a call of so many elements.
    #[cold]
    pub(super) fn fail_of(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        (operation, count): (&'static str, Option<usize>),
        halt: Halt,
    ) -> Error {
        let Halt { stop, step, peer } = halt;
        let peer = if let Stop::Other { peer, .. } = stop { peer } else { peer };
        let (peer, stop) = match stop {
            Stop::Fault(Fault::Lost(evidence)) => match self.links.why_ended(&[peer]) {
                Some((peer, fault)) => (peer, Stop::Other { peer, fault }),
                None => (peer, Stop::Fault(Fault::Lost(evidence))),
            },
            stop => (peer, stop),
        };
        let is_hearsay = match &stop {
            Stop::Fault(fault) | Stop::Other { fault, .. } => fault.is_hearsay(),
            _ => false,
        };
        let (peer, stop) = first_cause(seat.rank, peer, stop, seat.peers.len());
        let stalled = match stop {
            Stop::Timeout(after) if !after.is_zero() => {
                self.links.stalled((peer, self.sequence | MESSAGE), after)
            }
            _ => None,
        };
        let peer = stalled.map_or(peer, |(culprit, _)| culprit);
        let at = self.place(seat, settings, operation, step);
        if peer != seat.rank {
            self.tell_others(seat.rank, peer, &stop, (!is_hearsay, stalled.is_some()));
        }
        let peer = Box::new(seat.peers[peer].clone());
        let error = match stop {
            Stop::Aborted => Error::Aborted { at },
            Stop::Timeout(after) => match stalled {
                Some((_, state)) => Error::Stalled { at, peer, state, after },
                None => Error::Timeout { at, peer, after },
            },
            Stop::Fault(fault) | Stop::Other { fault, .. } => of_fault(at, peer, fault, count),
        };
        self.broken_by(error)
    }

    /// Tells the others of the first cause, as far as this rank knows it.
    fn tell_others(
        &mut self,
        me: usize,
        peer: usize,
        stop: &Stop,
        (first_hand, is_seen): (bool, bool),
    ) {
        // Of two ranks that differ it is the one who found out that knows in what.
        let lost = |fault: &Fault| matches!(fault, Fault::Lost(_) | Fault::GaveUp(_));
        let is_lost = match stop {
            Stop::Timeout(_) => true,
            Stop::Fault(fault) | Stop::Other { fault, .. } => lost(fault),
            Stop::Aborted => false,
        };
        let cause = if is_lost { peer } else { me };
        let difference = match *stop {
            Stop::Fault(Fault::Mismatch { field, ours, theirs })
            | Stop::Other { fault: Fault::Mismatch { field, ours, theirs }, .. } => {
                Some(Difference { with: peer, field, ours, theirs })
            }
            _ => None,
        };
        // Who is slow leaves a trail: there the one who waits for the cause shall find out.
        let is_trail = matches!(stop, Stop::Timeout(_)) && !is_seen;
        if !is_trail {
            self.links.blame(cause, first_hand, difference);
        }
        if cause != me {
            self.because.say(cause);
        }
    }

    /// Where this rank is, for an error.
    pub(super) fn place(
        &self,
        seat: &Seat,
        settings: &Settings,
        operation: &'static str,
        step: usize,
    ) -> Box<Place> {
        let Peer { rank, host, .. } = seat.peers[seat.rank].clone();
        let tag = settings.tag.as_deref().map(str::to_owned);
        let (operation, sequence) = settings.part_of.unwrap_or((operation, self.sequence));
        Box::new(Place { rank, host, operation, sequence, tag, step })
    }

    /// After `error` nothing works any more.
    #[cold]
    pub(super) fn broken_by(&mut self, error: Error) -> Error {
        self.give_up(error.to_string());
        error
    }

    /// After the first failure, `why`, nothing works any more. The others learn of it by the
    /// closing of the links and of the lines of registered memory.
    pub(super) fn give_up(&mut self, why: String) {
        self.broken.get_or_insert(why);
        self.links.lives().fail(None, true);
        self.links.controls().fail();
        self.links.close();
        self.registry.close();
    }
}

/// What is known of a rank that says no more.
pub(super) const FAILED: &str = "it failed, or was aborted";

/// Who gave up has a cause, which is not itself.
fn first_cause(me: usize, peer: usize, stop: Stop, size: usize) -> (usize, Stop) {
    match stop {
        Stop::Fault(Fault::GaveUp(culprit)) | Stop::Other { fault: Fault::GaveUp(culprit), .. } => {
            let (peer, evidence) = if culprit == me {
                (peer, "it gave up on this rank".into())
            } else if culprit == peer {
                (peer, FAILED.into())
            } else if culprit < size {
                (culprit, format!("rank {peer} gave up on it"))
            } else {
                (peer, "it gave up on a rank that there is not".into())
            };
            (peer, Stop::Other { peer, fault: Fault::Lost(evidence) })
        }
        stop => (peer, stop),
    }
}

/// What a link failed of, and where.
fn of_fault(at: Box<Place>, peer: Box<Peer>, fault: Fault, count: Option<usize>) -> Error {
    match fault {
        Fault::Lost(evidence) => Error::PeerLost { at, peer, evidence },
        Fault::Corrupt { slot, sent, found } => Error::Corrupt { at, peer, slot, sent, found },
        Fault::Forged { slot } => Error::Forged { at, peer, slot },
        Fault::GaveUp(rank) => {
            Error::PeerLost { at, peer, evidence: format!("it gave up on rank {rank}") }
        }
        Fault::Mismatch { field: from @ ("fingerprint" | "earlier"), ours, theirs } => {
            let count = count.filter(|_| from == "fingerprint");
            let (field, ours, theirs) = fingerprint::difference(ours, theirs, count);
            Error::Mismatch { at, peer, field, ours, theirs }
        }
        Fault::Mismatch { field: "memory", ours, theirs } => {
            let name = |yes| if yes == 1 { "registered" } else { "not registered" }.to_string();
            let (ours, theirs) = (name(ours), name(theirs));
            Error::Mismatch { at, peer, field: "the buffer", ours, theirs }
        }
        Fault::Mismatch { field: field @ "sequence", ours, theirs } => {
            let (ours, theirs) = (number(ours), number(theirs));
            Error::Mismatch { at, peer, field, ours, theirs }
        }
        Fault::Mismatch { field, ours, theirs } => {
            let (ours, theirs) = (ours.to_string(), theirs.to_string());
            Error::Mismatch { at, peer, field, ours, theirs }
        }
    }
}

/// The number of a call, in words.
fn number(sequence: u64) -> String {
    let call = sequence & !(MESSAGE | PROBE);
    match (sequence & MESSAGE, sequence & PROBE) {
        (0, 0) => format!("that of call #{call}"),
        (0, _) => "that of a measurement before the first call".into(),
        _ => format!("that of a message after call #{call}"),
    }
}
