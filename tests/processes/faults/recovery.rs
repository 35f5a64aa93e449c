//! Survivors know the state of the recovery: the members, and the calls that each has completed.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank};

/// The prefix of the line by which a rank reports its state.
const REPORT: &str = "from ";
/// Tells a rank which one is absent from a call.
const VICTIM: &str = "TEST_RECOVERY_VICTIM";
const LONG: Duration = Duration::from_secs(20);

/// Compares the completed calls of all members in `recovery` with their own counts.
fn check_recovery(comm: &mut Communicator, calls: u64) -> Result<(), Error> {
    let recovery = comm.recovery().unwrap().clone();
    assert_eq!(recovery.epoch, comm.epoch());
    let mut all = vec![0; comm.size()];
    comm.all_gather(&[calls], &mut all)?;
    assert_eq!(recovery.calls, all);
    Ok(())
}

/// A process: a rank that shrinks after each lost peer until it is alone.
pub(crate) fn survivor() {
    let Some(mut comm) = this_rank() else { return };
    let me = comm.rank();
    let mut members: Vec<usize> = (0..comm.size()).collect();
    assert!(comm.recovery().is_none());
    let mut calls = 0_u64;
    while comm.size() > 1 {
        let mut ones = vec![1_u32; if calls.is_multiple_of(2) { 3 } else { 20_000 }];
        let done = comm.all_reduce(&mut ones, ReduceOp::Sum).map(|()| {
            assert!(ones.iter().all(|&it| it as usize == comm.size()));
            calls += 1;
            if calls == 10 && members.len() == 4 {
                Process::works();
            }
        });
        let mut lost = done.is_err();
        while lost {
            comm = comm.shrink(LONG).unwrap();
            let recovery = comm.recovery().unwrap();
            members = recovery.members.iter().map(|&rank| members[rank]).collect();
            assert_eq!((members.len(), members[comm.rank()]), (comm.size(), me));
            lost = check_recovery(&mut comm, calls).is_err();
            // The gathered counts were a call too.
            calls = u64::from(!lost);
        }
    }
    eprintln!("{REPORT}{members:?}");
}

#[test]
fn survivors_of_kills_at_random_points_know_the_calls_of_all() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(0x5ead);
    for _ in 0..4 {
        let mut world = World::start("faults::recovery::survivor", 4, "shm", |_| Vec::new());
        world.is_at_work();
        let last = rng.random_range(0..4);
        for victim in (0..4).filter(|&rank| rank != last) {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..30_000)));
            world.0[victim].kill();
        }
        let lines = world.0.remove(last).succeeds("the last rank");
        assert!(lines.contains(&format!("{REPORT}[{last}]")), "{last}: {lines}");
        world.0.into_iter().for_each(|one| drop(one.end()));
    }
}

/// A process: one of three ranks is absent from a call whose root need not wait for it.
pub(crate) fn ahead() {
    let Some(mut comm) = this_rank() else { return };
    let (me, victim) = (comm.rank(), std::env::var(VICTIM).unwrap().parse().unwrap());
    comm.barrier().unwrap();
    if me > 0 {
        Process::works();
    }
    if me == victim {
        super::eviction::until_killed();
    }
    let done = comm.broadcast(&mut [7_u32], 0);
    if me == 0 {
        assert!(done.is_ok(), "{done:?}");
        Process::works();
    }
    let calls = if done.is_ok() { 2 } else { 1 };
    if done.is_ok() {
        comm.barrier().unwrap_err();
    }
    comm = comm.shrink(LONG).unwrap();
    let recovery = comm.recovery().unwrap();
    assert_eq!(recovery.members, [0, 3 - victim]);
    eprintln!("{REPORT}{:?}", recovery.range());
    check_recovery(&mut comm, calls).unwrap();
}

#[test]
fn a_rank_with_the_result_of_a_call_that_failed_elsewhere_is_ahead() {
    for transport in ["shm", "tcp"] {
        let mut all = String::new();
        // One of the two victims is between the root and the other rank.
        for victim in [1, 2] {
            let mut world = World::start("faults::recovery::ahead", 3, transport, |_| {
                vec![("RINGREDUCE_ALGO", "ring".into()), (VICTIM, victim.to_string())]
            });
            world.is_at_work();
            world.0[victim].kill();
            let ends = world.ends();
            for (rank, (well, lines)) in ends.iter().enumerate() {
                assert!(rank == victim || *well, "{rank}, {victim} by {transport}: {ends:#?}");
                all += lines;
            }
        }
        assert!(all.contains(&format!("{REPORT}(1, 2)\n")), "{transport}: {all}");
    }
}
