//! The failure cause: the rank that failed first and the reason, as ranks report it to each other.
//! Law: four words, of which the first is never 0; any four words are a cause or refused. They are
//! words and not bytes of `codec`, because they also stand as atomics in a status page.

use std::time::Duration;

use super::Stall;
use super::fault::Fault;

/// The fields in which two calls may differ: see [`Fault::Mismatch`].
const FIELDS: [&str; 6] =
    ["sequence", "fingerprint", "len", "earlier", "memory", "captured into a graph"];

/// The words of a failure cause.
pub(crate) const WORDS: usize = 4;

/// A call that differs from the call of rank `with` in `field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallMismatch {
    pub(crate) with: usize,
    pub(crate) field: &'static str,
    pub(crate) ours: u64,
    pub(crate) theirs: u64,
}

impl CallMismatch {
    fn words(self) -> [u64; WORDS - 1] {
        let field = FIELDS.iter().position(|&field| field == self.field).unwrap_or(0) as u64;
        [field << 32 | self.with as u64, self.ours, self.theirs]
    }

    fn from_words([what, ours, theirs]: [u64; WORDS - 1]) -> Option<Self> {
        let field = FIELDS.get(usize::try_from(what >> 32).ok()?)?;
        let with = (what & u64::from(u32::MAX)) as usize;
        Some(Self { with, field, ours, theirs })
    }
}

/// The reason why a rank has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The rank died, became unreachable, or failed by an error of its own.
    Lost,
    /// The program ended all calls at this rank.
    Aborted,
    /// A peer waited for the rank for this many milliseconds.
    Stalled(Stall, u64),
    /// The rank makes another call than a peer.
    Differs(CallMismatch),
}

/// The rank because of which a rank has failed, which may be the rank itself; and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    pub(crate) culprit: usize,
    pub(crate) why: Why,
}

impl Blame {
    pub(crate) const fn lost(culprit: usize) -> Self {
        Self { culprit, why: Why::Lost }
    }

    pub(crate) const fn aborted(culprit: usize) -> Self {
        Self { culprit, why: Why::Aborted }
    }

    pub(crate) fn stalled(culprit: usize, state: Stall, after: Duration) -> Self {
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self { culprit, why: Why::Stalled(state, millis) }
    }

    /// The cause that rank `me` reports after it saw `fault` at `peer`. Of two ranks in different
    /// calls, the rank that found the mismatch is the cause.
    pub(crate) fn of_fault(me: usize, peer: usize, fault: &Fault) -> Self {
        match *fault {
            Fault::Lost(_) => Self::lost(peer),
            Fault::GaveUp(ref blame) => **blame,
            Fault::Mismatch { field, ours, theirs } => {
                let why = Why::Differs(CallMismatch { with: peer, field, ours, theirs });
                Self { culprit: me, why }
            }
            Fault::Corrupt { .. } | Fault::Forged { .. } => Self::lost(me),
        }
    }

    /// This cause with the ranks of another communicator; `None` if a rank is not in it.
    pub(crate) fn renumbered(self, number: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let why = match self.why {
            Why::Differs(it) => Why::Differs(CallMismatch { with: number(it.with)?, ..it }),
            why => why,
        };
        Some(Self { culprit: number(self.culprit)?, why })
    }

    /// True if all ranks in this cause are below `size`.
    pub(crate) fn is_within(self, size: usize) -> bool {
        self.renumbered(|rank| (rank < size).then_some(rank)).is_some()
    }

    /// The mismatch as rank `me` reports it, with both values exchanged; `None` unless the culprit
    /// differs from `me`. A fingerprint other than that of the current call, `fingerprint`, is from
    /// an earlier call.
    pub(crate) fn seen_by(self, me: usize, fingerprint: Option<u64>) -> Option<Fault> {
        let Why::Differs(CallMismatch { with, field, ours: theirs, theirs: ours }) = self.why
        else {
            return None;
        };
        let field = match field {
            "fingerprint" | "earlier" if fingerprint == Some(ours) => "fingerprint",
            "fingerprint" => "earlier",
            field => field,
        };
        (with == me && self.culprit != me).then_some(Fault::Mismatch { field, ours, theirs })
    }

    pub(crate) fn words(self) -> [u64; WORDS] {
        let (why, [what, ours, theirs]) = match self.why {
            Why::Lost => (0, [0; WORDS - 1]),
            Why::Aborted => (1, [0; WORDS - 1]),
            Why::Differs(mismatch) => (2, mismatch.words()),
            Why::Stalled(Stall::Paused { entered }, after) => (3, [0, entered, after]),
            Why::Stalled(Stall::Silent { waited }, after) => (3, [1, waited, after]),
            Why::Stalled(Stall::NeverEntered { entered }, after) => (3, [2, entered, after]),
        };
        [why << 32 | (self.culprit as u64 + 1), what, ours, theirs]
    }

    pub(crate) fn from_words([first, rest @ ..]: [u64; WORDS]) -> Option<Self> {
        let culprit = (first & u64::from(u32::MAX)).checked_sub(1)? as usize;
        let is_plain = rest == [0; WORDS - 1];
        let why = match first >> 32 {
            0 if is_plain => Why::Lost,
            1 if is_plain => Why::Aborted,
            2 => Why::Differs(CallMismatch::from_words(rest)?),
            3 => {
                let [kind, call, after] = rest;
                let state = match kind {
                    0 => Stall::Paused { entered: call },
                    1 => Stall::Silent { waited: call },
                    2 => Stall::NeverEntered { entered: call },
                    _ => return None,
                };
                Why::Stalled(state, after)
            }
            _ => return None,
        };
        Some(Self { culprit, why })
    }
}
