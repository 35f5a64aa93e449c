//! Turns of tests that compute. A rank looks for its peer before it sleeps: six worlds at once on
//! two CPUs took half as much CPU time again as three.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::available_parallelism;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// The turn of one test, until it is dropped.
pub struct Turn(());

/// Waits for a turn. There is one more than there are CPUs: while the ranks of a world start or
/// wait, another world computes.
pub fn turn() -> Turn {
    let most = available_parallelism().unwrap().get() + 1;
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let running = ENDED.wait_while(running, |running| *running == most);
    *running.unwrap_or_else(PoisonError::into_inner) += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}
