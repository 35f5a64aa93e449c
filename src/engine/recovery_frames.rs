//! The frames in which messages of a recovery travel: control channels carry frames of one size.
//! Law: the frames of a message arrive in order, and the last one has a kind of its own; zeros fill
//! it up, which decoders take for nothing.

use std::collections::BTreeMap;

use crate::health::control_channel::ControlChannels;
use crate::health::control_message::RECOVERY_BYTES;

/// The kinds of messages: those of the membership's state machine.
pub(crate) const MEMBERSHIP: u32 = 1;
/// The announcement of a member to the lowest one, and the announcements of all from that one.
pub(crate) const MEMBER: u32 = 2;
pub(crate) const ALL_MEMBERS: u32 = 3;
/// A joiner tells rank 0 that it has all its links, and a member tells a joiner that all members
/// have connected.
pub(crate) const LINKED: u32 = 4;
pub(crate) const ADMITTED: u32 = 5;

/// The ranks whose hosts the sender has found unreachable.
pub(crate) const UNREACHABLE: u32 = 6;

/// Marks the kind of a frame that more frames of the message follow.
const PART: u32 = 1 << 31;

/// No message has more bytes than these, and for each rank: announcements have an address of each.
const BYTES: usize = 4096;
const BYTES_PER_RANK: usize = 512;

/// Sends a message to rank `to`.
pub(crate) fn send(controls: &mut ControlChannels, to: usize, kind: u32, bytes: &[u8]) {
    for frame in frames(kind, bytes) {
        controls.send_recovery(to, frame);
    }
}

/// The frames of a message, the last one of which may be empty.
fn frames(kind: u32, bytes: &[u8]) -> impl Iterator<Item = (u32, Box<[u8; RECOVERY_BYTES]>)> {
    let count = bytes.len().div_ceil(RECOVERY_BYTES).max(1);
    (1..=count).map(move |number| {
        let part = bytes.chunks(RECOVERY_BYTES).nth(number - 1).unwrap_or_default();
        let mut frame = Box::new([0; RECOVERY_BYTES]);
        frame[..part.len()].copy_from_slice(part);
        (if number < count { kind | PART } else { kind }, frame)
    })
}

/// The messages of which parts have come, by their senders.
#[derive(Debug)]
pub(super) struct PartialMessages {
    most: usize,
    parts: BTreeMap<usize, Vec<u8>>,
}

impl PartialMessages {
    /// Of a communicator of so many ranks.
    pub(super) fn among(ranks: usize) -> Self {
        Self { most: BYTES + BYTES_PER_RANK * ranks, parts: BTreeMap::new() }
    }

    /// Adds a frame; returns the message that it ends, with its kind.
    pub(super) fn add(
        &mut self,
        from: usize,
        (kind, frame): (u32, &[u8; RECOVERY_BYTES]),
    ) -> Option<(u32, Vec<u8>)> {
        let bytes = self.parts.entry(from).or_default();
        // A longer message is none, nor is what is left of it.
        if bytes.len() < self.most {
            bytes.extend_from_slice(frame);
        }
        if kind & PART != 0 {
            return None;
        }
        Some((kind, self.parts.remove(&from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_length_survive_their_frames() {
        for length in [0, 1, RECOVERY_BYTES - 1, RECOVERY_BYTES, RECOVERY_BYTES + 1, 10_000] {
            let message: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
            let mut partial = PartialMessages::among(20);
            let frames: Vec<_> = frames(7, &message).collect();
            let (last, parts) = frames.split_last().unwrap();
            assert!(parts.iter().all(|(kind, part)| partial.add(3, (*kind, part)).is_none()));
            // Frames of another sender come between.
            let other = partial.add(4, (8, &[2; RECOVERY_BYTES]));
            assert_eq!(other, Some((8, vec![2; RECOVERY_BYTES])));
            let (kind, bytes) = partial.add(3, (last.0, &last.1)).unwrap();
            let (read, rest) = bytes.split_at(length);
            assert!(kind == 7 && read == message && rest.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_message_without_end_takes_bounded_memory() {
        let mut partial = PartialMessages::among(1);
        for _ in 0..100 {
            assert_eq!(partial.add(0, (PART, &[1; RECOVERY_BYTES])), None);
        }
        assert!(partial.parts[&0].len() < BYTES + BYTES_PER_RANK + RECOVERY_BYTES);
        assert!(partial.add(0, (1, &[0; RECOVERY_BYTES])).is_some());
        assert!(partial.parts.is_empty());
    }
}
