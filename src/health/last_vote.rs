//! What a rank leaves to those who come after it: bytes in shared words, of which there are two
//! copies, one that counts and one to write the next to. May touch: nothing.
//! Law: whenever the writer ends, what it left last is whole.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of what a rank leaves.
pub(crate) const WILL: usize = 272;
/// The words of both copies, and of which one counts.
pub(super) const WORDS: usize = 1 + 2 * (WILL / size_of::<u64>());

/// Where a copy begins.
fn copy(number: u64) -> usize {
    1 + if number == 2 { WILL / size_of::<u64>() } else { 0 }
}

/// Leaves this in the words that `word` gives.
pub(super) fn leave<'a>(word: impl Fn(usize) -> &'a AtomicU64, will: &[u8; WILL]) {
    let next = if word(0).load(Ordering::Relaxed) == 1 { 2 } else { 1 };
    for (at, bytes) in will.as_chunks().0.iter().enumerate() {
        word(copy(next) + at).store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    word(0).store(next, Ordering::Release);
}

/// What a rank that has ended left there; zeros if it left nothing.
pub(super) fn read<'a>(word: impl Fn(usize) -> &'a AtomicU64) -> [u8; WILL] {
    let counts = word(0).load(Ordering::Acquire).min(2);
    let mut will = [0; WILL];
    if counts > 0 {
        for (at, bytes) in will.as_chunks_mut().0.iter_mut().enumerate() {
            *bytes = word(copy(counts) + at).load(Ordering::Relaxed).to_le_bytes();
        }
    }
    will
}
