//! The threads of a rank that keeps many communicators: a constant number once its calls are over.

use std::time::{Duration, Instant};

use harness::processes::{run, this_rank};
use ringreduce::{Communicator, Pending, ReduceOp, Result};

use super::rank::LONG;

/// Communicators kept at once.
const KEPT: usize = 200;
const RANKS: usize = 4;
/// Messages on each communicator: more than a link takes whose receiver does nothing.
const MESSAGES: usize = 40;
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

/// Sends more messages on each communicator than its links hold, before the receiver calls.
fn messages(world: &mut Communicator, kept: &[Communicator]) -> Result<()> {
    let (rank, last) = (world.rank(), MESSAGES as u32);
    let (next, previous) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
    let handles: Vec<_> = kept.iter().map(Communicator::messenger).collect();
    world.barrier()?;
    for (at, messenger) in handles.iter().enumerate() {
        (0..MESSAGES)
            .try_for_each(|number| messenger.send(&[at as u32, number as u32], next, 3))?;
    }
    world.barrier()?;
    for (at, messenger) in handles.iter().enumerate() {
        let mut received = [0_u32; 2];
        for number in 0..MESSAGES {
            messenger.recv(&mut received, previous, 3)?;
            assert_eq!(received, [at as u32, number as u32]);
        }
        let pending = messenger.irecv(vec![0_u32], previous, 4)?;
        messenger.isend(vec![last], next, 4)?.wait()?;
        assert_eq!(pending.wait()?.0, [last]);
    }
    Ok(())
}

/// Waits until no communicator has a thread; one of the process looks after all messages.
fn threads_end() {
    let until = Instant::now() + ENDING;
    loop {
        let threads = threads();
        let of = |kind: &str| threads.iter().filter(|name| name.starts_with(kind)).count();
        if of("ringreduce-wor") == 0 && of("ringreduce-mes") <= 1 {
            return;
        }
        assert!(Instant::now() < until, "{threads:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    nix::unistd::alarm::set(LONG);
    let Some(mut world) = this_rank() else { return };
    let rank = world.rank();
    let mut kept = Vec::new();
    (0..KEPT).for_each(|_| kept.extend(world.split(Some(0), rank as i64).unwrap()));
    // The second round finds that the threads of the first one have ended.
    for _ in 0..2 {
        started_calls(&mut kept, rank).unwrap();
        messages(&mut world, &kept).unwrap();
        threads_end();
        world.barrier().unwrap();
    }
    drop(kept);
    world.barrier().unwrap();
}

#[test]
fn kept_communicators_have_no_thread_each() {
    if !harness::share::makes_test(3) {
        return;
    }
    run("limits::threads::rank", RANKS, "shm");
}
