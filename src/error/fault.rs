//! The fault of a call, as a link or the failure detector reports it. The executor adds the rank,
//! the host and the step, and makes an `Error` of it.

use super::cause::FailureCause;

/// The ways in which a link or a peer can fail.
#[derive(Debug)]
pub enum Fault {
    /// The peer closed its communicator, died or became unreachable; the text is the evidence.
    Lost(String),
    /// The payload does not have the checksum that the sender computed.
    Corrupt {
        /// The number of the slot on its link, from 0.
        slot: u64,
        /// The sender's checksum.
        sent: u32,
        /// The checksum of the received payload.
        found: u32,
    },
    /// The slot does not decrypt with the connection's key as the next one.
    Forged {
        /// The number of the slot on its link, from 0.
        slot: u64,
    },
    /// The peer has failed, for this cause.
    GaveUp(Box<FailureCause>),
    /// The header of a slot differs from the expected one.
    Mismatch {
        /// The field of the header.
        field: &'static str,
        /// The expected value.
        ours: u64,
        /// The received value.
        theirs: u64,
    },
}

impl Fault {
    /// The peer makes the same call on memory of the other kind: one of the two buffers is
    /// registered. `registered` is true if it is ours.
    pub(crate) fn memory(registered: bool) -> Self {
        let (ours, theirs) = (u64::from(registered), u64::from(!registered));
        Self::Mismatch { field: "memory", ours, theirs }
    }

    /// True if another rank reported the fault, so that this rank did not see it first-hand.
    pub(crate) fn is_second_hand(&self) -> bool {
        matches!(self, Self::GaveUp(_))
    }
}
