//! What keeps calls of ranks whose streams wait for each other from their end. May touch: board.

use std::time::Duration;

use super::board::{Claim, IN_GRAPH};

/// What kept a call from its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A rank is gone.
    Lost { peer: usize, evidence: String },
    /// A rank did not come in time.
    Late { peer: usize, after: Duration },
    /// A rank makes another call: fingerprints, ours first.
    Differs { peer: usize, ours: u64, theirs: u64 },
    /// A rank makes the same call, but only one of both has it captured: is it this one?
    Captured { peer: usize, ours: bool },
    /// Somebody asked for it.
    Aborted,
    /// This rank's device refused something.
    Refused(String),
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
