//! Survivors go on: each time a rank is killed the others make a communicator without it, and its
//! answers are right.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank};

/// Who is killed, in this order; each survives the calls of those before.
const KILLED: &str = "TEST_SHRINK_KILLED";
const SAID: &str = "members ";
const LONG: Duration = Duration::from_secs(20);

/// Not a test of its own: a rank that works until all that shall die have, and says who is left.
pub(crate) fn survivor() {
    let Some(mut comm) = this_rank() else { return };
    let killed = std::env::var(KILLED).unwrap();
    let killed: Vec<usize> = killed.split(',').map(|rank| rank.parse().unwrap()).collect();
    let me = comm.rank();
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    // Nobody is still in it then.
    Process::works();
    let mut members: Vec<usize> = (0..comm.size()).collect();
    for &victim in &killed {
        if me == victim {
            Process::works();
            let _ = work(&mut comm, &members);
            std::process::exit(1);
        }
        let error = work(&mut comm, &members).unwrap_err();
        let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
        assert_eq!(members[peer.rank], victim, "{error}");
        comm = comm.shrink(LONG).unwrap();
        members.retain(|&rank| rank != victim);
        assert_eq!(comm.size(), members.len());
        assert_eq!(members[comm.rank()], me);
    }
    let mut buf = [1_u64 << me];
    comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    eprintln!("{SAID}{:b}", buf[0]);
}

/// Sums that tell who has given.
fn work(comm: &mut Communicator, members: &[usize]) -> Result<(), Error> {
    let me = members[comm.rank()];
    let all: u64 = members.iter().map(|rank| 1 << rank).sum();
    loop {
        for len in [1, 5_000] {
            let mut buf = vec![1_u64 << me; len];
            comm.all_reduce(&mut buf, ReduceOp::Sum)?;
            assert!(buf.iter().all(|&it| it == all));
        }
    }
}

fn kill_in_turn(n: usize, transport: &'static str, victims: &[usize]) {
    let list = victims.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let settings = |_| vec![(KILLED, list.clone())];
    let mut world = World::start("faults::shrink::survivor", n, transport, settings);
    world.is_at_work();
    for &victim in victims {
        world.0[victim].is_at_work();
        world.0[victim].kill();
    }
    let left: u64 = (0..n).filter(|rank| !victims.contains(rank)).map(|rank| 1 << rank).sum();
    let ends: Vec<_> = world.0.into_iter().map(Process::end).collect();
    for (rank, (well, said)) in ends.iter().enumerate() {
        if !victims.contains(&rank) {
            let name = format!("rank {rank} of {n} by {transport}, without {victims:?}: {ends:#?}");
            assert!(*well && said.contains(&format!("{SAID}{left:b}\n")), "{name}");
        }
    }
}

#[test]
fn survivors_of_one_host_go_on_down_to_the_last() {
    kill_in_turn(2, "shm", &[0]);
    kill_in_turn(3, "shm", &[2, 0]);
    kill_in_turn(4, "shm", &[0, 1, 2]);
    kill_in_turn(8, "shm", &[3, 0, 7]);
}

/// Where a death is no more than a connection that ended more than half must be left, or half with
/// the lowest rank.
#[test]
fn survivors_over_tcp_go_on_while_they_are_most() {
    kill_in_turn(3, "tcp", &[0]);
    kill_in_turn(4, "tcp", &[1, 3]);
}

/// Not a test of its own: a rank of a world in which one dies, and the others say what they agree
/// on.
pub(crate) fn agrees() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    Process::works();
    if comm.rank() == 1 {
        super::council::until_killed();
    }
    // For as long as it takes.
    let flags = comm.agree(!(1 << comm.rank()), Duration::MAX).unwrap();
    eprintln!("{SAID}{flags:b}");
    let mut comm = comm.shrink(Duration::MAX).unwrap();
    let mut comm = comm.evict(Duration::MAX).unwrap();
    assert_eq!(comm.size(), 3);
    assert!(comm.grow(Duration::MAX).unwrap().is_none());
    // Nobody leaves before all have it.
    comm.barrier().unwrap();
}

#[test]
fn survivors_agree_whoever_dies() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start("faults::shrink::agrees", 4, transport, |_| Vec::new());
        // Nobody is still in what comes before.
        world.is_at_work();
        world.0[1].kill();
        let want = format!("{SAID}{:b}", !0b1101_u64);
        for (rank, one) in world.0.into_iter().enumerate() {
            let (well, said) = one.end();
            assert!(rank == 1 || well && said.contains(&want), "rank {rank}: {said}");
        }
    }
}
