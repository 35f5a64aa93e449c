//! The last vote of a rank, which survivors read after its death: bytes in shared atomic words, in
//! two copies. One copy counts while the writer fills the other.
//! Law: whenever the writer dies, the copy that counts is whole. Atomic words in a shared page are
//! nothing that `codec` could write.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a last vote: one message of `recovery::membership`.
pub(crate) const LAST_VOTE_BYTES: usize = 272;
/// Words of the number (1 or 2) of the copy that counts, and of both copies.
pub(super) const VOTE_WORDS: usize = 1 + 2 * COPY_WORDS;
const COPY_WORDS: usize = LAST_VOTE_BYTES / size_of::<u64>();

/// The first word of a copy.
fn copy(number: u64) -> usize {
    1 + if number == 2 { COPY_WORDS } else { 0 }
}

/// Writes `vote` to the words that `word` returns by index.
pub(super) fn publish<'a>(word: impl Fn(usize) -> &'a AtomicU64, vote: &[u8; LAST_VOTE_BYTES]) {
    let next = if word(0).load(Ordering::Relaxed) == 1 { 2 } else { 1 };
    for (at, bytes) in vote.as_chunks().0.iter().enumerate() {
        word(copy(next) + at).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    word(0).store(next, Ordering::Release);
}

/// The last vote of a dead rank; zeros if it never voted.
pub(super) fn read<'a>(word: impl Fn(usize) -> &'a AtomicU64) -> [u8; LAST_VOTE_BYTES] {
    let counts = word(0).load(Ordering::Acquire).min(2);
    let mut vote = [0; LAST_VOTE_BYTES];
    if counts > 0 {
        for (at, bytes) in vote.as_chunks_mut().0.iter_mut().enumerate() {
            *bytes = word(copy(counts) + at).load(Ordering::Relaxed).to_le_bytes();
        }
    }
    vote
}
