//! Memory of the library's own that is as long as the user's buffer, and that later calls use
//! again.
//! Law: a lack of memory is an error of the call, never an abort. Memory of a large call is given
//! back when the call ends, unless large calls are frequent.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use super::mapping::Region;
use crate::error::Result;

/// The most bytes that stay for later calls. A call that needs more is large.
const MOST_KEPT_BYTES: usize = 128 << 20;
/// Memory of large calls stays as long as one of so many calls is large.
const CALLS_BETWEEN_LARGE: u32 = 16;

/// Memory for one call after the other; empty at first.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    memory: Option<Region>,
    /// Large calls, none of them longer ago than [`CALLS_BETWEEN_LARGE`] before the next one.
    large_calls: u32,
    /// The present call is large.
    is_large: bool,
    /// Calls since the latest large one.
    small_calls: u32,
}

impl Scratch {
    /// `len` bytes, with any contents.
    ///
    /// # Errors
    /// [`Error::Exhausted`](crate::Error::Exhausted) if there is no memory for them.
    #[inline]
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.len() < len {
            self.grow(len)?;
        }
        self.is_large |= len > MOST_KEPT_BYTES;
        let Some(memory) = &self.memory else { return Ok(&mut []) };
        // SAFETY: the mapping has at least `len` bytes, is of this process alone, and is borrowed
        // with `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), len) })
    }

    /// Bytes that are there.
    pub(crate) fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, Region::len)
    }

    /// Notes the end of a call, and gives the memory of large ones back: after the first one, and
    /// after many small ones.
    #[inline]
    pub(crate) fn end_call(&mut self) {
        if self.is_large || self.large_calls > 0 {
            self.end_call_near_large();
        }
    }

    #[cold]
    fn end_call_near_large(&mut self) {
        if std::mem::take(&mut self.is_large) {
            self.large_calls = self.large_calls.saturating_add(1);
            self.small_calls = 0;
        } else {
            self.small_calls += 1;
            self.large_calls *= u32::from(self.small_calls < CALLS_BETWEEN_LARGE);
        }
        if self.large_calls < 2 && self.len() > MOST_KEPT_BYTES {
            self.memory = None;
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) -> Result<()> {
        // Calls that grow little by little map new memory seldom.
        let spare = (2 * self.len()).min(MOST_KEPT_BYTES);
        self.memory = None;
        let len = NonZeroUsize::MIN.saturating_add(len.max(spare).saturating_sub(1));
        self.memory = Some(Region::anonymous(len)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn too_much_is_an_error_and_later_calls_have_memory() {
        let mut scratch = Scratch::default();
        assert!(scratch.bytes(0).unwrap().is_empty());
        scratch.bytes(5000).unwrap().fill(7);
        for len in [usize::MAX, usize::MAX / 2, 1 << 46] {
            let error = scratch.bytes(len).unwrap_err();
            assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        }
        assert_eq!(scratch.bytes(5000).unwrap().len(), 5000);
    }

    #[test]
    fn memory_stays_for_later_calls_unless_it_is_much_and_seldom_used() {
        let mut scratch = Scratch::default();
        let start = scratch.bytes(1 << 20).unwrap().as_ptr();
        scratch.end_call();
        assert_eq!(scratch.bytes(1000).unwrap().as_ptr(), start);
        let large = MOST_KEPT_BYTES + 1;
        scratch.bytes(large).unwrap();
        scratch.end_call();
        assert_eq!(scratch.len(), 0, "the first large call");
        for small in [0, CALLS_BETWEEN_LARGE - 1] {
            (0..small).for_each(|_| scratch.end_call());
            scratch.bytes(large).unwrap();
            scratch.end_call();
            assert!(scratch.len() >= large, "a large call after {small} small ones");
        }
        (0..CALLS_BETWEEN_LARGE).for_each(|_| scratch.end_call());
        assert_eq!(scratch.len(), 0);
    }
}
