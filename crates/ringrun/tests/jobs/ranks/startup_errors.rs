//! Ranks that can't start: each exits with status 1 and an error that names the cause.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Ended, PATIENCE, PROMPT, Process, all_end, ringbench};
use crate::job::Job;

fn bench(mut command: Command) -> Process {
    command.args(["all_reduce", "-b", "8", "-e", "8", "-n", "1"]);
    Process::start(command)
}

fn says(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.code, 1, "{ended:?}");
    assert_eq!(ended.out, "", "{ended:?}");
    for part in parts {
        assert!(ended.err.contains(part), "{part} is not in {:?}", ended.err);
    }
}

/// The table of `laws::environment` has all variables.
#[test]
fn malformed_variables_are_named() {
    for (vars, parts) in [
        ("RANK=2 SIZE=2", ["rank=\"2\"", "below the world size, 2"]),
        ("RANK=0 SIZE=2 STORE=fd:77", ["fd:77", "store"]),
        ("TIMEOUT=never", ["RINGREDUCE_TIMEOUT", "\"never\""]),
        ("RANK=0 SIZE=2 RECORD_FD=77", ["RINGREDUCE_RECORD_FD", "which that rank has started"]),
        ("RANK=0 SIZE=2 SECRET_FD=77", ["RINGREDUCE_SECRET_FD", "RINGREDUCE_LAUNCHER=none"]),
    ] {
        let job = Job::new();
        let mut command = job.rank(&ringbench(), 0, 2, &job.unix());
        for name in ["RANK", "SIZE"] {
            command.env_remove(format!("RINGREDUCE_{name}"));
        }
        for (name, value) in vars.split(' ').filter_map(|var| var.split_once('=')) {
            command.env(format!("RINGREDUCE_{name}"), value);
        }
        says(&all_end(vec![bench(command)], PATIENCE)[0], &parts);
        job.left_nothing();
    }
}

/// A program that a rank has started has the rank's variables, but not its descriptors.
#[test]
fn a_program_of_a_rank_can_be_a_world_of_its_own() {
    let job = Job::new();
    let mut command = job.rank(&ringbench(), 1, 2, "fd:77");
    for name in ["RECORD", "SECRET", "ROLL"] {
        command.env(format!("RINGREDUCE_{name}_FD"), "77");
    }
    command.env("RINGREDUCE_LAUNCHER", "none");
    let ended = all_end(vec![bench(command)], PATIENCE).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    job.left_nothing();
}

#[test]
fn unknown_variables_only_warn() {
    for ranks in [&["--ranks", "1"][..], &["--ranks", "2", "--threads"]] {
        let job = Job::new();
        let mut command = job.command(&ringbench());
        command.env("RINGREDUCE_TRANSPROT", "tcp").args(ranks);
        let ended = all_end(vec![bench(command)], PATIENCE).remove(0);
        assert_eq!(ended.code, 0, "{ended:?}");
        let warnings = ended.err.lines().filter(|line| line.contains("RINGREDUCE_TRANSPROT"));
        let warnings: Vec<_> = warnings.collect();
        assert_eq!(warnings.len(), 1, "{ended:?}");
        assert!(warnings[0].contains("did you mean RINGREDUCE_TRANSPORT?"), "{warnings:?}");
        job.left_nothing();
    }
}

/// One rank alone at this store, with a timeout of two seconds.
fn alone(job: &Job, rank: usize, store: &str) -> Ended {
    let mut command = job.rank(&ringbench(), rank, 2, store);
    command.env("RINGREDUCE_TIMEOUT", "2");
    all_end(vec![bench(command)], Duration::from_secs(2) + PROMPT).remove(0)
}

#[test]
fn unusable_stores_are_named() {
    if !::harness::share::makes_test(3) {
        return;
    }
    let job = Job::new();
    // At these stores no process listens.
    for store in [job.tcp(), job.unix()] {
        says(&alone(&job, 1, &store), &[&store, "ank 0 listens there"]);
    }
    says(&alone(&job, 1, "no-such-host.invalid:4000"), &["no-such-host.invalid:4000"]);
    // This store listens and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = mute.local_addr().unwrap().to_string();
    says(&alone(&job, 1, &store), &[&store, "silent"]);
    // For rank 0 the port is in use.
    says(&alone(&job, 0, &store), &[&store, "choose another port"]);
    job.left_nothing();
}

#[test]
fn ranks_that_never_started_are_listed_by_all_others() {
    if !::harness::share::makes_test(3) {
        return;
    }
    let job = Job::new();
    for store in [job.unix(), job.tcp()] {
        let start = |rank| {
            let mut command = job.rank(&ringbench(), rank, 5, &store);
            // In six seconds all three have started, on any machine.
            command.env("RINGREDUCE_TIMEOUT", "6");
            bench(command)
        };
        let ended = all_end([0, 2, 3].map(start).into(), PATIENCE);
        for (rank, ended) in [0, 2, 3].iter().zip(&ended) {
            says(ended, &[&format!("rank {rank}: after "), "2 of 5 ranks", "[1, 4]"]);
        }
    }
    job.left_nothing();
}

#[test]
fn two_processes_with_one_rank_are_both_named() {
    let job = Job::new();
    for store in [job.unix(), job.tcp()] {
        let all = [0, 1, 1].map(|rank| bench(job.rank(&ringbench(), rank, 3, &store)));
        let pids = [1, 2].map(|index: usize| format!("pid {}", all[index].pid()));
        for ended in all_end(all.into(), PROMPT) {
            says(&ended, &["rank 1 was claimed twice", &pids[0], &pids[1]]);
        }
    }
    job.left_nothing();
}
