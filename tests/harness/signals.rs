//! Signals of the processes that tests start. Dispositions and the signal mask are inherited by
//! exec, and a test must not depend on the program that starts cargo: nohup ignores SIGHUP, and a
//! shell that starts a background command in a script ignores SIGINT.
#![allow(unsafe_code, reason = "runs code between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::signal::SigSet;

/// Lets `command` start its process with default dispositions of all signals, and `blocked`
/// blocked.
pub fn default_but_blocked(command: &mut Command, blocked: SigSet) {
    let set = move || {
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: this sets a default disposition; no handler is involved.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(blocked.thread_set_mask()?)
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(set) };
}

/// Lets `command` start its process with the signals as a login shell sets them.
pub fn default(command: &mut Command) {
    default_but_blocked(command, SigSet::empty());
}
