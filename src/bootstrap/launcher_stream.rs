//! Turns on the launcher's inherited socket, which is one stream for all communicators of this
//! process.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

fn is_taken() -> MutexGuard<'static, bool> {
    IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn on the launcher's stream, which may end on another thread than the one that took it.
#[derive(Debug)]
pub(super) struct LauncherStream(());

impl LauncherStream {
    /// Waits for a turn.
    pub(super) fn lock() -> Self {
        let taken = IS_FREE.wait_while(is_taken(), |is_taken| *is_taken);
        *taken.unwrap_or_else(PoisonError::into_inner) = true;
        Self(())
    }

    /// A turn, unless another one goes on.
    pub(super) fn try_lock() -> Option<Self> {
        let was_taken = std::mem::replace(&mut *is_taken(), true);
        // A value that was made and dropped would end the turn of the other.
        (!was_taken).then(|| Self(()))
    }
}

impl Drop for LauncherStream {
    fn drop(&mut self) {
        *is_taken() = false;
        IS_FREE.notify_one();
    }
}
