//! Bytes that go to a host once for all of its ranks. All ranks read the same tables where they
//! meet, each by a stream of its own, so that a launcher would send n tables of n ranks. Bytes that
//! were sent a moment before are named in place of sending them again.
//! Law: both sides remember the same bytes in the same order, since frames come in the order in
//! which they were sent, also over a connection that was made anew.

use std::collections::VecDeque;

use super::stream::READ;

/// Bytes of fewer than these are sent as they are.
const MIN_LENGTH: usize = 1024;
/// The first bytes may differ: an answer of the store begins with the number of its request.
const HEAD: usize = 64;
/// So many pieces are remembered, each of which has at most the bytes that a stream reads at once.
const PIECES: usize = 16;

/// The pieces of bytes that were sent last, or came last.
#[derive(Default)]
pub(super) struct Repeats(VecDeque<Vec<u8>>);

impl Repeats {
    /// Takes note of bytes that are to be sent. If the same were sent before, their name: its first
    /// byte is the index among the pieces, and the first bytes themselves follow.
    pub(super) fn name_of(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let rest = bytes.get(HEAD..).filter(|_| is_piece(bytes))?;
        let same = |piece: &Vec<u8>| piece.get(HEAD..) == Some(rest);
        let index = self.0.iter().position(same);
        if index.is_none() {
            self.remember(bytes);
        }
        Some([&[index? as u8], &bytes[..HEAD]].concat())
    }

    /// Takes note of bytes that have come.
    pub(super) fn remember(&mut self, bytes: &[u8]) {
        if !is_piece(bytes) {
            return;
        }
        if self.0.len() == PIECES {
            self.0.pop_front();
        }
        self.0.push_back(bytes.to_vec());
    }

    /// The bytes that a name stands for; none if it names nothing.
    pub(super) fn bytes_of(&self, name: &[u8]) -> Option<Vec<u8>> {
        let (index, head) = name.split_first()?;
        let rest = self.0.get(usize::from(*index))?.get(HEAD..)?;
        (head.len() == HEAD).then(|| [head, rest].concat())
    }
}

/// True if these bytes are remembered.
fn is_piece(bytes: &[u8]) -> bool {
    (MIN_LENGTH..=READ).contains(&bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends pieces from one side to the other, and gives the number of those that were named.
    fn named(pieces: &[Vec<u8>]) -> usize {
        let (mut sender, mut receiver) = (Repeats::default(), Repeats::default());
        let mut count = 0;
        for piece in pieces {
            match sender.name_of(piece) {
                Some(name) => {
                    assert!(name.len() < MIN_LENGTH);
                    assert_eq!(receiver.bytes_of(&name).as_ref(), Some(piece));
                    count += 1;
                }
                None => receiver.remember(piece),
            }
        }
        count
    }

    /// A piece whose bytes after the first ones are `rest`.
    fn piece(head: u8, rest: u8, length: usize) -> Vec<u8> {
        [vec![head; HEAD], vec![rest; length - HEAD]].concat()
    }

    #[test]
    fn equal_pieces_are_sent_once_whatever_their_first_bytes() {
        let table: Vec<_> = (0..32).map(|rank| piece(rank, 7, 20_000)).collect();
        assert_eq!(named(&table), 31);
        let short: Vec<_> = (0..32).map(|rank| piece(rank, 7, MIN_LENGTH - 1)).collect();
        assert_eq!(named(&short), 0);
        let long: Vec<_> = (0..2).map(|rank| piece(rank, 7, READ + 1)).collect();
        assert_eq!(named(&long), 0);
        // Other lengths, and other bytes.
        assert_eq!(named(&[piece(0, 7, 2000), piece(0, 7, 2001), piece(0, 8, 2000)]), 0);
    }

    #[test]
    fn pieces_that_are_long_past_are_sent_again() {
        let others = |count: usize| (0..count).map(|it| piece(0, 100 + it as u8, 2000));
        let again =
            |count| [vec![piece(0, 7, 2000)], others(count).collect(), vec![piece(1, 7, 2000)]];
        assert_eq!(named(&again(PIECES - 1).concat()), 1);
        assert_eq!(named(&again(PIECES).concat()), 0);
    }

    #[test]
    fn a_name_of_nothing_has_no_bytes() {
        let mut repeats = Repeats::default();
        repeats.remember(&piece(0, 7, 2000));
        for name in [vec![], vec![1; HEAD + 1], vec![0; HEAD], vec![0; HEAD + 2], vec![0]] {
            assert_eq!(repeats.bytes_of(&name), None, "{name:?}");
        }
    }
}
