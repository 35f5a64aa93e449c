//! What keeps calls of ranks whose streams wait for each other from their end. May touch: nothing.

use std::time::Duration;

/// What a rank says that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The number of the call, from 1; with [`IN_GRAPH`] if it was captured.
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u64,
}

impl Claim {
    /// The number alone.
    pub(crate) fn number(self) -> u64 {
        self.sequence & !IN_GRAPH
    }
}

/// In the number of a call: it becomes part of a graph.
pub(crate) const IN_GRAPH: u64 = 1 << 63;

/// What kept a call from its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone.
    Lost { peer: usize, evidence: String },
    /// A rank failed of another one or of itself, which may have been aborted; or of one that has
    /// no part in this.
    GaveUp { peer: usize, by: usize, aborted: bool, beyond: Option<usize> },
    /// A rank did not come in time.
    Late { peer: usize, after: Duration },
    /// A rank makes another call: fingerprints, ours first.
    Differs { peer: usize, ours: u64, theirs: u64 },
    /// A rank makes the same call, but only one of both has it captured: is it this one?
    Captured { peer: usize, ours: bool },
    /// Somebody asked for it.
    Aborted,
    /// This rank's device refused something, or what its calls depend on failed, of a rank that has
    /// no part in this.
    Refused { reason: String, beyond: Option<usize> },
}

/// What is wrong if `peer` says that it makes this call.
pub(super) fn differ(peer: usize, ours: Claim, theirs: Claim) -> Option<Trouble> {
    match ours.sequence ^ theirs.sequence {
        IN_GRAPH => Some(Trouble::Captured { peer, ours: ours.sequence & IN_GRAPH != 0 }),
        0 if ours.fingerprint != theirs.fingerprint => {
            let (ours, theirs) = (ours.fingerprint, theirs.fingerprint);
            Some(Trouble::Differs { peer, ours, theirs })
        }
        _ => None,
    }
}

/// In what a board says: the rank was aborted.
const ABORTED: u32 = 1 << 15;

/// How a board says of which rank a call failed, and whether that one was aborted: of one that has
/// a board, or of one beyond.
pub(super) fn closing(culprit: usize, aborted: bool, beyond: Option<usize>) -> u32 {
    let beyond = beyond.and_then(|rank| u16::try_from(rank + 1).ok());
    let why = if aborted { ABORTED } else { 0 };
    u32::from(beyond.unwrap_or(0)) << 16 | why | (culprit as u32 + 2)
}

/// The other way, if it says so.
pub(super) fn why_closed(word: u32) -> Option<(usize, bool, Option<usize>)> {
    let culprit = (word & (ABORTED - 1)).checked_sub(2)?;
    let beyond = (word >> 16).checked_sub(1).map(|rank| rank as usize);
    Some((culprit as usize, word & ABORTED != 0, beyond))
}

#[cfg(test)]
mod tests {
    use super::{closing, why_closed};

    #[test]
    fn a_board_says_who_it_was() {
        for culprit in [0, 1, 7, 31] {
            for beyond in [None, Some(0), Some(1), Some(1000), Some(65_534)] {
                for aborted in [false, true] {
                    let word = closing(culprit, aborted, beyond);
                    assert!(word > 1, "open, or closed in peace");
                    assert_eq!(why_closed(word), Some((culprit, aborted, beyond)));
                }
            }
            // Who has a number that does not fit is not said.
            let word = closing(culprit, false, Some(65_535));
            assert_eq!(why_closed(word), Some((culprit, false, None)));
        }
        assert_eq!([0, 1].map(why_closed), [None, None]);
    }
}
