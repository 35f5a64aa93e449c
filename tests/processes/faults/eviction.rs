//! Survivors that cannot go on at once: peers have left or are absent, a quorum is lost, a rank was
//! evicted.

use std::any::Any;
use std::fs::File;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, raise};
use ringreduce::{Communicator, Error, ReduceOp};

use super::Links;
use harness::hosts::Hosts;
use harness::processes::{Process, World, this_builder, this_rank};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
/// Ranks that call within this time call together, also where CPUs are scarce.
const GRACE: Duration = Duration::from_secs(2);

/// The documented time after a deadline, and the time for which a busy machine may hold a rank up.
const BOUND: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(5);
/// Ranks are evicted in the middle of this time, and the others connect in its second half.
const EVICTION: Duration = Duration::from_secs(8);

/// Tell a rank by 1 that it calls `agree` first, that its calls are uniform, and that it shrinks
/// before it evicts.
const AGREES: &str = "TEST_EVICTION_AGREES";
const UNIFORM: &str = "TEST_EVICTION_UNIFORM";
const SHRINKS: &str = "TEST_EVICTION_SHRINKS";

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|it| it == "1")
}

fn member() -> Option<Communicator> {
    let (builder, ..) = this_builder()?;
    Some(builder.uniform(is_set(UNIFORM)).build().unwrap())
}

pub(super) fn until_killed() -> ! {
    // A park may end spuriously.
    loop {
        std::thread::park();
    }
}

/// A process: all ranks but the last one leave, with or without an agreement before.
pub(crate) fn last_rank() {
    let Some(mut comm) = member() else { return };
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
    if is_set(AGREES) {
        assert_eq!(comm.agree(7, LONG).unwrap(), 7);
    }
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
    if comm.rank() + 1 < comm.size() {
        return;
    }
    comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap_err();
    let mut alone = comm.shrink(LONG).unwrap();
    assert_eq!(alone.size(), 1);
    alone.barrier().unwrap();
}

#[test]
fn a_rank_that_all_others_left_shrinks_to_itself_at_once() {
    for transport in ["shm", "tcp"] {
        for (uniform, agrees) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
            for n in [2, 3] {
                let settings = |_| vec![(UNIFORM, uniform.to_owned()), (AGREES, agrees.to_owned())];
                let began = Instant::now();
                let world = World::start("faults::eviction::last_rank", n, transport, settings);
                world.succeeds(&format!("{transport} {n} {uniform} {agrees}"));
                // No rank has waited for its deadline.
                assert!(began.elapsed() < LONG / 2);
            }
        }
    }
}

/// A process: rank 2 is stopped until the others have evicted it.
pub(crate) fn evicted() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    comm.set_timeout(SHORT);
    if comm.rank() == 2 {
        raise(Signal::SIGSTOP).unwrap();
        // The peers' part of their failed call may complete this one.
        while comm.barrier().is_ok() {}
        let late = comm.shrink(LONG).unwrap_err();
        assert!(matches!(late, Error::Evicted { .. }), "{late}");
        // Later calls fail the same way.
        let late = comm.agree(0, LONG).unwrap_err();
        assert!(matches!(late, Error::Evicted { .. }), "{late}");
        return;
    }
    comm.barrier().unwrap_err();
    if is_set(SHRINKS) {
        let missing = match is_set(AGREES) {
            true => comm.agree(1, GRACE).unwrap_err(),
            false => comm.shrink(GRACE).unwrap_err(),
        };
        let Error::NotAll { missing, .. } = missing else { panic!("{missing}") };
        assert_eq!(missing, [2]);
    }
    let mut rest = comm.evict(EVICTION).unwrap();
    assert_eq!(rest.size(), comm.size() - 1);
    rest.set_timeout(LONG);
    rest.barrier().unwrap();
    Process::works();
    // Rank 2 learns it from living peers.
    until_killed();
}

#[test]
fn an_absent_rank_is_missed_then_evicted_and_learns_it() {
    if !harness::share::makes_test(3) {
        return;
    }
    for (transport, shrinks, agrees) in [
        ("shm", "1", "0"),
        ("tcp", "1", "1"),
        ("shm", "1", "1"),
        ("shm", "0", "0"),
        ("tcp", "0", "0"),
    ] {
        one_is_evicted((3, transport), (shrinks, agrees), Links::AllPairs);
    }
}

#[test]
fn an_absent_rank_is_evicted_without_links_between_all_pairs() {
    for (transport, shrinks, agrees) in [("shm", "1", "1"), ("tcp", "0", "0")] {
        one_is_evicted((7, transport), (shrinks, agrees), Links::Few);
    }
}

/// Rank 2 is stopped, until the others have evicted it.
fn one_is_evicted(
    (n, transport): (usize, &'static str),
    (shrinks, agrees): (&str, &str),
    links: Links,
) {
    let own = vec![(SHRINKS, shrinks.to_owned()), (AGREES, agrees.to_owned())];
    let settings = |_| [own.clone(), links.settings()].concat();
    let mut world = World::start("faults::eviction::evicted", n, transport, settings);
    let paused = world.0.remove(2);
    world.is_at_work();
    // On a busy machine the rank may stop only now.
    paused.is_stopped();
    paused.signal(Signal::SIGCONT);
    paused.succeeds(&format!("{transport} {shrinks} {agrees} {links:?}"));
}

/// The variable that says what the communicator of the survivors lacks: the memory that rank 0
/// reserves for its host, or the descriptors with which rank 2 connects where hosts have different
/// numbers of ranks.
const LACKS: &str = "TEST_EVICTION_LACKS";

fn limit(resource: Resource, soft: u64) {
    let (_, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, soft, hard).unwrap();
}

/// Lowers a limit of the rank that lacks something, until the value is dropped.
fn deprive(rank: usize) -> Option<Box<dyn Any + Send>> {
    struct Limited(u64);
    impl Drop for Limited {
        fn drop(&mut self) {
            limit(Resource::RLIMIT_FSIZE, self.0);
        }
    }
    match (&*std::env::var(LACKS).unwrap(), rank) {
        ("memory", 0) => {
            let limited = Limited(getrlimit(Resource::RLIMIT_FSIZE).unwrap().0);
            limit(Resource::RLIMIT_FSIZE, 1);
            Some(Box::new(limited))
        }
        ("descriptors", 2) => {
            limit(Resource::RLIMIT_NOFILE, 256);
            let all = std::iter::from_fn(|| File::open("/dev/null").ok());
            Some(Box::new(all.collect::<Vec<_>>()))
        }
        _ => None,
    }
}

/// Checks `n` ranks of which one lacks something, on one host and on two of different sizes.
fn deprived((test, body): (&str, &str), n: usize, check: impl Fn(World)) {
    let lacks = |what: &str| vec![(LACKS, what.to_owned())];
    check(World::start(body, n, "shm", |_| lacks("memory")));
    match Hosts::new() {
        Ok(hosts) => check(World::on((&hosts, n - 1), body, n, "auto", |_| lacks("descriptors"))),
        Err(why) => harness::skip(&format!("faults::eviction::{test}"), &why),
    }
}

/// A process: rank 3 is stopped, and when the others evict it, one lacks something at first.
pub(crate) fn second_round() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    comm.set_timeout(GRACE);
    if comm.rank() == 3 {
        raise(Signal::SIGSTOP).unwrap();
    }
    comm.barrier().unwrap_err();
    std::thread::scope(|scope| {
        if let Some(lack) = deprive(comm.rank()) {
            scope.spawn(move || {
                // The first round waits for rank 3 until then.
                std::thread::sleep(EVICTION + SHORT);
                drop(lack);
            });
        }
        let mut three = comm.evict(2 * EVICTION).unwrap();
        assert_eq!(three.size(), 3);
        three.set_timeout(LONG);
        three.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_cannot_connect_at_once_is_not_evicted() {
    if !harness::share::makes_test(3) {
        return;
    }
    let test = "a_rank_that_cannot_connect_at_once_is_not_evicted";
    deprived((test, "faults::eviction::second_round"), 4, |mut world| {
        let paused = world.0.pop().unwrap();
        world.succeeds("three of four");
        drop(paused);
    });
}

/// A process: a rank lacks something for ever.
pub(crate) fn never_connects() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    let lack = deprive(comm.rank());
    let began = Instant::now();
    comm.evict(GRACE).unwrap_err();
    let took = began.elapsed();
    assert!(took < GRACE + BOUND + SLACK, "{took:.1?}");
    drop(lack);
}

#[test]
fn an_eviction_ends_by_its_deadline_though_a_rank_cannot_connect() {
    let test = "an_eviction_ends_by_its_deadline_though_a_rank_cannot_connect";
    deprived((test, "faults::eviction::never_connects"), 3, |world| {
        world.succeeds("one lacks something");
    });
}

/// A process: rank 2 shrinks, gives that up, and is busy for longer than a call waits for an answer
/// while the others shrink.
pub(crate) fn busy() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    if comm.rank() == 2 {
        let late = comm.shrink(SHORT).unwrap_err();
        assert!(matches!(&late, Error::NotAll { .. }), "{late}");
        Process::works();
        std::thread::sleep(2 * GRACE);
    } else {
        // The test closes the input once rank 2 has given up.
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    let mut three = comm.shrink(LONG).unwrap();
    assert_eq!(three.size(), 3);
    three.barrier().unwrap();
}

#[test]
fn a_rank_that_has_given_up_its_call_is_not_evicted() {
    for transport in ["shm", "tcp"] {
        let mut world = World::start("faults::eviction::busy", 3, transport, |_| Vec::new());
        let (others, busy) = world.0.split_at_mut(2);
        busy[0].is_at_work();
        others.iter_mut().for_each(Process::close_stdin);
        world.succeeds(transport);
    }
}

/// A process: rank 0 is killed, which looks like a lost connection over TCP.
pub(crate) fn minority() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    Process::works();
    if comm.rank() == 0 {
        until_killed();
    }
    comm.barrier().unwrap_err();
    for _ in 0..2 {
        let began = Instant::now();
        let lost = comm.shrink(LONG).unwrap_err();
        assert!(matches!(&lost, Error::QuorumLost { live, .. } if *live == [1]), "{lost}");
        assert!(began.elapsed() < LONG / 2);
    }
}

#[test]
fn a_minority_gets_quorum_lost_without_a_wait() {
    let mut world = World::start("faults::eviction::minority", 2, "tcp", |_| Vec::new());
    // Every rank has left the barrier.
    world.is_at_work();
    world.0[0].kill();
    world.0.pop().unwrap().succeeds("the survivor");
}

/// A process: rank 0 waits for the agreement of rank 1 until another thread aborts the wait.
pub(crate) fn aborted() {
    let Some(mut comm) = this_rank() else { return };
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        until_killed();
    }
    let handle = comm.monitor();
    let aborts = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        handle.abort();
    });
    let error = comm.agree(1, LONG).unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    aborts.join().unwrap();
    Process::works();
}

#[test]
fn abort_ends_an_agreement() {
    let mut world = World::start("faults::eviction::aborted", 2, "shm", |_| Vec::new());
    let began = Instant::now();
    world.0[0].is_at_work();
    assert!(began.elapsed() < LONG / 2);
    drop(world.0.pop());
    world.0.pop().unwrap().succeeds("rank 0");
}
