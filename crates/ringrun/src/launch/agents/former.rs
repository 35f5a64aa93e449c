//! Processes of a former agent that may still run on this host: an agent that was stopped, or cut
//! off from its launcher, may live on with its ranks beside the agent that is started next.
//! Law: no rank starts before all processes of the former agent have ended.

use std::ffi::CStr;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::Failure;
use crate::launch::job::KILL_GRACE;
use crate::launch::{procfs, watcher};
use ringreduce::bootstrap::Instant;

/// The name of an agent's process.
pub(super) const AGENT_NAME: &CStr = c"ring-agent";
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Kills the former agents of this host and what they have started, and waits for their end. Fails
/// if a process does not end within [`KILL_GRACE`].
pub(super) fn end_former_agent(job: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + KILL_GRACE;
    loop {
        let mut left = processes_of(job);
        let Some(first) = left.first().copied() else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(Failure::Host(format!(
                "process {first} of the agent that was lost can't be killed, so that no rank can \
                 start beside it"
            )));
        }
        // A watcher knows processes that nobody else does, and ends by itself after them.
        let is_late = Instant::now() + KILL_GRACE / 2 >= deadline;
        left.retain(|&pid| is_late || !watcher::watches(pid, job));
        for pid in left {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The processes of the job, their watchers, and the agents that have started these.
fn processes_of(job: &str) -> Vec<u32> {
    let (me, mut found) = (std::process::id(), vec![]);
    for process in procfs::processes().iter().filter(|it| it.state != 'Z' && it.pid != me) {
        if watcher::watches(process.pid, job) || procfs::belongs_to(process.pid, job) {
            found.push(process.pid);
            found.extend(Some(process.parent).filter(|&parent| parent != me && is_agent(parent)));
        }
    }
    found
}

fn is_agent(pid: u32) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_ascii() == AGENT_NAME.to_bytes()
}
