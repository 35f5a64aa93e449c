//! A futex like the kernel's: a waiter reads the word under a lock that a waker takes too. There is
//! no membarrier here: publishers fence, as on a kernel without it.

use std::time::Duration;

use loom::sync::{Condvar, Mutex};

use super::atomic::{AtomicU32, Ordering};

loom::lazy_static! {
    static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

pub(super) fn has_membarrier() -> bool {
    false
}

pub(super) fn membarrier() {}

pub(super) fn futex_wait(word: &AtomicU32, seen: u32, _: Duration) {
    let guard = BUCKET.0.lock().unwrap();
    if word.load(Ordering::Relaxed) == seen {
        drop(BUCKET.1.wait(guard).unwrap());
    }
}

pub(super) fn futex_wake(_: &AtomicU32) {
    drop(BUCKET.0.lock().unwrap());
    BUCKET.1.notify_all();
}
