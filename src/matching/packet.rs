//! Packets: what two ranks tell each other about messages. A packet stands in the header of one
//! slot, and the bytes of a message are the slot's payload.
//! Law: no bits of a header make `decode` panic; bits that `encode` does not make are refused.

use super::RequestId;
use crate::element::DataType;

/// The tag, the type and the length of a message. A receive gets only messages with its own type
/// and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender's tag.
    pub tag: u32,
    /// The type of the elements.
    pub dtype: DataType,
    /// The length in bytes.
    pub bytes: u64,
}

/// The longest message, in bytes: 1 TiB less one byte.
pub const MAX_BYTES: u64 = (1 << 40) - 1;

/// A header by which one rank tells another about their messages. `send` and `receive` are requests
/// of the rank that sends the message, and of the one that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A message with all its bytes, which the receiver may have to keep (the eager protocol).
    Eager(Envelope),
    /// A message whose bytes wait at the sender until a receive is posted (rendezvous).
    RequestToSend {
        /// The sender's request.
        send: RequestId,
        /// The message.
        envelope: Envelope,
    },
    /// A receive has met the message: its bytes may come.
    ClearToSend {
        /// The sender's request.
        send: RequestId,
        /// The receiver's request.
        receive: RequestId,
    },
    /// The next bytes of a message that a receive has met.
    Data {
        /// The receiver's request.
        receive: RequestId,
        /// Bytes of payload.
        bytes: u32,
    },
    /// The receive that the message met is of another type or length.
    Refusal {
        /// The sender's request.
        send: RequestId,
        /// The type that the receive expects.
        dtype: DataType,
        /// The length that the receive expects, in bytes.
        bytes: u64,
    },
    /// Eager messages of so many bytes have met their receives; the sender may send as many again.
    Credit {
        /// Bytes of messages and of their headers.
        bytes: u64,
    },
    /// The sender has given the message up.
    Withdrawal {
        /// The sender's request.
        send: RequestId,
    },
}

const KIND_SHIFT: u32 = 60;
const DTYPE_SHIFT: u32 = 52;
const TAG_SHIFT: u32 = 20;
const PAYLOAD: u64 = (1 << TAG_SHIFT) - 1;
const ID_SHIFT: u32 = 40;

/// The most bytes of payload that a packet can say.
pub const MAX_PAYLOAD: usize = PAYLOAD as usize;

impl Packet {
    /// The packet in the two words of a slot's header.
    #[must_use]
    pub fn encode(self) -> (u64, u64) {
        let word = |kind: u64, dtype: Option<DataType>, tag: u32, payload: u64| {
            let dtype = dtype.map_or(0, |dtype| dtype as u64);
            kind << KIND_SHIFT | dtype << DTYPE_SHIFT | u64::from(tag) << TAG_SHIFT | payload
        };
        let id = |id: RequestId, bytes: u64| u64::from(id.0) << ID_SHIFT | bytes;
        match self {
            Self::Eager(Envelope { tag, dtype, bytes }) => (word(1, Some(dtype), tag, bytes), 0),
            Self::RequestToSend { send, envelope: Envelope { tag, dtype, bytes } } => {
                (word(2, Some(dtype), tag, 0), id(send, bytes))
            }
            Self::ClearToSend { send, receive } => (word(3, None, receive.0, 0), id(send, 0)),
            Self::Data { receive, bytes } => (word(4, None, receive.0, u64::from(bytes)), 0),
            Self::Refusal { send, dtype, bytes } => (word(5, Some(dtype), 0, 0), id(send, bytes)),
            Self::Credit { bytes } => (word(6, None, 0, 0), bytes),
            Self::Withdrawal { send } => (word(7, None, 0, 0), id(send, 0)),
        }
    }

    /// The packet that the two words of a header say; `None` if they say none.
    #[must_use]
    pub fn decode((first, second): (u64, u64)) -> Option<Self> {
        let dtype = *DataType::ALL.get((first >> DTYPE_SHIFT & 0xff) as usize)?;
        let tag = (first >> TAG_SHIFT) as u32;
        let (payload, bytes) = (first & PAYLOAD, second & MAX_BYTES);
        let (send, receive) = (RequestId((second >> ID_SHIFT) as u32), RequestId(tag));
        let packet = match first >> KIND_SHIFT {
            1 => Self::Eager(Envelope { tag, dtype, bytes: payload }),
            2 => Self::RequestToSend { send, envelope: Envelope { tag, dtype, bytes } },
            3 => Self::ClearToSend { send, receive },
            4 => Self::Data { receive, bytes: payload as u32 },
            5 => Self::Refusal { send, dtype, bytes },
            6 => Self::Credit { bytes },
            7 => Self::Withdrawal { send },
            _ => return None,
        };
        (packet.encode() == (first, second)).then_some(packet)
    }

    /// Bytes of payload in the packet's slot.
    #[must_use]
    pub fn payload(self) -> usize {
        match self {
            Self::Eager(Envelope { bytes, .. }) => bytes as usize,
            Self::Data { bytes, .. } => bytes as usize,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_comes_out_as_it_went_in() {
        let (send, receive) = (RequestId(0xff_ffff), RequestId(0xab_cdef));
        for dtype in DataType::ALL {
            for (tag, bytes) in [(0, 0), (u32::MAX, MAX_BYTES), (7, 64)] {
                let envelope = Envelope { tag, dtype, bytes };
                let short = Envelope { bytes: bytes & PAYLOAD, ..envelope };
                let packets = [
                    Packet::Eager(short),
                    Packet::RequestToSend { send, envelope },
                    Packet::ClearToSend { send, receive },
                    Packet::Data { receive, bytes: short.bytes as u32 },
                    Packet::Refusal { send, dtype, bytes },
                    Packet::Credit { bytes },
                    Packet::Withdrawal { send },
                ];
                for packet in packets {
                    assert_eq!(Packet::decode(packet.encode()), Some(packet));
                }
            }
        }
    }

    #[test]
    fn words_that_no_packet_has_are_refused() {
        let (first, second) = Packet::Credit { bytes: 9 }.encode();
        let eager = Envelope { tag: 1, dtype: DataType::F32, bytes: 4 };
        let (eager, _) = Packet::Eager(eager).encode();
        let wrong = [
            (0, 0),
            (u64::MAX, 0),
            (first | 1, second),
            (first, second | 1 << 50),
            (eager, 1),
            (eager | 0xff << DTYPE_SHIFT, 0),
            (8 << KIND_SHIFT, 0),
        ];
        for words in wrong {
            assert_eq!(Packet::decode(words), None, "{words:x?}");
        }
    }
}
