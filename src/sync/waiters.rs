//! The ranks that sleep (futex) until another rank publishes, and the wake-up by that rank.
//! `tests/loom` checks all interleavings.
//!
//! Law (Dekker's algorithm): the publisher stores its words, then reads this one; a waiter stores
//! this one, then reads the publisher's words. Each has a full fence between, so at least one sees
//! the other's store. Where every rank has a CPU, the publisher's fence would hold it up until its
//! store has reached the CPU that polls; waiters, which sleep seldom there, pay for both sides with
//! `membarrier`. Where ranks share CPUs the publisher fences, and no wait needs a system call but
//! the sleep.

use std::time::Duration;

use super::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use super::system::{futex_wait, futex_wake, has_membarrier, membarrier};

/// The word at which ranks sleep until its owner publishes; beside the owner's words. Its lowest
/// bit is set while a rank may sleep there; the rest counts wake-ups, so a rank that is about to
/// sleep notices a wake-up even if another one has set the bit again.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Waiters(AtomicU32);

/// Which side pays for the fences between publishers and waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FencedBy {
    /// Each publisher.
    Publishers,
    /// The waiters, by `membarrier`. All waiters must do so, and be able to.
    Waiters,
}

impl FencedBy {
    /// The way that suits a host with this many ranks and CPUs, as far as this rank is concerned.
    pub(crate) fn preferred(ranks: usize, cpus: usize) -> Self {
        let waiters = ranks <= cpus && has_membarrier();
        if waiters { Self::Waiters } else { Self::Publishers }
    }
}

impl Waiters {
    /// Sleeps until the owner has published what `is_published` looks for, for at most `limit`; may
    /// return early. `by` is this rank's preferred way.
    pub(crate) fn sleep(&self, limit: Duration, by: FencedBy, is_published: impl Fn() -> bool) {
        let seen = self.0.fetch_or(1, Ordering::Relaxed) | 1;
        fence(Ordering::SeqCst);
        if by == FencedBy::Waiters {
            membarrier();
        }
        if !is_published() {
            futex_wait(&self.0, seen, limit);
        }
    }

    /// Wakes all that sleep here, after the owner has stored its words (Release). `by` is
    /// [`FencedBy::Waiters`] only if all ranks prefer that.
    #[inline]
    pub(crate) fn wake(&self, by: FencedBy) {
        match by {
            FencedBy::Publishers => fence(Ordering::SeqCst),
            FencedBy::Waiters => compiler_fence(Ordering::SeqCst),
        }
        if self.0.load(Ordering::Relaxed) & 1 != 0 {
            self.0.fetch_add(1, Ordering::Relaxed);
            futex_wake(&self.0);
        }
    }
}
