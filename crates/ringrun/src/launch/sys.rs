//! System calls that have no safe wrapper. No other file of ringrun has unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use ringreduce::health::process_table::Ended;

/// True if the standard output was closed when this process began. Rust's runtime opens /dev/null
/// in its place before `main`, and what is written there is lost without an error.
static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls each function of this section once, before `main`. This one uses an
// atomic and makes a system call.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_for_stdout;

extern "C" fn look_for_stdout() {
    // SAFETY: the call only asks, and takes two integers.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    STDOUT_WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Fails if the standard output was closed when this process began.
pub(crate) fn check_stdout() -> io::Result<()> {
    match STDOUT_WAS_CLOSED.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(()),
    }
}

/// A descriptor that becomes readable when the process ends. Fails with ENOSYS before Linux 5.3.
pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::c_long::from(pid);
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0 as libc::c_long) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above succeeded, so this is a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True if the system has no such call, or a sandbox forbids it.
pub(crate) fn is_refused(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// The signal that has stopped this child, if that is news.
pub(crate) fn stop_of(pid: u32) -> Option<i32> {
    stop(pid, 0)
}

/// True if [`stop_of`] will tell a stop.
pub(crate) fn has_new_stop(pid: u32) -> bool {
    stop(pid, libc::WNOWAIT).is_some()
}

fn stop(pid: u32, flags: i32) -> Option<i32> {
    let info = waitid(libc::P_PID, pid, libc::WSTOPPED | libc::WNOHANG | flags)?;
    // SAFETY: waitid fills (or leaves zero) the fields of a SIGCHLD, `si_status` among them.
    let signal = unsafe { info.si_status() };
    (info.si_code == libc::CLD_STOPPED).then_some(signal)
}

/// Writes as many bytes as a pipe or a socket has room for. O_NONBLOCK would do so too, but for
/// every process that shares the open file. Fails with EOPNOTSUPP where the kernel can't do it.
pub(crate) fn write_without_waiting(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `part` is one range of bytes, which the call only reads; an offset of -1 is the
    // file's own.
    let written =
        unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// The bytes that wait in a pipe for its reader.
pub(crate) fn bytes_in_pipe(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the call writes one integer to `count`.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    usize::try_from(count).ok().filter(|_| asked == 0)
}

/// True if `signal` is ignored, as by nohup, or by `&` in a script.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; `now` is writable and of the right type.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `sigaction`, so it is initialised even after an error.
    let now = unsafe { now.assume_init() };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Gives these signals their default dispositions. Makes system calls only, so that it may run
/// between fork and exec.
pub(crate) fn default_dispositions(signals: impl Iterator<Item = i32>) {
    for signal in signals {
        // SAFETY: no handler is involved. For SIGKILL and SIGSTOP the call fails and changes
        // nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// True if this process has children, even if none has ended.
pub(crate) fn has_children() -> bool {
    ended(libc::P_ALL, 0).is_some()
}

/// The first child that has ended and was not reaped; it stays so.
pub(crate) fn ended_child() -> Option<u32> {
    let info = ended(libc::P_ALL, 0)?;
    // SAFETY: waitid fills (or leaves zero) the fields of a SIGCHLD, `si_pid` among them.
    let pid = unsafe { info.si_pid() };
    u32::try_from(pid).ok().filter(|&pid| pid > 0)
}

/// How this child ended, if it has; it stays unreaped.
pub(crate) fn end_of(pid: u32) -> Option<Ended> {
    let info = ended(libc::P_PID, pid)?;
    // SAFETY: waitid fills (or leaves zero) the fields of a SIGCHLD, `si_status` among them.
    let status = unsafe { info.si_status() };
    match info.si_code {
        libc::CLD_EXITED => Some(Ended::Exited((status & 0xff) as u8)),
        libc::CLD_KILLED | libc::CLD_DUMPED => Some(Ended::Killed(status)),
        _ => None,
    }
}

/// waitid(2) without waiting and without reaping. nix's wrapper refuses real-time signals.
fn ended(which: libc::idtype_t, id: u32) -> Option<libc::siginfo_t> {
    waitid(which, id, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
}

fn waitid(which: libc::idtype_t, id: u32, flags: i32) -> Option<libc::siginfo_t> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is writable and of the right type.
    let asked = unsafe { libc::waitid(which, id, info.as_mut_ptr(), flags) };
    // SAFETY: all-zero bytes are a valid `siginfo_t`, so it is initialised even after an error.
    (asked == 0).then(|| unsafe { info.assume_init() })
}

/// Runs `setup` in the child between fork and exec.
///
/// `setup` must only make system calls: after the fork of a program with threads another thread
/// may hold the allocator's lock for ever.
pub(crate) fn before_exec<F>(command: &mut Command, setup: F)
where
    F: FnMut() -> io::Result<()> + Send + Sync + 'static,
{
    // SAFETY: by the contract above `setup` is async-signal-safe.
    unsafe { command.pre_exec(setup) };
}
