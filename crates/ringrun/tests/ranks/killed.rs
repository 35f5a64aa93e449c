//! A rank is killed in the middle of calls: all others end soon, each naming the one it lost.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{AS_RANK, BODY, Job, PROMPT, Process, RINGRUN, all_end, myself};
use crate::report::{Report, all_lead_to};

/// One among `size` ranks goes; what the others say.
fn one_goes(size: usize, victim: usize, transport: &str, count: usize, how: Signal) {
    let job = Job::new();
    let mut ranks = job.world(size, transport, &format!("calls {count} 1000000000"));
    for rank in &mut ranks {
        rank.line("up");
    }
    let pids: Vec<_> = ranks.iter().map(Process::pid).collect();
    let gone = ranks.remove(victim);
    gone.signal(how);
    let reports: Vec<_> = all_end(ranks, PROMPT).iter().map(Report::of).collect();
    assert_eq!(all_end(vec![gone], PROMPT)[0].code, -(how as i32));
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
    // Others may hear first that one who waited for it has gone.
    assert!(reports.iter().any(|report| report.peer == victim), "{reports:#?}");
    all_lead_to(&reports, &[victim]);
    job.left_nothing();
}

#[test]
fn over_shared_memory() {
    for (size, victim) in [(2, 1), (2, 0), (4, 2), (4, 0)] {
        for count in [2, 1 << 19] {
            one_goes(size, victim, "shm", count, Signal::SIGKILL);
        }
    }
}

#[test]
fn over_tcp() {
    for (size, victim) in [(2, 1), (2, 0), (4, 2), (4, 0)] {
        for count in [2, 1 << 19] {
            one_goes(size, victim, "tcp", count, Signal::SIGKILL);
        }
    }
}

#[test]
fn by_a_signal_that_may_be_caught() {
    for transport in ["shm", "tcp"] {
        one_goes(3, 1, transport, 1000, Signal::SIGTERM);
    }
}

#[test]
fn under_ringrun_it_is_the_one_named() {
    for (size, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let job = Job::new();
        let mut command = job.command(RINGRUN);
        command.args(["-n", &size.to_string(), &myself()]).args(AS_RANK);
        // The others stay: else one that hears of the death from the closing of a socket may have
        // ended before the system has told ringrun, and is the first to have failed.
        command.env(BODY, "stays 1000 1000000000").env("RINGREDUCE_TRANSPORT", transport);
        let mut running = Process::start(command);
        let up: Vec<_> = (0..size).map(|_| running.line("up ")).collect();
        let victim = up.iter().find_map(|line| line.strip_prefix("up 1 ")).unwrap();
        let victim: i32 = victim.trim().parse().unwrap();
        kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
        // Ranks that do not go by themselves would be terminated, and killed 5 s later.
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
