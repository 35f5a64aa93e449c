//! Because of whom a rank has failed, and why, as ranks tell each other.
//! May touch: the faults of links. Law: four words, of which the first is never 0; four words of
//! anything are a blame or none.

use std::time::Duration;

use super::Stall;
use super::fault::Fault;

/// In what two ranks may differ, as [`Fault::Mismatch`] has it.
const FIELDS: [&str; 6] =
    ["sequence", "fingerprint", "len", "earlier", "memory", "captured into a graph"];

/// How many words say it.
pub(crate) const WORDS: usize = 4;

/// In what a rank differs from another one, and both values, its own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) with: usize,
    pub(crate) field: &'static str,
    pub(crate) ours: u64,
    pub(crate) theirs: u64,
}

impl Difference {
    fn words(self) -> [u64; WORDS - 1] {
        let field = FIELDS.iter().position(|&field| field == self.field).unwrap_or(0) as u64;
        [field << 32 | self.with as u64, self.ours, self.theirs]
    }

    fn of([what, ours, theirs]: [u64; WORDS - 1]) -> Option<Self> {
        let field = FIELDS.get(usize::try_from(what >> 32).ok()?)?;
        let with = (what & u64::from(u32::MAX)) as usize;
        Some(Self { with, field, ours, theirs })
    }
}

/// What was the matter with a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was lost, or failed of something of its own.
    Lost,
    /// Its caller ended all calls.
    Aborted,
    /// It kept somebody waiting for so many milliseconds.
    Stalled(Stall, u64),
    /// It makes another call than somebody else.
    Differs(Difference),
}

/// Because of whom a rank has failed, which may be itself; and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    pub(crate) culprit: usize,
    pub(crate) why: Why,
}

impl Blame {
    /// It was lost, or failed.
    pub(crate) const fn lost(culprit: usize) -> Self {
        Self { culprit, why: Why::Lost }
    }

    /// It was aborted.
    pub(crate) const fn aborted(culprit: usize) -> Self {
        Self { culprit, why: Why::Aborted }
    }

    /// It kept others waiting for so long.
    pub(crate) fn stalled(culprit: usize, state: Stall, after: Duration) -> Self {
        let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self { culprit, why: Why::Stalled(state, millis) }
    }

    /// Of `me`, who saw `fault` at `peer`: who is the cause of what follows. Of two that differ it
    /// is the one who found out.
    pub(crate) fn of_fault(me: usize, peer: usize, fault: &Fault) -> Self {
        match *fault {
            Fault::Lost(_) => Self::lost(peer),
            Fault::GaveUp(ref blame) => **blame,
            Fault::Mismatch { field, ours, theirs } => {
                let why = Why::Differs(Difference { with: peer, field, ours, theirs });
                Self { culprit: me, why }
            }
            Fault::Corrupt { .. } | Fault::Forged { .. } => Self::lost(me),
        }
    }

    /// The same in another numbering of ranks, if it has these.
    pub(crate) fn renumbered(self, number: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let why = match self.why {
            Why::Differs(it) => Why::Differs(Difference { with: number(it.with)?, ..it }),
            why => why,
        };
        Some(Self { culprit: number(self.culprit)?, why })
    }

    /// Does it speak of ranks of a world of this size?
    pub(crate) fn is_within(self, size: usize) -> bool {
        self.renumbered(|rank| (rank < size).then_some(rank)).is_some()
    }

    /// What it is to the rank that the culprit differs from, which calls what `print` says, if that
    /// is known: a difference in an earlier call, unless it is in this one.
    pub(crate) fn seen_by(self, me: usize, print: Option<u64>) -> Option<Fault> {
        let Why::Differs(Difference { with, field, ours: theirs, theirs: ours }) = self.why else {
            return None;
        };
        let field = match field {
            "fingerprint" | "earlier" if print == Some(ours) => "fingerprint",
            "fingerprint" => "earlier",
            field => field,
        };
        (with == me && self.culprit != me).then_some(Fault::Mismatch { field, ours, theirs })
    }

    pub(crate) fn words(self) -> [u64; WORDS] {
        let (why, [what, ours, theirs]) = match self.why {
            Why::Lost => (0, [0; WORDS - 1]),
            Why::Aborted => (1, [0; WORDS - 1]),
            Why::Differs(difference) => (2, difference.words()),
            Why::Stalled(Stall::Paused { entered }, after) => (3, [0, entered, after]),
            Why::Stalled(Stall::Silent { waited }, after) => (3, [1, waited, after]),
            Why::Stalled(Stall::NeverEntered { entered }, after) => (3, [2, entered, after]),
        };
        [why << 32 | (self.culprit as u64 + 1), what, ours, theirs]
    }

    pub(crate) fn of([first, rest @ ..]: [u64; WORDS]) -> Option<Self> {
        let culprit = (first & u64::from(u32::MAX)).checked_sub(1)? as usize;
        let is_plain = rest == [0; WORDS - 1];
        let why = match first >> 32 {
            0 if is_plain => Why::Lost,
            1 if is_plain => Why::Aborted,
            2 => Why::Differs(Difference::of(rest)?),
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
