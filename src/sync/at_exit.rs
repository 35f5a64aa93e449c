//! Functions that run when the process exits, by `exit` or at the end of `main`.
#![allow(unsafe_code)]

use nix::libc;

/// Has the C library call `function` at the exit of this process, and of processes forked from it.
/// False if it lacks the memory.
pub(crate) fn call_at_exit(function: extern "C" fn()) -> bool {
    // SAFETY: the function is safe to call at any time, and stays as long as this library does:
    // the C library calls it when the library is unloaded, if that is before.
    unsafe { libc::atexit(function) == 0 }
}
