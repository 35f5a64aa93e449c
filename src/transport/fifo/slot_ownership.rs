//! The words by which the two ends of a FIFO hand slots to each other: who may touch a slot, and
//! who sleeps until it may. May touch: sync, the frame of `link`.
//! Law: `tests/loom` walks through all orders in which two ends can do these, and finds neither a
//! slot that both touch nor an end that sleeps for ever.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::Sleeper;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::transport::Frame;

/// What both ends share, beside the slots.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Control {
    /// Slots that the receiver gave back, modulo 2^32.
    released: CachePadded<AtomicU32>,
    pub(super) receiver: CachePadded<End>,
    pub(super) sender: CachePadded<End>,
}

/// What one end tells the other, rarely written.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct End {
    sleeper: Sleeper,
    closed: AtomicU32,
}

/// What a slot begins with.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Header {
    /// The slot's number on this link plus one, modulo 2^32, once it is filled.
    ready: AtomicU32,
    len: AtomicU32,
    sequence: AtomicU64,
    fingerprint: AtomicU64,
}

impl End {
    /// To be called once by this end.
    pub(super) fn attach(&self) {
        self.sleeper.attach();
    }

    /// Has it left?
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }
}

impl Control {
    /// How many slots the receiver has given back; those are the sender's.
    #[inline]
    pub(super) fn released(&self) -> u32 {
        self.released.load(Ordering::Acquire)
    }

    /// The receiver gives back all slots before this number.
    #[inline]
    pub(super) fn release(&self, number: u32) {
        self.released.store(number, Ordering::Release);
        self.sender.sleeper.wake(&self.released);
    }

    /// The sender sleeps until more than `seen` slots are given back.
    pub(super) fn sleep_on_release(&self, seen: u32, limit: Duration) {
        self.sender.sleeper.sleep(&self.released, seen, limit);
    }

    /// The sender leaves; its next slot would have been that with this header.
    pub(super) fn close_sender(&self, next: &Header) {
        self.sender.closed.store(1, Ordering::Release);
        // Whoever sleeps on the next slot looks at `closed` when it wakes.
        self.receiver.sleeper.wake(&next.ready);
    }

    /// The receiver leaves.
    pub(super) fn close_receiver(&self) {
        self.receiver.closed.store(1, Ordering::Release);
        self.sender.sleeper.wake(&self.released);
    }
}

impl Header {
    /// The sender hands over the slot with this number: from here on it is the receiver's.
    #[inline]
    pub(super) fn fill(&self, number: u32, frame: &Frame, control: &Control) {
        self.len.store(frame.len, Ordering::Relaxed);
        self.sequence.store(frame.sequence, Ordering::Relaxed);
        self.fingerprint.store(frame.fingerprint, Ordering::Relaxed);
        self.ready.store(number.wrapping_add(1), Ordering::Release);
        control.receiver.sleeper.wake(&self.ready);
    }

    /// Is the slot with this number the receiver's?
    #[inline]
    pub(super) fn is_filled(&self, number: u32) -> bool {
        self.ready.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// What a filled slot says of itself.
    #[inline]
    pub(super) fn frame(&self) -> Frame {
        Frame {
            len: self.len.load(Ordering::Relaxed),
            sequence: self.sequence.load(Ordering::Relaxed),
            fingerprint: self.fingerprint.load(Ordering::Relaxed),
        }
    }

    /// The receiver sleeps until the slot with this number is filled.
    pub(super) fn sleep_until_filled(&self, number: u32, control: &Control, limit: Duration) {
        let seen = self.ready.load(Ordering::Acquire);
        if seen != number.wrapping_add(1) {
            control.receiver.sleeper.sleep(&self.ready, seen, limit);
        }
    }
}
