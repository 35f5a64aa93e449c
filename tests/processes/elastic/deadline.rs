//! `grow`, `shrink` and `evict` end by their deadline, though a joiner or a member is stopped
//! meanwhile.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error, ReduceOp};

use super::rank::{ARGUMENT, JOINING};
use super::world::World;
use harness::process::patience;

/// The prefix of a line that rank 0 prints once a joiner waits in the queue, and of the line with
/// which each member ends.
const QUEUED: &str = "queued";
const GROWN: &str = "grown ";
const BODY: &str = "elastic::deadline::rank";
const MEMBERS: usize = 3;

const DEADLINE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_secs(1);
/// The documented time after a deadline, and the time for which a busy machine may hold a rank up.
const BOUND: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(3);

/// A process: a member that grows once the test has made the file, or a joiner.
pub(crate) fn rank() {
    let Ok(argument) = std::env::var(ARGUMENT) else { return };
    let (_, told) = argument.split_once(' ').unwrap();
    if std::env::var_os("RINGREDUCE_JOIN").is_some() {
        eprintln!("{JOINING}");
    }
    let mut comm = Communicator::from_env().unwrap();
    if comm.rank() == 0 {
        while comm.queued_joiners().unwrap() == 0 {}
        eprintln!("{QUEUED}");
    }
    let mut is_told = [0_u32];
    while is_told[0] == 0 {
        is_told = [u32::from(std::path::Path::new(told).exists())];
        comm.all_reduce(&mut is_told, ReduceOp::Min).unwrap();
    }
    let began = Instant::now();
    let grown = comm.grow(DEADLINE);
    assert!(began.elapsed() < DEADLINE + BOUND + SLACK, "{:.1?}", began.elapsed());
    match grown {
        Ok(larger) => {
            let mut larger = larger.unwrap();
            larger.barrier().unwrap();
            eprintln!("{GROWN}to {} in epoch {}", larger.size(), larger.epoch());
        }
        Err(Error::NotAll { missing, .. }) => {
            let began = Instant::now();
            let error = comm.shrink(SHORT).unwrap_err();
            assert!(began.elapsed() < SHORT + BOUND + SLACK, "{:.1?}", began.elapsed());
            let Error::NotAll { missing: later, .. } = error else { panic!("{error}") };
            assert_eq!(later, missing);
            let began = Instant::now();
            let mut rest = comm.evict(DEADLINE).unwrap();
            assert!(began.elapsed() < DEADLINE + BOUND + SLACK, "{:.1?}", began.elapsed());
            rest.barrier().unwrap();
            eprintln!("{GROWN}to {}, without {missing:?}", rest.size());
        }
        Err(other) => panic!("{other}"),
    }
}

/// A world of members that wait for the test's word, and of a joiner that is stopped in the queue.
fn with_stopped_joiner(transport: &'static str) -> World {
    let mut world = World::of(BODY, MEMBERS, transport);
    world.restart(MEMBERS);
    world.line_of(0, QUEUED);
    world.stop(MEMBERS);
    world
}

#[test]
fn members_go_on_before_the_deadline_without_a_joiner_that_is_stopped() {
    for transport in ["shm", "tcp"] {
        let mut world = with_stopped_joiner(transport);
        world.tell();
        for member in 0..MEMBERS {
            let line = world.line_of(member, GROWN);
            assert!(line.starts_with(&format!("{GROWN}to {MEMBERS} in epoch ")), "{line}");
        }
    }
}

/// Waits until a process has a thread that connects.
fn connects(pid: u32) {
    let until = Instant::now() + patience();
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    // The system cuts names of threads to 15 bytes.
    while !tasks().map(name).any(|name| name.starts_with("ringreduce-conn")) {
        assert!(Instant::now() < until, "process {pid} does not connect");
    }
}

#[test]
fn a_member_that_is_stopped_while_a_joiner_connects_is_named_by_the_deadline() {
    if !harness::share::makes_test(3) {
        return;
    }
    for transport in ["shm", "tcp"] {
        let mut world = with_stopped_joiner(transport);
        world.tell();
        let stopped = MEMBERS - 1;
        connects(world.pid(stopped));
        world.stop(stopped);
        for member in 0..stopped {
            let line = world.line_of(member, GROWN);
            assert_eq!(line, format!("{GROWN}to {stopped}, without [{stopped}]"), "{transport}");
        }
    }
}
