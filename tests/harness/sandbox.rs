//! Sandboxes: processes to which the kernel refuses a system call (seccomp), as old kernels,
//! containers and batch systems do.
#![allow(unsafe_code, reason = "runs code between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_no_new_privs;

/// Lets `command` start a process for which, as for all that it starts, `call` (such as
/// `libc::SYS_pidfd_open`) fails with `error`.
pub fn refuse(command: &mut Command, call: libc::c_long, error: Errno) {
    let op =
        |code: u32, (jt, jf): (u8, u8), k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the system call is the first word that a filter sees.
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), call as u32),
        op(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | error as u32),
        op(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let enter = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
        // Without privileges a process may have a filter only if its programs gain none.
        set_no_new_privs()?;
        // SAFETY: the kernel reads the filter, which outlives the call, and writes nothing.
        let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(enter) };
}
