//! The system calls behind a wait: futexes, and the barrier that one thread makes all others run.
//! May touch: libc. Unsafe: system calls.
#![allow(unsafe_code)]

use std::sync::LazyLock;
use std::time::Duration;

use nix::libc;

use super::atomic::AtomicU32;

/// Can this process make all others run a memory barrier? Registers it as a target on the way.
static MEMBARRIER: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    let done = unsafe {
        libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)
    };
    done == 0
});

/// Can it?
#[inline]
pub(super) fn has_membarrier() -> bool {
    *MEMBARRIER
}

/// All threads that have registered run a memory barrier.
pub(super) fn membarrier() {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) };
}

/// Sleeps while `word` is `seen`, until it is woken or `limit` has passed; may return early.
pub(super) fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) {
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

/// Wakes all who sleep on `word`.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: waking reads nothing but the address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
