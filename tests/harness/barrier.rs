//! A barrier of threads that ends: a thread that panics never comes to one, and the others would
//! wait for it for ever.

use std::sync::{Condvar, Mutex};

use crate::process::patience;

/// As [`std::sync::Barrier`].
pub struct Barrier {
    size: usize,
    state: Mutex<State>,
    all_came: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads that wait.
    waiting: usize,
    /// Times that all threads came.
    rounds: usize,
}

impl Barrier {
    pub fn new(size: usize) -> Self {
        Self { size, state: Mutex::default(), all_came: Condvar::new() }
    }

    /// Waits for the other threads.
    ///
    /// # Panics
    /// If one of them does not come.
    pub fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        let round = state.rounds;
        state.waiting += 1;
        if state.waiting == self.size {
            *state = State { waiting: 0, rounds: round + 1 };
            self.all_came.notify_all();
            return;
        }
        let is_incomplete = |state: &mut State| state.rounds == round;
        let waited = self.all_came.wait_timeout_while(state, patience(), is_incomplete).unwrap();
        assert!(!waited.1.timed_out(), "a thread that should come to the barrier has failed");
    }
}
