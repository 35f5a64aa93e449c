//! Marks: places in a stream that it passes once, at a time.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::registry::lock;

#[derive(Debug)]
pub(crate) struct Mark {
    passed: Mutex<Option<Instant>>,
    bell: Condvar,
}

impl Mark {
    pub(crate) fn pending() -> Arc<Self> {
        Arc::new(Self { passed: Mutex::new(None), bell: Condvar::new() })
    }

    pub(crate) fn finished() -> Arc<Self> {
        Arc::new(Self { passed: Mutex::new(Some(Instant::now())), bell: Condvar::new() })
    }

    pub(crate) fn pass(&self) {
        *lock(&self.passed) = Some(Instant::now());
        self.bell.notify_all();
    }

    /// When it was passed.
    pub(crate) fn time(&self) -> Option<Instant> {
        *lock(&self.passed)
    }

    /// Ends in any case: what a lost context has left is passed over.
    pub(crate) fn wait(&self) {
        let mut passed = lock(&self.passed);
        while passed.is_none() {
            passed = self.bell.wait(passed).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
