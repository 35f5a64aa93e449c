//! The wait of threads for a communicator: until started calls have ended, and the call of another
//! thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::signals::LOOK_INTERVAL;

/// How many calls were started and have not ended.
#[derive(Default)]
pub(crate) struct Activity {
    count: AtomicUsize,
    lock: Mutex<()>,
    ended: Condvar,
}

/// A started call, until it ends.
pub(crate) struct Started(Arc<Activity>);

impl Activity {
    pub(crate) fn start(self: &Arc<Self>) -> Started {
        self.count.fetch_add(1, Ordering::Relaxed);
        Started(Arc::clone(self))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits for so long until none is left; true if none is.
    pub(crate) fn is_idle_after(&self, limit: Duration) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.ended.wait_timeout_while(lock, limit, |()| !self.is_idle());
        self.is_idle()
    }

    /// Takes the communicator, if another thread leaves it within a short time.
    pub(crate) fn wait_to_take<R>(&self, mut take: impl FnMut() -> Option<R>) -> Option<R> {
        let mut taken = None;
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.ended.wait_timeout_while(lock, LOOK_INTERVAL, |()| {
            taken = take();
            taken.is_none()
        });
        taken
    }

    /// Tells the threads that wait.
    pub(crate) fn note_end(&self) {
        let lock = self.lock.lock();
        self.ended.notify_all();
        drop(lock);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Release);
        self.0.note_end();
    }
}
