//! Operation headers, which ranks compare before their streams wait for each other, and the
//! failures of such calls.
//! Law: a close reason fits one word, and decodes to what was encoded.

use std::time::Duration;

/// The header of an operation slot: which call the rank makes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationHeader {
    /// The number of the call, from 1, with [`CAPTURED_BIT`] if it was captured; 0 in a free slot.
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u64,
}

impl OperationHeader {
    /// The header of a free slot.
    pub(super) const NONE: Self = Self { sequence: 0, fingerprint: 0 };

    /// The header of a call whose number alone is known.
    pub(super) fn numbered(sequence: u64) -> Self {
        Self { sequence, fingerprint: 0 }
    }

    pub(super) fn is_captured(self) -> bool {
        self.sequence & CAPTURED_BIT != 0
    }

    /// The number without [`CAPTURED_BIT`].
    pub(crate) fn number(self) -> u64 {
        self.sequence & !CAPTURED_BIT
    }
}

/// The bit of a captured call in the sequence of its header.
pub(crate) const CAPTURED_BIT: u64 = 1 << 63;

/// Why a call failed. Ranks are those of the communicator, but for `outside`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// A rank's process ended, or it closed its communicator.
    Lost { peer: usize, evidence: String },
    /// Rank `by` gave up because rank `peer` failed, or was `aborted`. `outside` is the rank of the
    /// world that failed first, where it is no rank of this communicator.
    GaveUp { peer: usize, by: usize, aborted: bool, outside: Option<usize> },
    /// A rank did not come within the timeout.
    Late { peer: usize, after: Duration },
    /// A rank makes another call: the two fingerprints.
    Mismatch { peer: usize, ours: u64, theirs: u64 },
    /// A rank makes the same call, but only one of the two captured it: this rank, if `ours`.
    CaptureMismatch { peer: usize, ours: bool },
    /// The user aborted the communicator.
    Aborted,
    /// This rank's device refused something, or something failed that this rank's calls depend on,
    /// because of rank `outside` of the world if there is one.
    Refused { reason: String, outside: Option<usize> },
}

/// The header of a failed call, and the failure.
pub(crate) type FailedCall = (OperationHeader, CallFailure);

/// The failure if the header of `peer` contradicts this rank's.
pub(super) fn header_mismatch(
    peer: usize,
    ours: OperationHeader,
    theirs: OperationHeader,
) -> Option<CallFailure> {
    match ours.sequence ^ theirs.sequence {
        CAPTURED_BIT => Some(CallFailure::CaptureMismatch { peer, ours: ours.is_captured() }),
        0 if ours.fingerprint != theirs.fingerprint => {
            let (ours, theirs) = (ours.fingerprint, theirs.fingerprint);
            Some(CallFailure::Mismatch { peer, ours, theirs })
        }
        _ => None,
    }
}

/// The bit of a close reason: the culprit was aborted.
const ABORTED: u32 = 1 << 15;

/// The close reason of a rank that gave up: the culprit of this communicator, whether that one was
/// aborted, and the culprit of the world, if it is another one. A rank of the world beyond 65,534
/// is left out.
pub(super) fn encode_close_reason(culprit: usize, aborted: bool, outside: Option<usize>) -> u32 {
    let outside = outside.and_then(|rank| u16::try_from(rank + 1).ok());
    let why = if aborted { ABORTED } else { 0 };
    u32::from(outside.unwrap_or(0)) << 16 | why | (culprit as u32 + 2)
}

/// The inverse of [`encode_close_reason`]; `None` if the rank did not give up.
pub(super) fn decode_close_reason(word: u32) -> Option<(usize, bool, Option<usize>)> {
    let culprit = (word & (ABORTED - 1)).checked_sub(2)?;
    let outside = (word >> 16).checked_sub(1).map(|rank| rank as usize);
    Some((culprit as usize, word & ABORTED != 0, outside))
}

#[cfg(test)]
mod tests {
    use super::{decode_close_reason, encode_close_reason};

    #[test]
    fn a_close_reason_decodes_to_what_was_encoded() {
        for culprit in [0, 1, 7, 31] {
            for outside in [None, Some(0), Some(1), Some(1000), Some(65_534)] {
                for aborted in [false, true] {
                    let word = encode_close_reason(culprit, aborted, outside);
                    assert!(word > 1, "0 is open, 1 is closed after success");
                    assert_eq!(decode_close_reason(word), Some((culprit, aborted, outside)));
                }
            }
            // A rank of the world that does not fit is left out.
            let word = encode_close_reason(culprit, false, Some(65_535));
            assert_eq!(decode_close_reason(word), Some((culprit, false, None)));
        }
        assert_eq!([0, 1].map(decode_close_reason), [None, None]);
    }
}
