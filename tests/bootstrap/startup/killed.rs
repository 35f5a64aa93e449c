//! A rank stands still while the ranks start, before any of its calls of the system that others
//! can see: the others say that they wait for it. Then it is killed: they end at once, and their
//! errors name it.
//!
//! A tracer holds the rank when all but the last one have come, so that none of these calls is
//! missed, and then the last one starts.

use std::collections::BTreeMap;
use std::process::Stdio;

use harness::hosts::Hosts;
use harness::processes::Process;
use nix::libc::{self, c_long};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use ringreduce::{Communicator, ReduceOp};

use super::*;

/// Tells a tracer before which of the calls its rank stands still, from 1.
const STANDS_AT: &str = "TEST_STANDS_AT";
/// The calls of the system after which others may see another state of a process.
const VISIBLE: [c_long; 14] = [
    libc::SYS_accept4,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_ftruncate,
    libc::SYS_listen,
    libc::SYS_memfd_create,
    libc::SYS_munmap,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_write,
    libc::SYS_writev,
];

/// A process: a rank that starts and makes its first call, before which the ranks measure.
pub(crate) fn rank() {
    let work = Communicator::from_env().and_then(|mut comm| {
        comm.all_reduce(&mut [1.0_f32; 40_000], ReduceOp::Sum)?;
        Ok(comm)
    });
    match work {
        Ok(comm) => eprintln!("met {}", comm.size()),
        Err(error) => eprintln!("failed: {error}"),
    }
}

/// A process: starts a rank, holds it when all but the last one have come, and again before one of
/// its calls, and then kills it. It reads a line before it goes on.
#[allow(clippy::zombie_processes, reason = "this process ends with it")]
pub(crate) fn tracer() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (stands_at, size): (usize, usize) =
        (variable(STANDS_AT).parse().unwrap(), variable("RINGREDUCE_SIZE").parse().unwrap());
    let mut child = harness::process("startup::killed::rank").spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let store = variable("RINGREDUCE_STORE").parse().unwrap();
    (0..size - 1).for_each(|rank| waiting::has_come(&store, rank));
    let mut held = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = thread.unwrap().file_name().into_string().unwrap().parse().unwrap();
        let thread = Pid::from_raw(thread);
        ptrace::seize(thread, options()).unwrap();
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        held.push(thread);
    }
    eprintln!("holds {pid}");
    let go_on = || std::io::stdin().read_line(&mut String::new()).unwrap();
    go_on();
    held.into_iter().for_each(resume);
    match run_until(pid, stands_at) {
        Ok(call) => eprintln!("stands at {call}"),
        Err(count) => eprintln!("ended after {count}"),
    }
    go_on();
    child.kill().unwrap();
}

fn options() -> Options {
    Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL
}

fn resume(thread: Pid) {
    // The thread may have ended since.
    let _ = ptrace::syscall(thread, None);
}

/// Runs the traced process until its call of this number, and gives that call; the number of its
/// calls if it ended before.
fn run_until(pid: Pid, stands_at: usize) -> Result<String, usize> {
    let mut count = 0;
    loop {
        let thread = match waitpid(None, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(thread) => {
                let call = entered_call(thread);
                count += usize::from(call.is_some());
                if let Some(call) = call.filter(|_| count == stands_at) {
                    return Ok(call);
                }
                thread
            }
            WaitStatus::Stopped(thread, signal) => {
                let _ = ptrace::syscall(thread, signal);
                continue;
            }
            WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, ..) if ended == pid => {
                return Err(count);
            }
            other => match other.pid() {
                Some(thread) => thread,
                None => continue,
            },
        };
        resume(thread);
    }
}

/// The call that a thread is about to make, if others can see it.
fn entered_call(thread: Pid) -> Option<String> {
    let info = ptrace::syscall_info(thread).ok()?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let number: c_long = text.split(' ').next()?.parse().ok()?;
    VISIBLE.contains(&number).then(|| format!("call {number}"))
}

/// Where the ranks of one world run.
struct Place<'a> {
    name: &'static str,
    hosts: Option<&'a Hosts>,
    /// The store of a world.
    store: fn(Option<&Hosts>) -> String,
    transport: &'static str,
    size: usize,
}

impl Place<'_> {
    fn start(&self, rank: usize, body: &str, store: &str, stands_at: usize) -> Process {
        let mut command = harness::process(body);
        command.env("RINGREDUCE_RANK", rank.to_string());
        command.env("RINGREDUCE_SIZE", self.size.to_string()).env("RINGREDUCE_STORE", store);
        command.env("RINGREDUCE_TIMEOUT", "60").env("RINGREDUCE_CACHE", "off");
        command.env("RINGREDUCE_TRANSPORT", self.transport).env(STANDS_AT, stands_at.to_string());
        let mut command = match self.hosts {
            Some(hosts) => hosts.0[2 * rank / self.size].on(&command),
            None => command,
        };
        command.stdin(Stdio::piped());
        Process::start(command)
    }

    /// Kills `victim` before this call; false if it makes fewer. The others have first told that
    /// they wait, if `is_patient`.
    fn kills(&self, victim: usize, stands_at: usize, is_patient: bool) -> bool {
        let store = (self.store)(self.hosts);
        let rank = |rank| self.start(rank, "startup::killed::rank", &store, 0);
        let last = self.size - 1;
        let mut others: BTreeMap<_, _> =
            (0..last).filter(|&other| other != victim).map(|other| (other, rank(other))).collect();
        let mut tracer = self.start(victim, "startup::killed::tracer", &store, stands_at);
        let pid = tracer.says("holds ").unwrap().to_string();
        others.insert(last, rank(last));
        tracer.write_stdin(b"\n");
        let stands = stands(&mut tracer);
        let context = format!("{}, rank {victim}, call {stands_at}: {stands}", self.name);
        let is_killed = stands.contains("stands at ");
        if is_patient && is_killed {
            others.values_mut().for_each(|other| waits(other, victim, &context));
        }
        tracer.write_stdin(b"\n");
        let until = std::time::Instant::now() + LONG / 2;
        for (rank, mut process) in others {
            // The last rank may find no store any more, and can't know that there was one. A rank
            // that has just come may not know the process of rank 0 yet.
            let is_late = (victim, rank) == (0, last);
            let is_end = |line: &String| {
                ["met ", "failed: "].iter().any(|start| line.starts_with(start))
                    || is_late && line.contains("has waited") && line.contains("refused")
            };
            while !process.lines.iter().any(is_end) {
                let ended = process.next_line(until);
                assert!(ended.is_ok(), "{context}: rank {rank}: {:#?}", process.lines);
            }
            let text = process.lines.join("\n");
            let names = [format!("rank {victim} "), format!("pid {pid}")];
            let is_named = names.iter().all(|name| text.contains(name))
                || victim == 0 && text.contains("closed the connection: rank 0");
            let has_failed = text.contains("failed: ");
            assert!(!has_failed || is_killed && is_named, "{context}: rank {rank}: {text}");
        }
        is_killed
    }

    /// Kills ranks 0 and 1 before a share of their calls: one in `every`.
    fn kills_at_each_stage(&self, test: &str, every: u64) {
        let _concurrent = concurrent();
        if let Err(reason) = can_trace() {
            return harness::skip(&format!("startup::killed::{test}"), &reason);
        }
        let every = harness::share::count(every, every.min(7));
        for victim in [0, 1] {
            for nth in 0.. {
                let stands_at = harness::share::seed() % every + 1 + every * nth;
                if !self.kills(victim, stands_at as usize, nth % 8 == 3) {
                    break;
                }
            }
        }
    }
}

/// The line by which a tracer says how far its rank has come. The rank writes to the same output,
/// and may stand still within a line.
fn stands(tracer: &mut Process) -> String {
    let until = std::time::Instant::now() + LONG;
    while let Ok(line) = tracer.next_line(until) {
        if ["stands at ", "ended after "].iter().any(|text| line.contains(text)) {
            return line.to_owned();
        }
    }
    panic!("the tracer says nothing: {:#?}", tracer.lines);
}

/// The error says why no process may trace another one here.
fn can_trace() -> Result<(), String> {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let seized = ptrace::seize(Pid::from_raw(child.id() as i32), Options::PTRACE_O_EXITKILL);
    child.kill().unwrap();
    child.wait().unwrap();
    seized.map_err(|errno| format!("no process may be traced: {errno}"))
}

/// Waits until a rank has met the others, or has said that it waits for `victim`, or for one that
/// may wait for another itself.
fn waits(process: &mut Process, victim: usize, context: &str) {
    let until = std::time::Instant::now() + waiting::FIRST_NOTICE;
    let names = [format!("rank {victim}"), "ranks ".into(), "another rank itself".into()];
    let is_it = |line: &str| {
        line.starts_with("met ")
            || line.contains("waited") && names.iter().any(|name| line.contains(name))
    };
    while let Ok(line) = process.next_line(until) {
        if is_it(line) {
            return;
        }
    }
    panic!("{context}: no notice: {:#?}", process.lines);
}

#[test]
fn a_rank_that_is_killed_while_ranks_share_memory_is_named() {
    let store = |_: Option<&Hosts>| unix_store().to_string();
    let place = Place { name: "memory", hosts: None, store, transport: "auto", size: 3 };
    place.kills_at_each_stage("a_rank_that_is_killed_while_ranks_share_memory_is_named", 37);
}

#[test]
fn a_rank_that_is_killed_while_ranks_connect_over_tcp_is_named() {
    let store = |_: Option<&Hosts>| tcp_store().to_string();
    let place = Place { name: "TCP", hosts: None, store, transport: "tcp", size: 3 };
    place.kills_at_each_stage("a_rank_that_is_killed_while_ranks_connect_over_tcp_is_named", 251);
}

#[test]
fn a_rank_that_is_killed_while_two_hosts_connect_is_named() {
    let test = "a_rank_that_is_killed_while_two_hosts_connect_is_named";
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return harness::skip(&format!("startup::killed::{test}"), &reason),
    };
    let store = |hosts: Option<&Hosts>| hosts.unwrap().store();
    let hosts = Some(&hosts);
    let place = Place { name: "two hosts", hosts, store, transport: "auto", size: 4 };
    place.kills_at_each_stage(test, 251);
}
