//! The threads of a rank that keeps many communicators: a constant number once its calls are over.

use std::time::{Duration, Instant};

use harness::processes::{run, this_rank};
use ringreduce::{Communicator, Pending, ReduceOp, Result};

use super::rank::LONG;

/// Communicators kept at once.
const KEPT: usize = 200;
const RANKS: usize = 4;
/// The longest time that threads without work may take to end.
const ENDING: Duration = Duration::from_secs(30);

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

/// Starts a sum on each communicator, in an order that differs from rank to rank: one thread for
/// all of them would wait for ever.
fn started_calls(kept: &mut [Communicator], rank: usize) -> Result<()> {
    let mut order: Vec<usize> = (0..kept.len()).collect();
    if rank % 2 == 1 {
        order.reverse();
    }
    order.rotate_left(rank * kept.len() / RANKS / 2);
    let mut start = |&at: &usize| {
        (at, kept[at].nonblocking().all_reduce(vec![(at + rank) as u32; 10], ReduceOp::Sum))
    };
    let started: Vec<(usize, Pending<Vec<u32>>)> = order.iter().map(&mut start).collect();
    for (at, sum) in started {
        let expected = (0..RANKS).map(|other| (at + other) as u32).sum();
        assert_eq!(sum.wait()?, [expected; 10]);
    }
    Ok(())
}

/// A process: one rank.
pub(crate) fn rank() {
    nix::unistd::alarm::set(LONG);
    let Some(mut world) = this_rank() else { return };
    let rank = world.rank();
    let mut kept = Vec::new();
    (0..KEPT).for_each(|_| kept.extend(world.split(Some(0), rank as i64).unwrap()));
    // A second round finds that the threads of the first one have ended.
    for _ in 0..2 {
        started_calls(&mut kept, rank).unwrap();
        let until = Instant::now() + ENDING;
        loop {
            let named: Vec<_> =
                threads().into_iter().filter(|it| it.starts_with("ringreduce-wor")).collect();
            if named.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{named:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    world.barrier().unwrap();
}

#[test]
fn kept_communicators_have_no_thread_each() {
    run("limits::threads::rank", RANKS, "shm");
}
