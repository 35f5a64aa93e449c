//! Each time a rank is killed the survivors shrink their communicator, whose results are right, and
//! know the state of the recovery: the members, and the calls that each has completed.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank};
use harness::share;

/// The prefix of the line by which a rank reports its state.
const REPORT: &str = "from ";
/// Tells a rank the number of survivors.
const LEFT: &str = "TEST_RECOVERY_LEFT";
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

/// A process: a rank that shrinks after each lost peer until the survivors are alone.
pub(crate) fn survivor() {
    let Some(mut comm) = this_rank() else { return };
    let left: usize = std::env::var(LEFT).unwrap().parse().unwrap();
    let (n, me) = (comm.size(), comm.rank());
    let mut members: Vec<usize> = (0..n).collect();
    assert!(comm.recovery().is_none());
    let mut calls = 0_u64;
    while comm.size() > left {
        // The sum shows its contributors.
        let all: u64 = members.iter().map(|rank| 1 << rank).sum();
        let mut buf = vec![1_u64 << me; if calls.is_multiple_of(2) { 3 } else { 20_000 }];
        let done = comm.all_reduce(&mut buf, ReduceOp::Sum).map(|()| {
            assert!(buf.iter().all(|&it| it == all));
            calls += 1;
            if calls == 10 && members.len() == n {
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
    // No rank leaves while another one still compares.
    let _ = comm.barrier();
    eprintln!("{REPORT}{members:?}");
}

#[test]
fn survivors_of_kills_at_random_points_know_the_calls_of_all() {
    // Over TCP a death looks like a lost connection, so a majority must be left, or half of the
    // ranks with the lowest one.
    let worlds: [(usize, &str, &[usize]); 8] = [
        (2, "shm", &[0]),
        (3, "shm", &[2, 0]),
        (4, "shm", &[0, 1, 2]),
        (4, "shm", &[3, 1, 0]),
        (4, "shm", &[1, 2, 3]),
        (8, "shm", &[3, 0, 7]),
        (3, "tcp", &[0]),
        (4, "tcp", &[1, 3]),
    ];
    for (n, transport, victims) in worlds {
        let settings = |_| vec![(LEFT, (n - victims.len()).to_string())];
        let mut world = World::start("faults::recovery::survivor", n, transport, settings);
        world.is_at_work();
        for &victim in victims {
            std::thread::sleep(Duration::from_micros(share::random_range(0..30_000)));
            world.0[victim].kill();
        }
        let rest: Vec<usize> = (0..n).filter(|rank| !victims.contains(rank)).collect();
        let ends = world.ends();
        for &rank in &rest {
            let (well, lines) = &ends[rank];
            let is_right = *well && lines.contains(&format!("{REPORT}{rest:?}"));
            assert!(is_right, "rank {rank} of {n} by {transport}: {ends:#?}");
        }
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

/// A process: one rank dies, and the others report the flags that they agree on.
pub(crate) fn agrees() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    Process::works();
    if comm.rank() == 1 {
        super::eviction::until_killed();
    }
    // The agreement has no deadline.
    let flags = comm.agree(!(1 << comm.rank()), Duration::MAX).unwrap();
    eprintln!("{REPORT}{flags:b}");
    let mut comm = comm.shrink(Duration::MAX).unwrap();
    let mut comm = comm.evict(Duration::MAX).unwrap();
    assert_eq!(comm.size(), 3);
    assert_eq!(comm.queued_joiners().unwrap(), 0);
    assert!(comm.grow(Duration::MAX).unwrap().is_none());
    // No rank leaves before all have the result.
    comm.barrier().unwrap();
}

#[test]
fn survivors_of_a_death_agree() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start("faults::recovery::agrees", 4, transport, |_| Vec::new());
        // Every rank has left the barrier.
        world.is_at_work();
        world.0[1].kill();
        let want = format!("{REPORT}{:b}", !0b1101_u64);
        for (rank, (well, lines)) in world.ends().into_iter().enumerate() {
            assert!(rank == 1 || well && lines.contains(&want), "rank {rank}: {lines}");
        }
    }
}
