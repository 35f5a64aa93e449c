//! Each time a rank is killed the survivors shrink their communicator, whose results are right.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp};

use harness::hosts::Hosts;
use harness::processes::{Process, World, run, this_rank};

use super::super::registration::held;
use super::{ALL_PAIRS, Links};

/// Tells a rank the victims in their order; each survives the calls before its own.
const KILLED: &str = "TEST_SHRINK_KILLED";
/// Tells a rank that the survivors have the connections that they need.
const SHARES: &str = "TEST_SHRINK_SHARES";
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
    let mut members: Vec<usize> = (0..comm.size()).collect();
    is_at_work(&mut comm, &members);
    for &victim in &killed {
        if me == victim {
            let _ = work(&mut comm, &members);
            std::process::exit(1);
        }
        let error = work(&mut comm, &members).unwrap_err();
        let Error::PeerLost { peer, .. } = &error else { panic!("{error}") };
        assert_eq!(members[peer.rank], victim, "{error}");
        let (before, open) = (comm.monitor(), descriptors());
        assert_eq!(before.lost(), [peer.rank]);
        let smaller = comm.shrink(LONG).unwrap();
        let shares = std::env::var(SHARES).unwrap() == "1" && smaller.size() > 1;
        assert_eq!(descriptors() <= open, shares, "{} after {open}", descriptors());
        comm = smaller;
        // The monitor belongs to the communicator that failed.
        assert_eq!(before.error().unwrap().to_string(), error.to_string());
        assert!(comm.monitor().error().is_none() && comm.monitor().lost().is_empty());
        members.retain(|&rank| rank != victim);
        assert_eq!(comm.size(), members.len());
        assert_eq!(members[comm.rank()], me);
        subgroups_work(&mut comm);
        is_at_work(&mut comm, &members);
    }
    let mut buf = [1_u64 << me];
    comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    eprintln!("{REPORT}{:b}", buf[0]);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sums in communicators of all survivors and of some of them.
fn subgroups_work(comm: &mut Communicator) {
    let (size, me) = (comm.size(), comm.rank());
    let sums = |mut group: Communicator, members: usize| {
        let mut sum = [1_u64; 5_000];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [members as u64; 5_000]);
    };
    sums(comm.duplicate().unwrap(), size);
    let color = (me % 2) as u32;
    let part = comm.split(Some(color), 0).unwrap().unwrap();
    let members = (0..size).filter(|rank| rank % 2 == me % 2).count();
    sums(part, members);
    if size > 1 && me != 0 {
        let creator = comm.group_creator().unwrap();
        let others: Vec<_> = (1..size).collect();
        if creator.can_create(&others) {
            sums(creator.create(&others, 0).unwrap(), size - 1);
        }
    }
}

/// Says that this rank has left its calls. A link connects at its first use, so that all that the
/// next calls need are there.
fn is_at_work(comm: &mut Communicator, members: &[usize]) {
    sums(comm, members).unwrap();
    Process::works();
}

fn work(comm: &mut Communicator, members: &[usize]) -> Result<(), Error> {
    loop {
        sums(comm, members)?;
    }
}

/// Makes sums that show their contributors.
fn sums(comm: &mut Communicator, members: &[usize]) -> Result<(), Error> {
    let me = members[comm.rank()];
    let all: u64 = members.iter().map(|rank| 1 << rank).sum();
    for len in [1, 5_000] {
        let mut buf = vec![1_u64 << me; len];
        comm.all_reduce(&mut buf, ReduceOp::Sum)?;
        assert!(buf.iter().all(|&it| it == all));
    }
    Ok(())
}

/// Without links between all pairs, survivors connect anew.
#[test]
fn survivors_shrink_without_links_between_all_pairs() {
    let few = |n, transport, victims: &[usize]| {
        let start = |settings: &dyn Fn(usize) -> Vec<(&'static str, String)>| {
            let settings = |rank| {
                // Within a host the settings of networks do not matter.
                let network = [("RINGREDUCE_IFNAME", "none0"), ("RINGREDUCE_PORT_RANGE", "7-7")];
                let network = network.map(|(name, value)| (name, value.to_owned()));
                let network = if transport == "shm" { &network[..] } else { &[] };
                [&settings(rank), &Links::Few.settings(), network].concat()
            };
            World::start("faults::shrink::survivor", n, transport, settings)
        };
        kill_in(start, transport, victims, false);
    };
    few(8, "shm", &[3, 0, 7]);
    few(7, "tcp", &[0, 5]);
    // More ranks than have links between all pairs by themselves.
    let many = |settings: &dyn Fn(usize) -> Vec<(&'static str, String)>| {
        World::start("faults::shrink::survivor", 36, "auto", settings)
    };
    kill_in(many, "auto", &[17], false);
}

fn kill_in_turn(n: usize, transport: &'static str, victims: &[usize]) {
    let start = |settings: &dyn Fn(usize) -> Vec<(&'static str, String)>| {
        World::start("faults::shrink::survivor", n, transport, settings)
    };
    kill_in(start, transport, victims, true);
}

/// Kills ranks of a world that `start` starts with these settings; the survivors share connections
/// or connect.
fn kill_in(
    start: impl Fn(&dyn Fn(usize) -> Vec<(&'static str, String)>) -> World,
    context: &str,
    victims: &[usize],
    shares: bool,
) {
    let list = victims.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    // The whole suite can run without links between all pairs.
    let shares = u8::from(shares && std::env::var_os(ALL_PAIRS).is_none()).to_string();
    let mut world = start(&|_| vec![(KILLED, list.clone()), (SHARES, shares.clone())]);
    let n = world.0.len();
    let mut live: Vec<_> = (0..n).collect();
    for &victim in victims {
        // No rank is in a call of an earlier communicator or of a subgroup.
        live.iter().for_each(|&rank| world.0[rank].is_at_work());
        world.0[victim].kill();
        live.retain(|&rank| rank != victim);
    }
    let left: u64 = (0..n).filter(|rank| !victims.contains(rank)).map(|rank| 1 << rank).sum();
    let ends = world.ends();
    for (rank, (well, lines)) in ends.iter().enumerate() {
        if !victims.contains(&rank) {
            let context =
                format!("rank {rank} of {n} by {context}, without {victims:?}: {ends:#?}");
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

/// A process: a rank that shrinks again and again, though none is lost.
pub(crate) fn shrinks_often() {
    let Some(mut comm) = this_rank() else { return };
    let mut after_few = (0, 0, 0);
    for round in 1..=40 {
        comm.revoke().unwrap();
        comm = comm.shrink(LONG).unwrap();
        let mut buf = vec![1_u64; 200_000];
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        assert!(buf.iter().all(|&sum| sum == comm.size() as u64));
        // All have the sum before one revokes this communicator, and have dropped the last one.
        let _ = comm.barrier();
        let (maps, blocks) = held();
        let now = (maps, blocks, descriptors());
        if round == 10 {
            after_few = now;
        }
        // Ranks do not drop the last one at the same time, nor close its links.
        let is_more =
            now.0 > after_few.0 + 8 || now.1 > 2 * after_few.1 || now.2 > after_few.2 + 12;
        assert!(round <= 10 || !is_more, "{now:?} in round {round}, {after_few:?} before");
    }
}

#[test]
fn a_communicator_keeps_no_memory_of_those_before_it() {
    for transport in ["shm", "tcp"] {
        run("faults::shrink::shrinks_often", 4, transport);
    }
}

/// Hosts with equally many ranks have the memory of later communicators too, though these have more
/// ranks on one host than on the other. Others connect each time.
#[test]
fn survivors_of_two_hosts_shrink_twice() {
    let hosts = match [Hosts::new(), Hosts::new()].into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(hosts) => hosts,
        Err(why) => {
            return harness::skip("faults::shrink::survivors_of_two_hosts_shrink_twice", &why);
        }
    };
    let cases = [(3, &[4, 0][..], true), (4, &[1, 5], false)];
    for (hosts, (first, victims, shares)) in hosts.iter().zip(cases) {
        let start = |settings: &dyn Fn(usize) -> Vec<(&'static str, String)>| {
            World::on((hosts, first), "faults::shrink::survivor", 6, "auto", settings)
        };
        kill_in(start, "two hosts", victims, shares);
    }
}
