//! A rank is killed in the middle of calls: all others end soon, each naming the rank it lost.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::failure_report::{Report, all_lead_to};
use crate::harness::{PROMPT, Process, all_end, all_up, send};
use crate::job::Job;

/// Kills one of `size` ranks, and checks the errors of the others.
fn kill_one(size: usize, victim: usize, transport: &str, body: &str, how: Signal) {
    let job = Job::new();
    let mut ranks = job.world(size, transport, &format!("{body} 1000000000"));
    all_up(&mut ranks);
    let pids: Vec<_> = ranks.iter().map(Process::pid).collect();
    let killed = ranks.remove(victim);
    killed.signal(how);
    let reports: Vec<_> = all_end(ranks, PROMPT).iter().map(Report::of).collect();
    assert_eq!(all_end(vec![killed], PROMPT)[0].code, -(how as i32));
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let survivors: Vec<_> = (0..size).filter(|&rank| rank != victim).collect();
    assert_eq!(reports.iter().map(|report| report.rank).collect::<Vec<_>>(), survivors);
    for report in &reports {
        assert!(report.what.starts_with("lost rank "), "{report:?}");
        assert_eq!((report.call.as_str(), &report.host), ("all_reduce", &host));
        assert!(report.sequence > 20, "{report:?}");
        assert_eq!((&report.peer_host, report.peer_pid), (&host, pids[report.peer]));
        assert_ne!(report.peer, report.rank, "{report:?}");
    }
    // A rank may first hear that another one, which waited for the victim, has gone.
    assert!(reports.iter().any(|report| report.peer == victim), "{reports:#?}");
    all_lead_to(&reports, &[victim]);
    job.left_nothing();
}

fn kill_each(transport: &str, kinds: &[&str]) {
    for (size, victim) in [(2, 1), (2, 0), (4, 2), (4, 0)] {
        for body in kinds.iter().flat_map(|kind| [2, 1 << 19].map(|n| format!("{kind} {n}"))) {
            kill_one(size, victim, transport, &body, Signal::SIGKILL);
        }
    }
}

#[test]
fn over_shared_memory() {
    kill_each("shm", &["calls"]);
}

#[test]
fn over_tcp() {
    kill_each("tcp", &["calls"]);
}

#[test]
fn in_registered_memory() {
    kill_each("shm", &["alloc", "register"]);
}

#[test]
fn by_a_signal_that_may_be_caught() {
    for transport in ["shm", "tcp"] {
        kill_one(3, 1, transport, "calls 1000", Signal::SIGTERM);
    }
}

#[test]
fn ringrun_names_the_killed_rank() {
    for (size, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let job = Job::new();
        // The other ranks stay after their error. One that exits at once, when the victim's socket
        // closes, may be the first to have failed, before the system tells ringrun of the death.
        let mut command = job.launch(&format!("-n {size}"), "stays 1000 1000000000");
        command.env("RINGREDUCE_TRANSPORT", transport);
        let mut running = Process::start(command);
        let up: Vec<[u32; 2]> = (0..size).map(|_| running.numbers("up ")).collect();
        let victim = up.iter().find(|[rank, _]| *rank == 1).unwrap()[1];
        send(victim, Signal::SIGKILL);
        // ringrun terminates the other ranks, and would kill them 5 s later.
        let ended = all_end(vec![running], PROMPT + Duration::from_secs(5)).remove(0);
        assert_eq!(ended.code, 137, "{ended:?}");
        let first = ended.err.lines().find(|line| line.starts_with("ringrun: "));
        let first = first.unwrap_or_default();
        for part in ["rank 1 ", &format!("pid {victim}"), "SIGKILL"] {
            assert!(first.contains(part), "{part} is not in {first}\n{}", ended.err);
        }
        job.left_nothing();
    }
}
