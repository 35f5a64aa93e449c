//! A fault of a call, as a link or the failure detector reports it to the executor, which adds the
//! rank, the host and the step.

use super::cause::Blame;

/// What a link can fail of; the executor adds who and where.
#[derive(Debug)]
pub enum Fault {
    /// The peer closed, died or became unreachable; how we know.
    Lost(String),
    /// What came is not what was sent.
    Corrupt {
        /// The number of the slot on its link, from 0.
        slot: u64,
        /// Its checksum, as the sender has it.
        sent: u32,
        /// That of what came.
        found: u32,
    },
    /// What came was not sealed by the peer as what comes next.
    Forged {
        /// The number of the slot on its link, from 0.
        slot: u64,
    },
    /// The peer has failed because of a rank.
    GaveUp(Box<Blame>),
    /// The peer sent something else than what was expected.
    Mismatch {
        /// Which field of the frame.
        field: &'static str,
        /// What we expected.
        ours: u64,
        /// What came.
        theirs: u64,
    },
}

impl Fault {
    /// The peer makes the same call on memory of the other kind: ours is registered (and theirs is
    /// not), or theirs is.
    pub(crate) fn memory(registered: bool) -> Self {
        let (ours, theirs) = (u64::from(registered), u64::from(!registered));
        Self::Mismatch { field: "memory", ours, theirs }
    }

    /// Has another rank told it?
    pub(crate) fn is_hearsay(&self) -> bool {
        matches!(self, Self::GaveUp(_))
    }
}
