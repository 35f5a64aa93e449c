//! One of two hosts is cut off: those who are most go on without the others, who are told that they
//! are too few. Never do both go on.

use std::thread;
use std::time::Duration;

use ringreduce::Error;

use super::{now, says, work};
use harness::hosts::Hosts;
use harness::processes::{Process, World, this_rank};

/// How survivors go on, if not by `evict`.
const SHRINKS: &str = "TEST_PARTITION_SHRINKS";
const REST: &str = "goes on with ";
const TOO_FEW: &str = "too few";
const LONG: Duration = Duration::from_secs(60);

/// Not a test of its own: a rank that works until a host is cut off, and goes on if it may.
pub(crate) fn member() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    Process::works();
    eprintln!("{}", says(&work(&mut comm).unwrap_err()));
    let me = comm.rank() as u64;
    let shrinks = std::env::var(SHRINKS).unwrap() == "1";
    let rest = if shrinks { comm.shrink(LONG) } else { comm.evict(LONG) };
    match rest {
        Ok(mut rest) => {
            let mut all = vec![0; rest.size()];
            rest.all_gather(&[me], &mut all).unwrap();
            eprintln!("{REST}{all:?}");
        }
        Err(Error::QuorumLost { .. }) => eprintln!("{TOO_FEW}"),
        Err(error) => panic!("{error}"),
    }
}

/// The first so many of `n` ranks are on one host; who goes on?
fn cut(hosts: &Hosts, first: usize, n: usize, shrinks: bool) {
    let settings = |_| vec![(SHRINKS, u8::from(shrinks).to_string())];
    let mut world = World::on(hosts, first, "faults::partition::member", n, settings);
    world.is_at_work();
    let since = now();
    hosts.drop_longer(1).unwrap();
    let ends: Vec<_> = world.0.into_iter().map(Process::end).collect();
    hosts.drop_none().unwrap();
    let took = now().saturating_sub(since);
    eprintln!("{first} of {n}, shrinks: {shrinks}: all went on or ended after {took:.1?}");
    // Half of them do with the lowest rank.
    let rest = if 2 * first >= n { 0..first } else { first..n };
    let goes_on = format!("{REST}{:?}", rest.clone().collect::<Vec<_>>());
    for (rank, (well, said)) in ends.iter().enumerate() {
        let wanted = if rest.contains(&rank) { &*goes_on } else { TOO_FEW };
        let is_told = *well && said.lines().any(|line| line == wanted);
        assert!(is_told, "rank {rank} of {n}, {first} there, shrinks: {shrinks}: {ends:#?}");
    }
}

#[test]
fn the_larger_part_goes_on_and_the_smaller_is_told_so() {
    // Where the lowest rank is, and the store, and where neither is.
    let splits = [(3, 5), (2, 5), (2, 4)];
    let hosts: Result<Vec<_>, _> = splits.iter().map(|_| Hosts::with_loss()).collect();
    let hosts = match hosts {
        Ok(hosts) => hosts,
        Err(why) => {
            let test = "faults::partition::the_larger_part_goes_on_and_the_smaller_is_told_so";
            return harness::skip(test, &why);
        }
    };
    thread::scope(|scope| {
        for (hosts, (first, n)) in hosts.iter().zip(splits) {
            scope.spawn(move || [true, false].map(|shrinks| cut(hosts, first, n, shrinks)));
        }
    });
}
