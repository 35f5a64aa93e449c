//! Who sleeps until a word changes, and who wakes it. May touch: system. `tests/loom` walks through
//! all orders of the two sides.
//!
//! Law (Dekker's): whoever publishes a word and then finds nobody asleep, and whoever announces
//! sleep and then finds nothing published, cannot both be right. The publisher is on the hot path
//! and pays a compiler fence only; the sleeper pays for both with `membarrier`.

use std::time::Duration;

use super::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use super::system::{futex_wait, futex_wake, has_membarrier, membarrier};

/// Not asleep, and its sleep is announced by an ordinary fence: the publisher must fence too.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// This sleeper runs `membarrier` after announcing, so that publishers need no fence.
const HEAVY: u32 = 2;

fn heavy_fence() {
    fence(Ordering::SeqCst);
    if has_membarrier() {
        membarrier();
    }
}

/// A flag beside a published word, in memory that both sides share: is the reader asleep?
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Sleeper(AtomicU32);

impl Sleeper {
    /// To be called once by the side that will sleep, before the other side publishes anything it
    /// would have to be woken for, or at any time after.
    pub(crate) fn attach(&self) {
        self.0.store(if has_membarrier() { HEAVY } else { AWAKE }, Ordering::SeqCst);
    }

    /// Sleeps until `word` is no longer `seen`, or `limit` has passed; may return early.
    pub(crate) fn sleep(&self, word: &AtomicU32, seen: u32, limit: Duration) {
        let mode = if has_membarrier() { HEAVY } else { AWAKE };
        self.0.store(mode | ASLEEP, Ordering::SeqCst);
        heavy_fence();
        if word.load(Ordering::Acquire) == seen {
            futex_wait(word, seen, limit);
        }
        self.0.store(mode, Ordering::Relaxed);
    }

    /// After `word` was stored (Release): wakes the other side if it sleeps on it.
    #[inline]
    pub(crate) fn wake(&self, word: &AtomicU32) {
        compiler_fence(Ordering::SeqCst);
        let mut state = self.0.load(Ordering::Relaxed);
        if state & HEAVY == 0 || !has_membarrier() {
            fence(Ordering::SeqCst);
            state = self.0.load(Ordering::Relaxed);
        }
        if state & ASLEEP != 0 {
            futex_wake(word);
        }
    }
}
