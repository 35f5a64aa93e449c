//! Each time a rank is killed the survivors shrink their communicator, whose results are right.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

use harness::processes::{Process, World, this_rank};

/// Tells a rank the victims in their order; each survives the calls before its own.
const KILLED: &str = "TEST_SHRINK_KILLED";
/// The prefix of the line by which a rank reports its members or flags.
const REPORT: &str = "members ";
const LONG: Duration = Duration::from_secs(20);

/// A process: a rank that works until all victims are killed, and reports the survivors.
pub(crate) fn survivor() {
    let Some(mut comm) = this_rank() else { return };
    let killed = std::env::var(KILLED).unwrap();
    let killed: Vec<usize> = killed.split(',').map(|rank| rank.parse().unwrap()).collect();
    let me = comm.rank();
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    // Every rank has left the barrier.
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
        let before = comm.monitor();
        assert_eq!(before.lost(), [peer.rank]);
        comm = comm.shrink(LONG).unwrap();
        // The monitor belongs to the communicator that failed.
        assert_eq!(before.error().unwrap().to_string(), error.to_string());
        assert!(comm.monitor().error().is_none() && comm.monitor().lost().is_empty());
        members.retain(|&rank| rank != victim);
        assert_eq!(comm.size(), members.len());
        assert_eq!(members[comm.rank()], me);
    }
    let mut buf = [1_u64 << me];
    comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    eprintln!("{REPORT}{:b}", buf[0]);
}

/// Makes sums that show their contributors.
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
    let ends = world.ends();
    for (rank, (well, lines)) in ends.iter().enumerate() {
        if !victims.contains(&rank) {
            let context =
                format!("rank {rank} of {n} by {transport}, without {victims:?}: {ends:#?}");
            assert!(*well && lines.contains(&format!("{REPORT}{left:b}\n")), "{context}");
        }
    }
}

#[test]
fn survivors_on_one_host_shrink_down_to_the_last() {
    kill_in_turn(2, "shm", &[0]);
    kill_in_turn(3, "shm", &[2, 0]);
    kill_in_turn(4, "shm", &[0, 1, 2]);
    kill_in_turn(8, "shm", &[3, 0, 7]);
}

/// Over TCP a death looks like a lost connection, so a majority must be left, or half of the ranks
/// with the lowest one.
#[test]
fn survivors_over_tcp_shrink_while_they_are_a_majority() {
    kill_in_turn(3, "tcp", &[0]);
    kill_in_turn(4, "tcp", &[1, 3]);
}
