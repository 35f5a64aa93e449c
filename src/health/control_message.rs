//! Control messages, which ranks send each other beside their links, in frames of one size: failure
//! notices, goodbyes, heartbeats, descriptors, links in use, and messages of the recovery and about
//! groups. Each belongs to one communicator of the two processes.
//! Law: bytes that no version of this file wrote are an error; only a recovery message allocates.

use crate::codec::{Buffer, Decoder, Encoder, Malformed};
use crate::error::cause::{self, FailureCause};
use crate::transport::{Fault, LinkContent};

/// Bytes of a frame: magic, the key of the communicator, kind, a first number, then the rest of the
/// message and zeros.
pub(super) const FRAME_BYTES: usize = 32 + RECOVERY_BYTES;
/// The most bytes of one recovery message.
pub(crate) const RECOVERY_BYTES: usize = 296;
const MAGIC: [u8; 8] = *b"RRCTRL\x07\0";

/// A message between the recovery drivers of two survivors: its kind, and its bytes.
pub(crate) type RecoveryMessage = (u32, Box<[u8; RECOVERY_BYTES]>);

/// The heartbeat of a rank in a long call, sent about once per second: "I wait in call N".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heartbeat {
    /// The number of the call.
    pub(super) call: u64,
    /// The fingerprint of the call; 0 if it is not known yet.
    pub(super) fingerprint: u64,
    /// The rank plus one that the sender alone waits for, in a message after the call; 0 in a call.
    pub(super) waits_for: u64,
    /// The rank plus one that the sender sees stopped, silent or absent; 0 for none. Ranks without
    /// a channel to that rank learn of it so.
    pub(super) stalled: u64,
}

/// The failure of a rank, as the rank itself reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) cause: FailureCause,
    /// The rank found the cause itself; no other rank reported it.
    pub(super) first_hand: bool,
}

impl Failure {
    /// The fault of `rank`, which has this failure, as rank `me` sees it. A rank that is the cause
    /// itself learns the reason from its own sources.
    pub(super) fn fault(self, rank: usize, me: usize) -> Option<(usize, Fault)> {
        let cause = self.cause;
        (cause.culprit != me).then(|| (rank, Fault::GaveUp(Box::new(cause))))
    }
}

/// A message about a communicator that some ranks make: by a member to the lowest one, and then by
/// that one to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMessage {
    /// The digest of the members and the tag.
    pub(crate) digest: u64,
    /// The number of the member's attempt, which answers repeat.
    pub(crate) attempt: u64,
    pub(crate) step: GroupStep,
}

/// The content of a message about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupStep {
    /// The member has come, with the offset of the group's memory in the file of its host's region
    /// if it has reserved any; a region begins the file, so no memory is at 0.
    Come { memory: u64 },
    /// The member has given its attempt up.
    Withdrawn,
    /// The lowest member can't make the group.
    Refused,
    /// The number of the group, and the offset of its memory on the receiver's host, or 0.
    Made { number: u64, memory: u64 },
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// The sender has failed, in its call of this number; 0 outside calls.
    Failed { failure: Failure, call: u64 },
    /// The sender leaves. Without a failure here, another communicator of the sender may have
    /// failed, which is the cause then. `sent_recovery` tells that the sender has sent recovery
    /// messages, so it may have voted.
    Goodbye { cause: Option<FailureCause>, sent_recovery: bool },
    /// The sender waits in a call.
    Heartbeat(Heartbeat),
    /// The recovery driver of the sender has a message for the one here.
    Recovery(RecoveryMessage),
    /// A descriptor comes with the first byte of this frame.
    Descriptor,
    /// The sender and this rank make a communicator of some ranks.
    Group(GroupMessage),
    /// The sender sends on its link of this content to this rank.
    Sends(LinkContent),
}

impl ControlMessage {
    /// The frame of this message for the communicator `key`.
    pub(super) fn encode(&self, key: u64) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        let to = Encoder(&mut frame[..]).raw(&MAGIC).u64(key);
        match self {
            Self::Failed { failure: Failure { cause, first_hand }, call } => {
                to.u64(1).cause_words(cause.words(), *first_hand).u64(*call)
            }
            Self::Goodbye { cause, sent_recovery } => {
                let words = cause.map_or([0; cause::WORDS], FailureCause::words);
                to.u64(2).cause_words(words, *sent_recovery)
            }
            Self::Heartbeat(Heartbeat { call, fingerprint, waits_for, stalled }) => {
                to.u64(3).u64(*call).u64(*fingerprint).u64(*waits_for).u64(*stalled)
            }
            Self::Recovery((kind, bytes)) => to.u64(4).u64(u64::from(*kind)).raw(&**bytes),
            Self::Descriptor => to.u64(5),
            Self::Sends(content) => to.u64(7).u64(*content as u64),
            Self::Group(GroupMessage { digest, attempt, step }) => {
                let to = to.u64(6).u64(*digest).u64(*attempt);
                match step {
                    GroupStep::Come { memory } => to.u64(1).u64(*memory),
                    GroupStep::Withdrawn => to.u64(2),
                    GroupStep::Refused => to.u64(3),
                    GroupStep::Made { number, memory } => to.u64(4).u64(*number).u64(*memory),
                }
            }
        };
        frame
    }

    /// The key of the communicator, and the message.
    pub(super) fn decode(frame: &[u8; FRAME_BYTES]) -> Result<(u64, Self), Malformed> {
        let mut from = Decoder(frame);
        if from.array()? != MAGIC {
            return Err(Malformed::UnknownValue);
        }
        let key = from.u64()?;
        let message = match from.u64()? {
            1 => {
                let (words, first_hand) = from.cause_words()?;
                let cause = FailureCause::from_words(words).ok_or(Malformed::UnknownValue)?;
                Self::Failed { failure: Failure { cause, first_hand }, call: from.u64()? }
            }
            2 => {
                let (words, sent_recovery) = from.cause_words()?;
                let cause = FailureCause::from_words(words);
                if cause.is_none() && words != [0; cause::WORDS] {
                    return Err(Malformed::UnknownValue);
                }
                Self::Goodbye { cause, sent_recovery }
            }
            3 => Self::Heartbeat(Heartbeat {
                call: from.u64()?,
                fingerprint: from.u64()?,
                waits_for: from.u64()?,
                stalled: from.u64()?,
            }),
            4 => {
                let kind = u32::try_from(from.u64()?).map_err(|_| Malformed::UnknownValue)?;
                Self::Recovery((kind, Box::new(from.array()?)))
            }
            5 => Self::Descriptor,
            6 => Self::Group(GroupMessage {
                digest: from.u64()?,
                attempt: from.u64()?,
                step: match from.u64()? {
                    1 => GroupStep::Come { memory: from.u64()? },
                    2 => GroupStep::Withdrawn,
                    3 => GroupStep::Refused,
                    4 => GroupStep::Made { number: from.u64()?, memory: from.u64()? },
                    _ => return Err(Malformed::UnknownValue),
                },
            }),
            7 => {
                let content = LinkContent::from_number(from.u64()?);
                Self::Sends(content.ok_or(Malformed::UnknownValue)?)
            }
            _ => return Err(Malformed::UnknownValue),
        };
        from.zeros()?;
        Ok((key, message))
    }
}

impl<B: Buffer> Encoder<B> {
    /// A failure cause, with a flag after its first word.
    fn cause_words(self, [first, what, ours, theirs]: [u64; cause::WORDS], flag: bool) -> Self {
        self.u64(first).u64(u64::from(flag)).u64(what).u64(ours).u64(theirs)
    }
}

impl Decoder<'_> {
    fn cause_words(&mut self) -> Result<([u64; cause::WORDS], bool), Malformed> {
        let (first, flag) = (self.u64()?, self.u64()?);
        let words = [first, self.u64()?, self.u64()?, self.u64()?];
        if flag < 2 { Ok((words, flag == 1)) } else { Err(Malformed::UnknownValue) }
    }
}
