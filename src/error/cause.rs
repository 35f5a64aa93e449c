//! The failure cause: the rank that failed first and the reason, as ranks report it to each other.
//! Law: four words, of which the first is never 0; any four words are a cause or refused. They are
//! words and not bytes of `codec`, because they also stand as atomics in a status entry.

use std::time::Duration;

use super::fault::{Fault, MismatchField};
use super::{Error, Limit, Stall};

/// The words of a failure cause.
pub(crate) const WORDS: usize = 4;

/// A call that differs from the call of rank `with` in `field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallMismatch {
    pub(crate) with: usize,
    pub(crate) field: MismatchField,
    pub(crate) ours: u64,
    pub(crate) theirs: u64,
}

impl CallMismatch {
    fn words(self) -> [u64; WORDS - 1] {
        [(self.field as u64) << 32 | self.with as u64, self.ours, self.theirs]
    }

    fn from_words([what, ours, theirs]: [u64; WORDS - 1]) -> Option<Self> {
        let field = MismatchField::from_number(what >> 32)?;
        let with = (what & u64::from(u32::MAX)) as usize;
        Some(Self { with, field, ours, theirs })
    }
}

/// The reason why a rank has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The rank died, became unreachable, or failed by an error of its own.
    Lost {
        /// The rank that saw that itself; none if the lost rank reports its own failure, or if the
        /// reporting rank does not know.
        found_by: Option<usize>,
    },
    /// The program ended all calls at this rank.
    Aborted,
    /// The rank lacked memory for a call.
    NoMemory,
    /// A peer waited for the rank for this many milliseconds.
    Stalled(Stall, u64),
    /// The rank makes another call than a peer.
    Differs(CallMismatch),
}

impl FailureReason {
    /// The reason of a rank that fails by an error of its own.
    pub(crate) fn of_own(error: &Error) -> Self {
        match error {
            Error::Exhausted { limit: Limit::Memory, .. } => Self::NoMemory,
            _ => Self::Lost { found_by: None },
        }
    }
}

/// The rank because of which a rank has failed, which may be the rank itself; and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCause {
    pub(crate) culprit: usize,
    pub(crate) reason: FailureReason,
}

impl FailureCause {
    pub(crate) const fn lost(culprit: usize) -> Self {
        Self { culprit, reason: FailureReason::Lost { found_by: None } }
    }

    pub(crate) const fn lost_as_seen_by(finder: usize, culprit: usize) -> Self {
        Self { culprit, reason: FailureReason::Lost { found_by: Some(finder) } }
    }

    pub(crate) const fn aborted(culprit: usize) -> Self {
        Self { culprit, reason: FailureReason::Aborted }
    }

    pub(crate) fn stalled(culprit: usize, state: Stall, after: Duration) -> Self {
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self { culprit, reason: FailureReason::Stalled(state, millis) }
    }

    /// The cause that rank `me` reports after it saw `fault` at `peer`. Of two ranks in different
    /// calls, the rank that found the mismatch is the cause.
    pub(crate) fn of_fault(me: usize, peer: usize, fault: &Fault) -> Self {
        match *fault {
            Fault::Lost(_) => Self::lost_as_seen_by(me, peer),
            Fault::GaveUp(ref cause) => **cause,
            Fault::Mismatch { field, ours, theirs } => {
                let reason =
                    FailureReason::Differs(CallMismatch { with: peer, field, ours, theirs });
                Self { culprit: me, reason }
            }
            Fault::NoMemory(_) => Self { culprit: me, reason: FailureReason::NoMemory },
            Fault::Corrupt { .. } | Fault::Forged { .. } => Self::lost(me),
        }
    }

    /// This cause with the ranks of another communicator; `None` if a rank is not in it.
    pub(crate) fn renumbered(self, number: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let reason = match self.reason {
            FailureReason::Differs(it) => {
                FailureReason::Differs(CallMismatch { with: number(it.with)?, ..it })
            }
            FailureReason::Lost { found_by } => {
                FailureReason::Lost { found_by: found_by.and_then(&number) }
            }
            reason => reason,
        };
        Some(Self { culprit: number(self.culprit)?, reason })
    }

    /// True if all ranks in this cause are below `size`.
    pub(crate) fn is_within(self, size: usize) -> bool {
        self.renumbered(|rank| (rank < size).then_some(rank)) == Some(self)
    }

    /// The mismatch as rank `me` reports it, with both values exchanged; `None` unless the culprit
    /// differs from `me`. A fingerprint other than that of the current call, `fingerprint`, is from
    /// an earlier call.
    pub(crate) fn as_mismatch(self, me: usize, fingerprint: Option<u64>) -> Option<Fault> {
        let FailureReason::Differs(CallMismatch { with, field, ours: theirs, theirs: ours }) =
            self.reason
        else {
            return None;
        };
        let field = match field {
            MismatchField::Fingerprint | MismatchField::Earlier if fingerprint == Some(ours) => {
                MismatchField::Fingerprint
            }
            MismatchField::Fingerprint => MismatchField::Earlier,
            field => field,
        };
        (with == me && self.culprit != me).then_some(Fault::Mismatch { field, ours, theirs })
    }

    pub(crate) fn words(self) -> [u64; WORDS] {
        let (reason, [what, ours, theirs]) = match self.reason {
            FailureReason::Lost { found_by } => {
                (0, [found_by.map_or(0, |rank| rank as u64 + 1), 0, 0])
            }
            FailureReason::Aborted => (1, [0; WORDS - 1]),
            FailureReason::Differs(mismatch) => (2, mismatch.words()),
            FailureReason::Stalled(Stall::Paused { entered }, after) => (3, [0, entered, after]),
            FailureReason::Stalled(Stall::Silent { waited }, after) => (3, [1, waited, after]),
            FailureReason::Stalled(Stall::NeverEntered { entered }, after) => {
                (3, [2, entered, after])
            }
            FailureReason::Stalled(Stall::InCall { entered }, after) => (3, [3, entered, after]),
            FailureReason::NoMemory => (4, [0; WORDS - 1]),
        };
        [reason << 32 | (self.culprit as u64 + 1), what, ours, theirs]
    }

    pub(crate) fn from_words([first, rest @ ..]: [u64; WORDS]) -> Option<Self> {
        let culprit = (first & u64::from(u32::MAX)).checked_sub(1)? as usize;
        let is_plain = rest == [0; WORDS - 1];
        let reason = match first >> 32 {
            0 if rest[1..] == [0; WORDS - 2] && rest[0] <= u64::from(u32::MAX) => {
                FailureReason::Lost { found_by: rest[0].checked_sub(1).map(|rank| rank as usize) }
            }
            1 if is_plain => FailureReason::Aborted,
            4 if is_plain => FailureReason::NoMemory,
            2 => FailureReason::Differs(CallMismatch::from_words(rest)?),
            3 => {
                let [kind, call, after] = rest;
                let state = match kind {
                    0 => Stall::Paused { entered: call },
                    1 => Stall::Silent { waited: call },
                    2 => Stall::NeverEntered { entered: call },
                    3 => Stall::InCall { entered: call },
                    _ => return None,
                };
                FailureReason::Stalled(state, after)
            }
            _ => return None,
        };
        Some(Self { culprit, reason })
    }
}
