//! What keeps calls of ranks whose streams wait for each other from their end. May touch: board.

use std::time::Duration;

use super::board::{Claim, IN_GRAPH};

/// What kept a call from its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone.
    Lost { peer: usize, evidence: String },
    /// A rank failed of another one or of itself; or of one that has no part in this.
    GaveUp { peer: usize, by: usize, beyond: Option<usize> },
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

/// How a board says of which rank a call failed: of one that has a board, or of one beyond.
pub(super) fn closing(culprit: usize, beyond: Option<usize>) -> u32 {
    let beyond = beyond.and_then(|rank| u16::try_from(rank + 1).ok());
    u32::from(beyond.unwrap_or(0)) << 16 | (culprit as u32 + 2)
}

/// The other way, if it says so.
pub(super) fn why_closed(word: u32) -> Option<(usize, Option<usize>)> {
    let culprit = (word & 0xFFFF).checked_sub(2)?;
    Some((culprit as usize, (word >> 16).checked_sub(1).map(|rank| rank as usize)))
}

#[cfg(test)]
mod tests {
    use super::{closing, why_closed};

    #[test]
    fn a_board_says_who_it_was() {
        for culprit in [0, 1, 7, 31] {
            for beyond in [None, Some(0), Some(1), Some(1000), Some(65_534)] {
                let word = closing(culprit, beyond);
                assert!(word > 1, "open, or closed in peace");
                assert_eq!(why_closed(word), Some((culprit, beyond)));
            }
            // Who has a number that does not fit is not said.
            assert_eq!(why_closed(closing(culprit, Some(65_535))), Some((culprit, None)));
        }
        assert_eq!([0, 1].map(why_closed), [None, None]);
    }
}
