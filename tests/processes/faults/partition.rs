//! The network between two hosts is cut: the majority goes on without the others, which get an
//! error. Never do both parts go on. The network may also be cut while ranks recover.

use std::thread;
use std::time::Duration;

use ringreduce::{Communicator, Error};

use super::eviction::until_killed;
use super::{alloc, now, report, variable, work};
use harness::hosts::Hosts;
use harness::processes::{Process, World, this_rank};

/// Tells a rank by 1 that it calls `shrink`, not `evict`.
const SHRINKS: &str = "TEST_PARTITION_SHRINKS";
/// Tells a rank how many ranks shrink; the others are alive and do not.
const SHRINKING: &str = "TEST_PARTITION_SHRINKING";
const REST: &str = "goes on with ";
const QUORUM_LOST: &str = "quorum lost";
const LONG: Duration = Duration::from_secs(60);

/// A process: a rank that works until the network is cut, and goes on in a majority.
pub(crate) fn member() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    let mut shared = alloc(&mut comm);
    Process::works();
    eprintln!("{}", report(&work(&mut comm, &mut shared).unwrap_err()));
    let me = comm.rank() as u64;
    let shrinks = std::env::var(SHRINKS).unwrap() == "1";
    let rest = if shrinks { comm.shrink(LONG) } else { comm.evict(LONG) };
    report_rest(me, rest);
}

/// Prints the members that go on, or that they are too few.
fn report_rest(me: u64, rest: Result<Communicator, Error>) {
    match rest {
        Ok(mut rest) => {
            let mut all = vec![0; rest.size()];
            rest.all_gather(&[me], &mut all).unwrap();
            eprintln!("{REST}{all:?}");
        }
        Err(Error::QuorumLost { .. }) => eprintln!("{QUORUM_LOST}"),
        Err(error) => panic!("{error}"),
    }
}

/// Cuts the network; ranks below `first` are on one host. The right part must go on.
fn cut(hosts: &Hosts, first: usize, n: usize, shrinks: bool) {
    let settings = |_| vec![(SHRINKS, u8::from(shrinks).to_string())];
    let mut world = World::on((hosts, first), "faults::partition::member", n, "tcp", settings);
    world.is_at_work();
    let since = now();
    hosts.drop_longer(1).unwrap();
    let ends = world.ends();
    hosts.drop_none().unwrap();
    let took = now().saturating_sub(since);
    eprintln!("{first} of {n}, shrinks: {shrinks}: all went on or ended after {took:.1?}");
    // Of two halves the one with the lowest rank goes on.
    let rest = if 2 * first >= n { 0..first } else { first..n };
    let goes_on = format!("{REST}{:?}", rest.clone().collect::<Vec<_>>());
    for (rank, (well, lines)) in ends.iter().enumerate() {
        let wanted = if rest.contains(&rank) { &*goes_on } else { QUORUM_LOST };
        let has_line = *well && lines.lines().any(|line| line == wanted);
        assert!(has_line, "rank {rank} of {n}, {first} there, shrinks: {shrinks}: {ends:#?}");
    }
}

/// A process: a rank that recovers while nothing has failed yet, or that never does.
pub(crate) fn recovers() {
    let Some(mut comm) = this_rank() else { return };
    Process::works();
    if comm.rank() >= variable(SHRINKING) {
        until_killed();
    }
    let rest = comm.shrink(LONG);
    report_rest(comm.rank() as u64, rest);
}

#[test]
fn a_majority_goes_on_and_a_minority_gets_quorum_lost() {
    // The majority with the lowest rank and the store, the one without them, and two halves.
    let splits = [(3, 5), (2, 5), (2, 4)];
    let hosts: Result<Vec<_>, _> = splits.iter().map(|_| Hosts::with_loss()).collect();
    let hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "faults::partition::a_majority_goes_on_and_a_minority_gets_quorum_lost";
            return harness::skip(test, &why);
        }
    };
    thread::scope(|scope| {
        for (hosts, (first, n)) in hosts.iter().zip(splits) {
            scope.spawn(move || [true, false].map(|shrinks| cut(hosts, first, n, shrinks)));
        }
    });
}

/// Cuts off the host of the ranks from `first` on while the others wait for them in `shrink`.
fn cut_off(hosts: &Hosts, first: usize, line: &str) {
    let settings = |_| vec![(SHRINKING, first.to_string())];
    let mut world = World::on((hosts, first), "faults::partition::recovers", 5, "tcp", settings);
    world.is_at_work();
    hosts.drop_longer(1).unwrap();
    let _cut_off = world.0.split_off(first);
    for (rank, (well, lines)) in world.ends().into_iter().enumerate() {
        let has_line = well && lines.lines().any(|it| it == line);
        assert!(has_line, "rank {rank} of {first} there: {lines}");
    }
}

#[test]
fn a_host_that_is_cut_off_during_a_recovery_is_left_behind() {
    let worlds = [(3, "goes on with [0, 1, 2]"), (2, QUORUM_LOST)];
    let hosts: Result<Vec<_>, _> = worlds.iter().map(|_| Hosts::with_loss()).collect();
    let hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "faults::partition::a_host_that_is_cut_off_during_a_recovery_is_left_behind";
            return harness::skip(test, &why);
        }
    };
    thread::scope(|scope| {
        for (hosts, (first, line)) in hosts.iter().zip(worlds) {
            scope.spawn(move || cut_off(hosts, first, line));
        }
    });
}
