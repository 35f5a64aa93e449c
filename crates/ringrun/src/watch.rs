//! The watcher: a second process per job that does nothing until the launcher dies unasked, then
//! kills what the job left behind. It has its own session and a name of its own, so that neither
//! Ctrl-C nor `killall -9 ringrun` reaches it. Killing both at once is the limit of this scheme
//! (the ranks themselves still end: the kernel kills them with their parent).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::Pid;

use crate::{proc, sys};

const FLAG: &str = "--watch";
const NAME: &str = "ring-watch";

/// The launcher's end.
pub(crate) struct Watcher {
    child: Child,
    line: UnixStream,
}

impl Watcher {
    /// Starts the watcher of `job`.
    pub(crate) fn start(job: &str) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(FLAG).arg(job).env_clear().current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        sys::before_exec(&mut command, || {
            nix::unistd::setsid()?;
            // It must outlive what ends the launcher, also between fork and its own start.
            Ok(SigSet::all().thread_set_mask()?)
        });
        Ok(Self { child: command.spawn()?, line })
    }

    /// The watcher's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where a new rank reports itself with [`report`].
    pub(crate) fn line(&self) -> RawFd {
        self.line.as_raw_fd()
    }

    /// The process group of `pid` is gone, and the number may be used again.
    pub(crate) fn forget(&self, pid: i32) {
        // A watcher that was killed can't be told; the launcher has said so by then.
        let _ = report(self.line(), -pid);
    }

    /// All is cleaned up: lets the watcher end and waits for that.
    pub(crate) fn dismiss(mut self) {
        let _ = report(self.line(), 0);
        drop(self.line);
        let _ = self.child.wait();
    }
}

/// One message: a process group to remember, its negative to forget, 0 to end in peace.
/// Makes one system call, so it may run between fork and exec.
pub(crate) fn report(line: RawFd, message: i32) -> io::Result<()> {
    send(line, &message.to_ne_bytes(), MsgFlags::MSG_NOSIGNAL)?;
    Ok(())
}

/// The job, if these are the words that [`Watcher::start`] uses.
pub(crate) fn asked_for(words: &[OsString]) -> Option<String> {
    let named = std::env::args_os().next().is_some_and(|name| name == NAME);
    match words {
        [flag, job] if named && flag == FLAG => job.to_str().map(str::to_owned),
        _ => None,
    }
}

/// The watcher's whole life.
pub(crate) fn run(job: &str) -> ExitCode {
    // `killall` goes by this name; without it the process would be called "exe".
    let _ = prctl::set_name(c"ring-watch");
    let mut groups = BTreeSet::new();
    let mut message = [0; 4];
    let mut line = io::stdin().lock();
    while line.read_exact(&mut message).is_ok() {
        match i32::from_ne_bytes(message) {
            0 => return ExitCode::SUCCESS,
            group if group > 0 => groups.insert(group.unsigned_abs()),
            group => groups.remove(&group.unsigned_abs()),
        };
    }
    clean(&groups, job);
    ExitCode::SUCCESS
}

/// Kills until nothing of the job is left; what can't die (state D) ends the attempt.
fn clean(groups: &BTreeSet<u32>, job: &str) {
    let ours = |process: &proc::Process| {
        groups.contains(&process.group) || proc::belongs(process.pid, job)
    };
    for _ in 0..100 {
        let left = proc::all().into_iter().filter(|process| process.state != 'Z');
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
    if let Ok(process) = sys::pidfd_open(pid) {
        let _ = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], 200_u16);
    }
}
