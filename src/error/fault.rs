//! The fault of a call, as a link or the failure detector reports it. The executor adds the rank,
//! the host and the step, and makes an `Error` of it.

use super::Error;
use super::cause::FailureCause;

/// The field in which two calls differ, or the headers of their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchField {
    /// The number of the call.
    Sequence,
    /// The fingerprint of the call of both ranks.
    Fingerprint,
    /// The length of a slot's payload.
    Len,
    /// The fingerprint of an earlier call.
    Earlier,
    /// Whether the call is captured into a graph.
    Captured,
    /// The fingerprint of a call on device buffers.
    DeviceCall,
    /// The first bytes of a header.
    Magic,
    /// The version of a header.
    Version,
    /// The kind of a header.
    Kind,
    /// The flags of a header.
    Flags,
    /// Bytes of a header that are zero in this version.
    Reserved,
    /// The number of the slot.
    Slot,
    /// The checksum of the payload.
    Crc,
}

impl MismatchField {
    /// All fields with their names in errors, by their numbers in a failure cause.
    const ALL: [(Self, &str); 13] = [
        (Self::Sequence, "sequence"),
        (Self::Fingerprint, "fingerprint"),
        (Self::Len, "len"),
        (Self::Earlier, "earlier"),
        (Self::Captured, "captured into a graph"),
        (Self::DeviceCall, "device call"),
        (Self::Magic, "magic"),
        (Self::Version, "version"),
        (Self::Kind, "kind"),
        (Self::Flags, "flags"),
        (Self::Reserved, "reserved"),
        (Self::Slot, "slot"),
        (Self::Crc, "crc"),
    ];

    pub(crate) const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(super) fn from_number(number: u64) -> Option<Self> {
        Some(Self::ALL.get(usize::try_from(number).ok()?)?.0)
    }
}

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
    /// This rank itself lacks memory for the call.
    NoMemory(Box<Error>),
    /// The peer's call, or the header of a slot, differs from the expected one.
    Mismatch {
        /// The field of the call or of the header.
        field: MismatchField,
        /// The expected value.
        ours: u64,
        /// The received value.
        theirs: u64,
    },
}

impl Fault {
    /// True if another rank reported the fault, so that this rank did not see it first-hand.
    pub(crate) fn is_second_hand(&self) -> bool {
        matches!(self, Self::GaveUp(_))
    }
}

#[cfg(test)]
mod tests {
    use super::MismatchField;

    #[test]
    fn the_table_of_fields_is_in_the_order_of_their_numbers() {
        for (number, (field, name)) in MismatchField::ALL.into_iter().enumerate() {
            assert_eq!((field as usize, field.name()), (number, name));
            assert_eq!(MismatchField::from_number(number as u64), Some(field));
        }
        assert_eq!(MismatchField::from_number(MismatchField::ALL.len() as u64), None);
    }
}
