//! Forks: a forked child has its parent's memory, but not its threads, and its links are the
//! parent's. Each part of a rank tells by a number whether it is still in its own process, and a
//! child lets go of its parent's sockets.
#![allow(unsafe_code)]

mod per_process;
mod sockets;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;

use crate::error::{Error, Result};
pub(crate) use per_process::PerProcess;
pub(crate) use sockets::{SocketPair, adopt_socket, open_sockets};

/// Forks between this process and the one that has loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has the C library call the handlers. Without memory for that no fork is seen.
static COUNTED: LazyLock<()> = LazyLock::new(|| {
    let (before, after) = (sockets::before_fork, sockets::after_fork);
    // SAFETY: the handlers use atomics and make system calls alone, which is allowed in a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
});

/// Has forks counted from now on.
fn count_forks() {
    LazyLock::force(&COUNTED);
}

/// True in a child that was forked after the library had its first socket or communicator.
pub(crate) fn is_forked_child() -> bool {
    FORKS.load(Ordering::Relaxed) > 0
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    super::clock::reset_in_child();
    sockets::release_in_child();
}

/// The process that has made a part of a rank. Interfaces to other languages ask it before they
/// lock what belongs to the rank: in a forked child another thread of the parent may hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Default for Process {
    /// This process.
    fn default() -> Self {
        count_forks();
        Self(FORKS.load(Ordering::Relaxed))
    }
}

impl Process {
    /// False in a forked child.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// For the call `call`, in a forked child.
    #[inline]
    pub fn check(self, call: &'static str) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(forked(call)) }
    }
}

#[cold]
fn forked(call: &'static str) -> Error {
    let first = "this process is a fork of the rank's process, whose communicator it can't use; \
                 make no calls in it, or start it by another way than fork";
    Error::Broken { call, first: first.into() }
}
