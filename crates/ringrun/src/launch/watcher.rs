//! The watcher: a second process of each job, which waits and, if the launcher is killed, kills all
//! other processes of the job. Its session and its name are its own, so that neither Ctrl-C nor
//! `killall -9 ringrun` reaches it. If launcher and watcher are killed at once, the ranks still
//! end, since the kernel kills them with their parent, but processes that they started may stay.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::Pid;

use super::{procfs, sys};

const FLAG: &str = "--watch";
const NAME: &str = "ring-watch";

pub(crate) struct Watcher {
    child: Child,
    socket: UnixStream,
}

impl Watcher {
    /// Starts the watcher of `job`.
    pub(crate) fn start(job: &str) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(FLAG).arg(job).env_clear().current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        sys::before_exec(&mut command, || {
            nix::unistd::setsid()?;
            // Signals that end the launcher must not end the watcher, from its fork on.
            Ok(SigSet::all().thread_set_mask()?)
        });
        Ok(Self { child: command.spawn()?, socket })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The socket for [`send_group`].
    pub(crate) fn socket_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Tells the watcher that the process group `pid` is gone and its number may be used again.
    pub(crate) fn forget_group(&self, pid: i32) {
        // The user has been warned of a watcher that was killed.
        let _ = send_group(self.socket_fd(), -pid);
    }

    /// Ends the watcher of a job that has been cleaned up.
    pub(crate) fn stop(mut self) {
        let _ = send_group(self.socket_fd(), 0);
        drop(self.socket);
        let _ = self.child.wait();
    }
}

/// Sends one message: a process group to remember, its negative to forget it, 0 to end.
/// Makes one system call, so that it may run between fork and exec.
pub(crate) fn send_group(socket: RawFd, message: i32) -> io::Result<()> {
    send(socket, &message.to_ne_bytes(), MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

/// The job to watch, if the arguments are those of [`Watcher::start`].
pub(crate) fn watched_job(words: &[OsString]) -> Option<String> {
    let named = std::env::args_os().next().is_some_and(|name| name == NAME);
    match words {
        [flag, job] if named && flag == FLAG => job.to_str().map(str::to_owned),
        _ => None,
    }
}

/// True if the process is the watcher of a job of such a name.
pub(crate) fn watches(pid: u32, is_name: impl Fn(&[u8]) -> bool) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let job = words.strip_prefix(format!("{NAME}\0{FLAG}\0").as_bytes());
    job.and_then(|job| job.strip_suffix(b"\0")).is_some_and(is_name)
}

pub(crate) fn run(job: &str) -> ExitCode {
    // killall goes by this name, which would be "exe".
    let _ = prctl::set_name(c"ring-watch");
    let mut groups = BTreeSet::new();
    let mut message = [0; 4];
    let mut socket = io::stdin().lock();
    while socket.read_exact(&mut message).is_ok() {
        match i32::from_ne_bytes(message) {
            0 => return ExitCode::SUCCESS,
            group if group > 0 => groups.insert(group.unsigned_abs()),
            group => groups.remove(&group.unsigned_abs()),
        };
    }
    clean(&groups, job);
    ExitCode::SUCCESS
}

/// Kills until no process of the job is left, or only some that can't die (state D).
fn clean(groups: &BTreeSet<u32>, job: &str) {
    let ours = |process: &procfs::Process| {
        groups.contains(&process.group) || procfs::belongs_to(process.pid, job)
    };
    for _ in 0..100 {
        let left = procfs::processes().into_iter().filter(|process| process.state != 'Z');
        let left: Vec<_> = left.filter(ours).collect();
        if left.is_empty() {
            return;
        }
        for process in &left {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), Signal::SIGKILL);
        }
        for process in &left {
            await_end(process.pid);
        }
    }
}

fn await_end(pid: u32) {
    use nix::poll::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    match sys::pidfd_open(pid) {
        Ok(process) => {
            let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], 200_u16);
        }
        // The process is gone, or the system has no such descriptors.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
}
