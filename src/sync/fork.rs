//! Forks: a forked child has its parent's memory, but not its threads, and its links are the
//! parent's. What a rank has made tells by a number whether it is still in its own process.
#![allow(unsafe_code)]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;

use crate::error::{Error, Result};

/// Forks between this process and the one that has loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has children count. Without memory for that no fork is seen.
static COUNTED: LazyLock<()> = LazyLock::new(|| {
    // SAFETY: the function adds to a word, which is allowed in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(count)) };
});

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that has made a part of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Default for Process {
    /// This process.
    fn default() -> Self {
        LazyLock::force(&COUNTED);
        Self(FORKS.load(Ordering::Relaxed))
    }
}

impl Process {
    /// False in a forked child.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// For the call `call`, in a forked child.
    #[inline]
    pub(crate) fn check(self, call: &'static str) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(forked(call)) }
    }
}

#[cold]
fn forked(call: &'static str) -> Error {
    let first = "this process is a fork of the rank's process, whose communicator it can't use; \
                 make no calls in it, or start it by another way than fork";
    Error::Broken { call, first: first.into() }
}
