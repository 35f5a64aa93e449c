//! Ranks that make different calls, of which nothing flows from one to the other: all say which two
//! differ and in what, long before the time is over.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error, ReduceOp, Result};

use harness::processes::{Process, World, this_rank};

const WHAT: &str = "TEST_DIFFER_WHAT";
const LONG: Duration = Duration::from_secs(60);
/// docs/failures.md promises a second, and takes a tenth of it, where CPUs are free. Nobody has to
/// be silent for that, which takes five seconds to find out.
const SOON: Duration = Duration::from_secs(4);
/// Who calls something else.
const ONE: usize = 1;

/// What the one calls, and the others.
fn call(comm: &mut Communicator, what: &str) -> Result<()> {
    let mut buf = [1_u32; 3];
    match (what, comm.rank() == ONE) {
        ("another length", true) => comm.recv(&mut buf[1..], 0),
        ("another length", false) if comm.rank() == 0 => comm.send(&buf, ONE),
        ("another length", false) => comm.barrier(),
        ("a message", true) => comm.all_reduce(&mut buf, ReduceOp::Sum),
        ("a message", false) => comm.recv(&mut buf, ONE),
        ("another root", true) => comm.broadcast(&mut buf, 0),
        ("another root", false) => comm.broadcast(&mut buf, ONE),
        ("another root of a reduce", true) => comm.reduce(&mut buf, ReduceOp::Sum, ONE),
        ("another root of a reduce", false) => comm.reduce(&mut buf, ReduceOp::Sum, 0),
        _ => unreachable!("{what}"),
    }
}

/// What the one has, and those that differ from it, as far as the text is known.
fn values(what: &str) -> [&'static str; 2] {
    match what {
        "another length" => ["8 bytes of uint32", "12 bytes of uint32"],
        "another root" => ["0", "1"],
        "another root of a reduce" => ["1", "0"],
        _ => ["that of call #2", "that of a message after call #1"],
    }
}

/// Not a test of its own: a rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    let what = std::env::var(WHAT).unwrap();
    let began = Instant::now();
    let mut result = Ok(());
    // Who needs nothing of the others finds out in the call after.
    while result.is_ok() {
        result = call(&mut comm, &what);
    }
    let error = result.unwrap_err();
    let after = began.elapsed();
    eprintln!("told after {after:.1?}");
    assert!(after < SOON, "after {after:.1?}: {error}");
    match &error {
        Error::Mismatch { at, ranks, values, .. } if ranks.iter().any(|it| it.rank == ONE) => {
            let is_one = ranks[1].rank == at.rank;
            eprintln!("{}: {error}", if is_one { "differs" } else { "others differ" });
            let [one, other] = self::values(&what);
            for (rank, value) in ranks.iter().zip(values) {
                assert_eq!(value, if rank.rank == ONE { one } else { other }, "{error}");
            }
        }
        _ => panic!("{error}"),
    }
}

#[test]
fn both_that_differ_say_in_what_though_nothing_flows_between_them() {
    for what in ["a message", "another length", "another root", "another root of a reduce"] {
        for transport in ["shm", "tcp"] {
            let world =
                World::start("faults::differ::rank", 3, transport, |_| vec![(WHAT, what.into())]);
            let said: Vec<_> = world.0.into_iter().map(Process::end).collect();
            let differ = said.iter().filter(|(_, said)| said.contains("differs: ")).count();
            let well = said.iter().all(|(well, _)| *well) && differ >= 2;
            assert!(well, "{what} by {transport}: {said:#?}");
            let after = said.iter().filter_map(|(_, said)| {
                said.lines().find_map(|line| line.strip_prefix("told after "))
            });
            eprintln!("{what} by {transport}: told after {:?}", after.collect::<Vec<_>>());
        }
    }
}
