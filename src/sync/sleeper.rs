//! A sleeper: a thread or process that sleeps (futex) until a word changes, and the wake-up by the
//! one that changes it. `tests/loom` checks all interleavings.
//!
//! Law (Dekker's algorithm): the publisher stores the word, then reads the sleep flag; the sleeper
//! stores the flag, then reads the word. At least one must see the other's store. The publisher is
//! on the hot path and pays a compiler fence only; the sleeper pays for both sides with
//! `membarrier`.

use std::time::Duration;

use super::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use super::system::{futex_wait, futex_wake, has_membarrier, membarrier};

/// Awake; without `membarrier`, so that the publisher must execute a fence.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// The sleeper calls `membarrier` after it sets the flag, so that publishers need no fence.
const HEAVY: u32 = 2;

/// The fence between the flags that this side has announced and the words that it reads next.
pub(crate) fn store_load_fence() {
    fence(Ordering::SeqCst);
    if has_membarrier() {
        membarrier();
    }
}

/// The sleep flag of a reader, beside the published word in memory that both sides share.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Sleeper(AtomicU32);

impl Sleeper {
    /// Called once by the side that will sleep. Until then the other side publishes with a fence,
    /// unless this side has slept. Another thread of this side may have announced that it sleeps.
    pub(crate) fn attach(&self) {
        self.0.fetch_or(if has_membarrier() { HEAVY } else { AWAKE }, Ordering::SeqCst);
    }

    /// Sleeps until `word` is no longer `seen`, for at most `limit`; may return early.
    pub(crate) fn sleep(&self, word: &AtomicU32, seen: u32, limit: Duration) {
        self.announce(true);
        store_load_fence();
        if word.load(Ordering::Acquire) == seen {
            futex_wait(word, seen, limit);
        }
        self.announce(false);
    }

    /// Says that this side is about to sleep, or that it is awake again. Before it sleeps it calls
    /// [`store_load_fence`], once for all its sleepers, and looks at their words again.
    pub(crate) fn announce(&self, asleep: bool) {
        let mode = if has_membarrier() { HEAVY } else { AWAKE };
        match asleep {
            true => self.0.store(mode | ASLEEP, Ordering::SeqCst),
            false => self.0.store(mode, Ordering::Relaxed),
        }
    }

    /// Wakes the other side if it sleeps on `word`, which was stored before (Release).
    #[inline]
    pub(crate) fn wake(&self, word: &AtomicU32) {
        if self.is_asleep() {
            futex_wake(word);
        }
    }

    /// True if the other side may sleep, and must be woken since its word was stored (Release).
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        let mut state = self.0.load(Ordering::Relaxed);
        if state & HEAVY == 0 || !has_membarrier() {
            fence(Ordering::SeqCst);
            state = self.0.load(Ordering::Relaxed);
        }
        state & ASLEEP != 0
    }
}
