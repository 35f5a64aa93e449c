//! Signals of the processes that tests start. Dispositions and the signal mask are inherited by
//! exec, and a test must not depend on whoever starts cargo: nohup ignores SIGHUP, and a shell that
//! starts a background command in a script ignores SIGINT.
#![allow(unsafe_code, reason = "runs code between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::signal::SigSet;

/// The process that `command` starts has all signals at their default dispositions, and these
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

/// The process that `command` starts has the signals as a login shell starts programs.
pub fn default(command: &mut Command) {
    default_but_blocked(command, SigSet::empty());
}
