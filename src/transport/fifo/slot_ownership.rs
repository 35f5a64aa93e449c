//! Slot ownership: the atomic words by which the two ends of a FIFO hand slots to each other, and
//! on which an end sleeps until the next slot is its own.
//! Law: `tests/loom`, a model checker, goes through all interleavings of the two ends; in none do
//! both touch a slot, and in none does an end sleep for ever.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::Sleeper;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::transport::Frame;

/// How one end wakes the other, if that sleeps, after it has stored the word.
pub(super) trait Wake: FnOnce(&Sleeper, &AtomicU32) {}

impl<T: FnOnce(&Sleeper, &AtomicU32)> Wake for T {}

/// The words that both ends share, besides the slots.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SharedWords {
    /// Slots that the receiver has released, modulo 2^32.
    released: CachePadded<AtomicU32>,
    pub(super) receiver: CachePadded<End>,
    pub(super) sender: CachePadded<End>,
}

/// The state of one end, which is rarely written.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct End {
    sleeper: Sleeper,
    closed: AtomicU32,
}

/// The header of a slot.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Header {
    /// The slot's number on this link plus one, modulo 2^32, once the slot is filled.
    ready: AtomicU32,
    len: AtomicU32,
    sequence: AtomicU64,
    fingerprint: AtomicU64,
}

impl End {
    /// Sets up this end's sleep flag. Called by the end itself.
    pub(super) fn attach(&self) {
        self.sleeper.attach();
    }

    /// Says that this end is about to sleep until a doorbell rings, or that it is awake again.
    pub(super) fn announce(&self, asleep: bool) {
        self.sleeper.announce(asleep);
    }

    /// True if the end has closed the link.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }
}

impl SharedWords {
    /// The number of slots that the receiver has released, which belong to the sender again.
    #[inline]
    pub(super) fn released(&self) -> u32 {
        self.released.load(Ordering::Acquire)
    }

    /// The receiver releases all slots before this number, and has the sender woken by `wake`.
    #[inline]
    pub(super) fn release(&self, number: u32, wake: impl Wake) {
        self.released.store(number, Ordering::Release);
        wake(&self.sender.sleeper, &self.released);
    }

    /// The sender sleeps until more than `seen` slots are released.
    pub(super) fn sleep_on_release(&self, seen: u32, limit: Duration) {
        self.sender.sleeper.sleep(&self.released, seen, limit);
    }

    /// The sender closes the link; `next` is the header of the slot that it would have sent next.
    pub(super) fn close_sender(&self, next: &Header, wake: impl Wake) {
        self.sender.closed.store(1, Ordering::Release);
        // A receiver that sleeps on the next slot checks `closed` when it wakes.
        wake(&self.receiver.sleeper, &next.ready);
    }

    /// The receiver closes the link.
    pub(super) fn close_receiver(&self, wake: impl Wake) {
        self.receiver.closed.store(1, Ordering::Release);
        wake(&self.sender.sleeper, &self.released);
    }
}

impl Header {
    /// The sender hands over slot `number`, which belongs to the receiver from now on.
    #[inline]
    pub(super) fn fill(&self, number: u32, frame: &Frame, control: &SharedWords, wake: impl Wake) {
        self.len.store(frame.len, Ordering::Relaxed);
        self.sequence.store(frame.sequence, Ordering::Relaxed);
        self.fingerprint.store(frame.fingerprint, Ordering::Relaxed);
        self.ready.store(number.wrapping_add(1), Ordering::Release);
        wake(&control.receiver.sleeper, &self.ready);
    }

    /// True if slot `number` belongs to the receiver.
    #[inline]
    pub(super) fn is_filled(&self, number: u32) -> bool {
        self.ready.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// The description of a filled slot.
    #[inline]
    pub(super) fn frame(&self) -> Frame {
        Frame {
            len: self.len.load(Ordering::Relaxed),
            sequence: self.sequence.load(Ordering::Relaxed),
            fingerprint: self.fingerprint.load(Ordering::Relaxed),
        }
    }

    /// The receiver sleeps until slot `number` is filled.
    pub(super) fn sleep_until_filled(&self, number: u32, control: &SharedWords, limit: Duration) {
        let seen = self.ready.load(Ordering::Acquire);
        if seen != number.wrapping_add(1) {
            control.receiver.sleeper.sleep(&self.ready, seen, limit);
        }
    }
}
