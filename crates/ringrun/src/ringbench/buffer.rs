//! A buffer to measure with: cache-line aligned (or off by as much as asked), touched, and with a
//! guard on either side that no collective may write to.

use anyhow::{Context, Result};

use crate::sizes::human;

const LINE: usize = 64;
/// Bytes watched on either side.
const GUARD: usize = 128;
const CANARY: u8 = 0xa5;

/// Memory for up to a given number of bytes between two guards.
pub(crate) struct Guarded {
    memory: Vec<u8>,
    /// Where the buffer begins in it.
    at: usize,
}

impl Guarded {
    pub(crate) fn new(capacity: usize, unalign: usize) -> Result<Self> {
        let whole = capacity.saturating_add(2 * GUARD + LINE + unalign);
        let mut memory = Vec::new();
        memory
            .try_reserve_exact(whole)
            .with_context(|| format!("no memory for a buffer of {}: lower -e", human(capacity)))?;
        // Writing it here keeps the first touch of a page out of every measurement.
        memory.resize(whole, CANARY);
        let at = memory[GUARD..].as_ptr().align_offset(LINE) + GUARD + unalign;
        Ok(Self { memory, at })
    }

    /// The first `len` bytes.
    pub(crate) fn get(&self, len: usize) -> &[u8] {
        &self.memory[self.at..self.at + len]
    }

    pub(crate) fn get_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.at..self.at + len]
    }

    /// Sets the guards around the first `len` bytes, and those to what no result looks like.
    pub(crate) fn arm(&mut self, len: usize) {
        self.memory[self.at - GUARD..self.at + len + GUARD].fill(CANARY);
    }

    /// Bytes beside the first `len` that were written since [`Self::arm`].
    pub(crate) fn breached(&self, len: usize) -> u64 {
        let end = self.at + len;
        let guards = [&self.memory[self.at - GUARD..self.at], &self.memory[end..end + GUARD]];
        guards.into_iter().flatten().filter(|&&byte| byte != CANARY).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_beside_the_buffer_are_seen() {
        let mut buffer = Guarded::new(1000, 0).unwrap();
        assert_eq!(buffer.get(1000).as_ptr().align_offset(LINE), 0);
        buffer.arm(100);
        buffer.get_mut(100).fill(7);
        assert_eq!(buffer.breached(100), 0);
        buffer.get_mut(102).fill(7);
        assert_eq!(buffer.breached(100), 2);
        let before = buffer.at - 1;
        buffer.memory[before] = 0;
        assert_eq!(buffer.breached(100), 3);
    }

    #[test]
    fn off_by_as_much_as_asked() {
        let buffer = Guarded::new(10, 3).unwrap();
        assert_eq!(buffer.get(10).as_ptr().align_offset(LINE), LINE - 3);
    }

    #[test]
    fn too_large_is_an_error() {
        assert!(Guarded::new(isize::MAX as usize - 1, 0).is_err());
    }
}
