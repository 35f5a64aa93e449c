//! Checks of system calls that old kernels lack and sandboxes refuse, and of /proc.

use std::io;
use std::path::Path;

use ringreduce::memory::{Src, is_readable_by_peers};
use ringreduce::{Algorithm, trace};

use super::Check;
use super::settings::Settings;
use crate::launch::{procfs, sys};
use crate::topo::sysfs::text;

pub(super) fn checks(settings: &Settings) -> Vec<Check> {
    let pidfd = sys::pidfd_open(std::process::id()).map(drop);
    vec![
        shared_memory(trace::create().map(drop).map_err(|error| error.to_string())),
        peer_memory(&PeerMemory {
            is_allowed: is_readable_by_peers(Src::from(&[1_u8, 2][..])),
            ptrace_scope: text(Path::new("/proc/sys/kernel/yama/ptrace_scope")),
            may_trace: text(Path::new("/proc/self/status")).map(|status| may_trace(&status)),
            is_asked_for: settings.algorithm() == Some(Algorithm::SingleCopy),
        }),
        ends_of_processes(pidfd),
        processes_in_proc(procfs::check()),
    ]
}

/// The memory of links and records is a file without a name (memfd_create), with pages.
fn shared_memory(made: Result<(), String>) -> Check {
    const NAME: &str = "shared memory";
    match made {
        Ok(()) => Check::ok(NAME, "memfd_create works; /dev/shm is not used"),
        Err(error) => {
            let remedy = "Let the sandbox (seccomp) allow memfd_create and \
                fallocate, and look at the limits of memory and file size above.";
            Check::problem(NAME, &error, remedy)
        }
    }
}

/// The facts that decide whether a rank can read the memory of another one by its address.
struct PeerMemory {
    /// The system lets a process make the call, on itself.
    is_allowed: bool,
    /// The setting of the security module Yama, if the kernel has that.
    ptrace_scope: Option<String>,
    /// This process has CAP_SYS_PTRACE; `None` if /proc does not tell.
    may_trace: Option<bool>,
    /// `RINGREDUCE_ALGO` asks for the algorithm that needs it.
    is_asked_for: bool,
}

/// Ranks that are processes use it for `single_copy` alone.
fn peer_memory(facts: &PeerMemory) -> Check {
    const NAME: &str = "peer memory";
    let scope = facts.ptrace_scope.as_deref();
    let (found, remedy) = match (facts.is_allowed, scope) {
        (false, _) => (
            "process_vm_readv is refused, so processes cannot make calls by single_copy",
            "Let the sandbox (seccomp) allow process_vm_readv, or do without single_copy.",
        ),
        (true, _) if facts.may_trace.is_none() => {
            return Check::unknown(NAME, "process_vm_readv works; /proc does not tell on whom");
        }
        (true, Some("1" | "2")) if facts.may_trace == Some(false) => (
            "ranks may not read each other's memory (kernel.yama.ptrace_scope), so processes \
             cannot make calls by single_copy",
            "As root, run `sysctl kernel.yama.ptrace_scope=0`, or do without single_copy.",
        ),
        (true, Some("3")) => (
            "no process may read another one's memory (kernel.yama.ptrace_scope is 3), so \
             processes cannot make calls by single_copy",
            "Start the machine with another ptrace_scope, or do without single_copy.",
        ),
        (true, _) => return Check::ok(NAME, "process_vm_readv works"),
    };
    if facts.is_asked_for {
        return Check::problem(NAME, &format!("{found}, and RINGREDUCE_ALGO asks for it"), remedy);
    }
    Check::note(NAME, found, remedy)
}

/// Whether a process with such a /proc/self/status has CAP_SYS_PTRACE.
fn may_trace(status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << CAP_SYS_PTRACE != 0)
}

fn ends_of_processes(opened: io::Result<()>) -> Check {
    const NAME: &str = "ends of ranks";
    match opened {
        Ok(()) => Check::ok(NAME, "pidfd_open works"),
        Err(error) => {
            let found = format!(
                "pidfd_open is refused ({error}): ends of ranks are noticed later, and device \
                 memory that a lost rank had open stays allocated"
            );
            let remedy = "Let the sandbox (seccomp) allow pidfd_open, or take Linux 5.3 or later.";
            Check::note(NAME, &found, remedy)
        }
    }
}

/// ringrun finds the processes of a job in /proc.
fn processes_in_proc(checked: io::Result<()>) -> Check {
    const NAME: &str = "/proc";
    match checked {
        Ok(()) => Check::ok(NAME, "shows this PID namespace"),
        Err(error) => {
            let remedy = "Mount /proc of this namespace; ringrun starts no job without it.";
            Check::problem(NAME, &error.to_string(), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State::{Note, Ok, Problem};
    use super::*;

    #[test]
    fn reads_of_peers_depend_on_sandbox_scope_and_privilege() {
        let state = |is_allowed, scope: Option<&str>, may_trace, is_asked_for| {
            let (ptrace_scope, may_trace) = (scope.map(str::to_owned), Some(may_trace));
            peer_memory(&PeerMemory { is_allowed, ptrace_scope, may_trace, is_asked_for }).state
        };
        assert_eq!(state(true, None, false, true), Ok);
        assert_eq!(state(true, Some("0"), false, true), Ok);
        assert_eq!(state(true, Some("1"), false, false), Note);
        assert_eq!(state(true, Some("1"), false, true), Problem);
        assert_eq!(state(true, Some("1"), true, true), Ok);
        assert_eq!(state(true, Some("3"), true, true), Problem);
        assert_eq!(state(false, None, true, false), Note);
    }

    #[test]
    fn a_strange_status_gives_no_privilege() {
        for status in ["", "CapEff:", "CapEff:\tzz\n", "CapEff:\t0000000000000000\n", "\0\u{fffd}"]
        {
            assert!(!may_trace(status), "{status:?}");
        }
        assert!(may_trace("Name:\ta\nCapEff:\t000001ffffffffff\n"));
    }

    #[test]
    fn refused_calls_are_problems_where_no_job_runs_without_them() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(shared_memory(Err("refused".into())).state, Problem);
        assert_eq!(ends_of_processes(refused()).state, Note);
        assert_eq!(processes_in_proc(refused()).state, Problem);
    }
}
