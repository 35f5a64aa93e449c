//! The states of sends, receives and peers.

use std::collections::VecDeque;

use super::packet::{Envelope, Packet};
use super::requests::RequestId;
use crate::element::DataType;

/// Bytes that an eager message counts beside its own: its header, and what the receiver notes.
pub(super) const EAGER_OVERHEAD: u64 = 64;

/// Packets of a message that is not much longer than an eager one.
const DATA_PACKETS: u64 = 4;
/// The packets of a message, but for the last, are whole lines of the cache.
const DATA_ALIGNMENT: u64 = 64;

/// The sizes of the protocol, the same at all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest eager message, in bytes; at most the bytes of a slot.
    pub eager: u64,
    /// Bytes of payload of a slot.
    pub slot: u64,
    /// Bytes of eager messages, with 64 bytes each beside their own, that one rank may have sent to
    /// another before a receive meets them. At least twice the longest eager message.
    pub credit: u64,
}

/// The numbers of further requests that may be pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Sends.
    pub sends: usize,
    /// Receives.
    pub receives: usize,
}

impl Limits {
    /// Bytes of each packet of a message that is not eager. Both ends copy, so a message that one
    /// slot could hold goes by several, which the receiver empties while the sender fills others.
    pub(super) fn data(self, message: u64) -> u64 {
        (message / DATA_PACKETS).next_multiple_of(DATA_ALIGNMENT).clamp(self.eager, self.slot)
    }
}

/// The tag of messages that are parts of a call, which a receive of any tag does not take.
pub const INTERNAL_TAG: u32 = u32::MAX;

/// The messages that a receive, or a probe, takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The sender; `None` for any rank.
    pub source: Option<u32>,
    /// The tag; `None` for any tag.
    pub tag: Option<u32>,
}

impl Expected {
    /// True of a message from `from` with `tag`.
    pub(super) fn takes(self, from: u32, tag: u32) -> bool {
        let takes_tag = self.tag.map_or(tag != INTERNAL_TAG, |own| own == tag);
        takes_tag && self.source.is_none_or(|source| source == from)
    }
}

/// A message that has come or has been announced: its sender, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The rank that sent it.
    pub source: u32,
    /// The message.
    pub envelope: Envelope,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is in the receiver's buffer, or on its way there. For a send `source` is the
    /// receiver.
    Done(Status),
    /// The send and the receive that met differ in type or length.
    Differs {
        /// The rank at the other end.
        peer: u32,
        /// Type and bytes here.
        ours: (DataType, u64),
        /// Type and bytes at the peer.
        theirs: (DataType, u64),
    },
    /// The peer is lost; with `None` all ranks that a receive from any rank could hear from.
    Lost(Option<u32>),
    /// The sender gave the message up after a receive had met it.
    Withdrawn {
        /// The sender.
        peer: u32,
    },
}

/// A peer has broken the protocol: what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// A send of this rank. `S` is where its bytes are.
#[derive(Debug)]
pub(super) struct Send<S> {
    pub(super) to: u32,
    pub(super) envelope: Envelope,
    pub(super) data: S,
    pub(super) state: SendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// The first packet waits for a slot; it has all bytes if the send is eager.
    Queued {
        is_eager: bool,
    },
    /// Its receive has not met it yet, there or at this rank itself.
    Announced,
    /// The first `sent` bytes have gone to the receive that met the send.
    Transfer {
        receive: RequestId,
        sent: u64,
    },
    Ended(Outcome),
}

/// A receive of this rank. `R` is where its bytes go.
#[derive(Debug)]
pub(super) struct Receive<R> {
    pub(super) expected: Expected,
    pub(super) dtype: DataType,
    pub(super) bytes: u64,
    pub(super) data: R,
    pub(super) state: ReceiveState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveState {
    /// No message has met it.
    Posted,
    /// The first `received` bytes of the message have come. A withdrawn receive drops them.
    Transfer {
        from: Status,
        send: RequestId,
        received: u64,
        is_withdrawn: bool,
    },
    Ended(Outcome),
}

/// A message that no receive has met. `K` is where the bytes of an eager message are kept.
#[derive(Debug)]
pub(super) struct Unexpected<K> {
    pub(super) from: Status,
    pub(super) content: Content<K>,
}

#[derive(Debug)]
pub(super) enum Content<K> {
    /// Its bytes are here.
    Kept(K),
    /// Its bytes wait at the peer, or at this rank itself, under the number of its send.
    Announced(RequestId),
}

/// The packets and the credit between this rank and a peer.
#[derive(Debug)]
pub(super) struct PeerState {
    /// Packets that wait for slots, in their order.
    pub(super) queue: VecDeque<Queued>,
    /// Sends whose bytes go in turns, once no packet waits.
    pub(super) transfers: VecDeque<RequestId>,
    /// Bytes of eager messages that this rank may still send.
    pub(super) credit: u64,
    /// Bytes of the peer's eager messages that no receive has met.
    pub(super) kept: u64,
    /// Bytes of credit to give back to the peer.
    pub(super) owed: u64,
    /// Announced messages of the peer that no receive has met.
    pub(super) announced: usize,
    pub(super) is_lost: bool,
}

/// A peer. Most of a thousand ranks never exchange a message with this one.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// `None` until the first message.
    pub(super) state: Option<Box<PeerState>>,
    /// This rank has no link to the peer.
    pub(super) is_unlinked: bool,
}

impl Peer {
    pub(super) fn state_mut(&mut self, limits: Limits) -> &mut PeerState {
        self.state.get_or_insert_with(|| Box::new(PeerState::new(limits)))
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_lost)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    /// The first packet of a send.
    First(RequestId),
    Packet(Packet),
}

impl PeerState {
    fn new(limits: Limits) -> Self {
        let (queue, transfers) = (VecDeque::new(), VecDeque::new());
        let credit = limits.credit;
        Self { queue, transfers, credit, kept: 0, owed: 0, announced: 0, is_lost: false }
    }

    /// Notes that a receive has met an eager message of the peer. Credit goes back in large parts.
    pub(super) fn give_back(&mut self, envelope: Envelope, limits: Limits) {
        let bytes = envelope.bytes + EAGER_OVERHEAD;
        self.kept -= bytes;
        self.owed += bytes;
        if self.owed >= limits.credit / 4 && !self.is_lost {
            self.queue.push_back(Queued::Packet(Packet::Credit { bytes: self.owed }));
            self.owed = 0;
        }
    }
}
