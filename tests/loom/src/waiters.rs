//! A rank that publishes, and ranks that sleep until it has.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{FencedBy, Waiters};

const LIMIT: Duration = Duration::from_millis(10);
const BY: FencedBy = FencedBy::Publishers;

#[derive(Default)]
struct Words {
    blocks: AtomicU64,
    waiters: Waiters,
}

/// `waiters` ranks wait for each of `blocks` blocks.
fn walk(waiters: usize, blocks: u64) {
    loom::model(move || {
        let words = Arc::new(Words::default());
        let wait = |words: Arc<Words>| {
            move || {
                for block in 1..=blocks {
                    let has = || words.blocks.load(Ordering::Acquire) >= block;
                    while !has() {
                        words.waiters.sleep(LIMIT, BY, has);
                    }
                }
            }
        };
        let threads: Vec<_> =
            (0..waiters).map(|_| thread::spawn(wait(Arc::clone(&words)))).collect();
        for block in 1..=blocks {
            words.blocks.store(block, Ordering::Release);
            words.waiters.wake(BY);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_waiter() {
    walk(1, 2);
}

#[test]
fn two_waiters() {
    walk(2, 1);
}
