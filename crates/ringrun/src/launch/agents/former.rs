//! Processes of former agents that may still run on this host: an agent that was stopped, or cut
//! off from its launcher, may live on with its ranks beside the agent that is started next.
//! Laws: no rank starts before all processes of the former agents have ended; of two agents that
//! begin at once, the former one leaves the other alone.

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

/// Kills the agents of this host with numbers below `generation` and what they have started, and
/// waits for their end. Fails if a process does not end within [`KILL_GRACE`].
pub(super) fn end_former_agents(job: &str, generation: u16) -> Result<(), Failure> {
    let is_former = |name: &[u8]| is_former(name, job, generation);
    let deadline = Instant::now() + KILL_GRACE;
    loop {
        let mut left = processes_of(is_former);
        let Some(first) = left.first().copied() else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(Failure::Host(format!(
                "process {first} of the agent that was lost can't be killed, so that no rank can \
                 start beside it"
            )));
        }
        // A watcher knows processes that nobody else does, and ends by itself after them.
        let is_late = Instant::now() + KILL_GRACE / 2 >= deadline;
        left.retain(|&pid| is_late || !watcher::watches(pid, is_former));
        for pid in left {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// True if this is the name of the job in processes of an agent before this one, as
/// [`agent_name`](super::message::AgentJob::agent_name) gives it.
fn is_former(name: &[u8], job: &str, generation: u16) -> bool {
    let number = name.strip_prefix(job.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    let number = number.and_then(|number| str::from_utf8(number).ok()?.parse::<u16>().ok());
    number.is_some_and(|number| number < generation)
}

/// The processes of jobs of such names, their watchers, and the agents that have started these.
fn processes_of(is_name: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let (me, mut found) = (std::process::id(), vec![]);
    for process in procfs::processes().iter().filter(|it| it.state != 'Z' && it.pid != me) {
        let pid = process.pid;
        if watcher::watches(pid, &is_name) || procfs::belongs_to_any(pid, &is_name) {
            found.push(pid);
            found.extend(Some(process.parent).filter(|&parent| parent != me && is_agent(parent)));
        }
    }
    found
}

fn is_agent(pid: u32) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_ascii() == AGENT_NAME.to_bytes()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that runs for long, of the job of this name.
    fn process_of(name: &str) -> Child {
        let mut command = Command::new("sleep");
        command.arg("1000").env(procfs::JOB_VARIABLE, format!("outer/{name}"));
        command.spawn().unwrap()
    }

    #[test]
    fn an_agent_ends_processes_of_former_agents_and_of_no_later_or_other_one() {
        let job = format!("former-{}.1", std::process::id());
        let names = [".0", ".1", ".2", ".3", "0.0", ""].map(|end| format!("{job}{end}"));
        let mut processes = names.each_ref().map(|name| process_of(name));
        end_former_agents(&job, 2).unwrap();
        let ended = processes.each_mut().map(|it| it.try_wait().unwrap().is_some());
        for process in &mut processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert_eq!(ended, [true, true, false, false, false, false]);
    }
}
