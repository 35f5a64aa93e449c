//! The system calls behind a wait: futex and membarrier.
#![allow(unsafe_code)]

use std::sync::LazyLock;
use std::time::Duration;

use nix::libc;

use super::MAX_SLEEP;
use super::atomic::AtomicU32;

/// True if this process can use `membarrier`; registers it as a target of other processes' calls.
static MEMBARRIER: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    let done = unsafe {
        libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)
    };
    done == 0
});

#[inline]
pub(super) fn has_membarrier() -> bool {
    *MEMBARRIER
}

/// Executes a memory barrier on all CPUs that run a registered process.
pub(super) fn membarrier() {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) };
}

/// Sleeps while `word` is `seen`, for at most `limit`; may return early.
pub(super) fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = limit.min(MAX_SLEEP);
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: the kernel reads the word and the timespec, which both outlive the call. Every
    // outcome (woken, changed, interrupted, timed out) makes the caller look again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit)
    };
}

/// Wakes all sleepers on `word`.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: waking reads nothing but the address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
