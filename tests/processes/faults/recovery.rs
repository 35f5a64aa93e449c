//! Who goes on knows from where: who of them there is, and which calls have ended well at whom.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank};

const SAID: &str = "from ";
/// Who does not come to a call.
const VICTIM: &str = "TEST_RECOVERY_VICTIM";
const LONG: Duration = Duration::from_secs(20);

/// What the members of `comm` say of how far they had come is what each of them knows of itself.
fn checked(comm: &mut Communicator, calls: u64) -> Result<(), Error> {
    let recovery = comm.recovery().unwrap().clone();
    assert_eq!(recovery.epoch, comm.epoch());
    let mut all = vec![0; comm.size()];
    comm.all_gather(&[calls], &mut all)?;
    assert_eq!(recovery.calls, all);
    Ok(())
}

/// Not a test of its own: a rank that goes on whoever is lost, until it is alone.
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
            lost = checked(&mut comm, calls).is_err();
            // What was gathered is a call too.
            calls = u64::from(!lost);
        }
    }
    eprintln!("{SAID}{members:?}");
}

#[test]
fn kills_at_random_points_leave_those_who_know_how_far_all_are() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(0x5ead);
    for _ in 0..4 {
        let mut world = World::start("faults::recovery::survivor", 4, "shm", |_| Vec::new());
        world.is_at_work();
        let last = rng.random_range(0..4);
        for victim in (0..4).filter(|&rank| rank != last) {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..30_000)));
            world.0[victim].kill();
        }
        let (well, said) = world.0.remove(last).end();
        assert!(well && said.contains(&format!("{SAID}[{last}]")), "{last}: {said}");
        world.0.into_iter().for_each(|one| drop(one.end()));
    }
}

/// Not a test of its own: one of three does not come to a call whose root need not wait for it.
pub(crate) fn ahead() {
    let Some(mut comm) = this_rank() else { return };
    let (me, victim) = (comm.rank(), std::env::var(VICTIM).unwrap().parse().unwrap());
    comm.barrier().unwrap();
    if me > 0 {
        Process::works();
    }
    if me == victim {
        // A park may end by itself.
        loop {
            std::thread::park();
        }
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
    eprintln!("{SAID}{:?}", recovery.range());
    checked(&mut comm, calls).unwrap();
}

#[test]
fn who_has_the_result_of_a_call_that_failed_elsewhere_is_ahead() {
    for transport in ["shm", "tcp"] {
        let mut all = String::new();
        // One of them is between the root and the other one.
        for victim in [1, 2] {
            let mut world = World::start("faults::recovery::ahead", 3, transport, |_| {
                vec![("RINGREDUCE_ALGO", "ring".into()), (VICTIM, victim.to_string())]
            });
            world.is_at_work();
            world.0[victim].kill();
            let ends: Vec<_> = world.0.into_iter().map(Process::end).collect();
            for (rank, (well, said)) in ends.iter().enumerate() {
                assert!(rank == victim || *well, "{rank}, {victim} by {transport}: {ends:#?}");
                all += said;
            }
        }
        assert!(all.contains(&format!("{SAID}(1, 2)\n")), "{transport}: {all}");
    }
}
