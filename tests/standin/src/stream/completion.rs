//! Completions: whether and when a stream has run a piece of its work.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::registry::lock;

#[derive(Debug)]
pub(crate) struct Completion {
    time: Mutex<Option<Instant>>,
    completed: Condvar,
}

impl Completion {
    pub(crate) fn pending() -> Arc<Self> {
        Arc::new(Self { time: Mutex::new(None), completed: Condvar::new() })
    }

    pub(crate) fn completed() -> Arc<Self> {
        let completion = Self::pending();
        completion.complete();
        completion
    }

    pub(crate) fn complete(&self) {
        *lock(&self.time) = Some(Instant::now());
        self.completed.notify_all();
    }

    /// The time of completion, if it is completed.
    pub(crate) fn time(&self) -> Option<Instant> {
        *lock(&self.time)
    }

    /// Waits. Every completion comes, for a queue skips the work of a lost context.
    pub(crate) fn wait(&self) {
        let mut time = lock(&self.time);
        while time.is_none() {
            time = self.completed.wait(time).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
