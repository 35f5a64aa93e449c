//! Buffers of sends and receives, known by their addresses while a request is pending.
//! Unsafe: a request outlives the call that starts it, so no borrow can stand for its buffer.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::memory::{Dst, Src};

/// The bytes of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendBuffer {
    start: *const u8,
    len: usize,
}

/// The memory of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveBuffer {
    start: *mut u8,
    len: usize,
}

// SAFETY: whoever made the buffer vouches for the memory until the request has ended, on whichever
// thread that is.
unsafe impl Send for SendBuffer {}
// SAFETY: as above.
unsafe impl Send for ReceiveBuffer {}

impl SendBuffer {
    /// # Safety
    /// The memory stays readable, and nobody writes to it, until the send has ended or was
    /// withdrawn.
    pub(crate) unsafe fn new(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len() }
    }

    /// Part of the bytes, while the send is pending.
    pub(super) fn part(&self, part: Range<usize>) -> Src<'_> {
        // SAFETY: the maker of the buffer vouches for it while the send is pending.
        unsafe { Src::new(self.start, self.len) }.part(part)
    }
}

impl ReceiveBuffer {
    /// # Safety
    /// The memory stays writable, and nobody else uses it, until the receive has ended or was
    /// withdrawn.
    pub(crate) unsafe fn new(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// Part of the memory, to write to while the receive is pending.
    pub(super) fn part_mut(&self, part: Range<usize>) -> Dst<'_> {
        assert!(part.start <= part.end && part.end <= self.len);
        // SAFETY: inside the buffer, whose maker vouches for it while the receive is pending.
        unsafe { Dst::new(self.start.wrapping_add(part.start), part.len()) }
    }

    /// Part of the memory, to read while the receive is pending.
    pub(super) fn part(&self, part: Range<usize>) -> Src<'_> {
        // SAFETY: as above.
        unsafe { Src::new(self.start, self.len) }.part(part)
    }

    /// Stores `bytes` at this offset, while the receive is pending.
    pub(super) fn store(&self, at: usize, bytes: Src<'_>) {
        self.part_mut(at..at + bytes.len()).fill(bytes);
    }
}
