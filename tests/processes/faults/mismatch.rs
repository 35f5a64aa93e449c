//! Ranks that make different calls and exchange no byte: all name two ranks that differ and the
//! difference, long before the timeout.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Error, ReduceOp, Result};

use harness::processes::{World, this_rank};

/// Tells a rank the difference between the calls.
const DIFFERENCE: &str = "TEST_MISMATCH_DIFFERENCE";
const LONG: Duration = Duration::from_secs(60);
/// docs/failures.md promises a second where CPUs are free. Detection by silence would take five
/// seconds.
const MOST: Duration = Duration::from_secs(4);
/// The rank that makes another call.
const ONE: usize = 1;

/// Makes the call of this rank.
fn call(comm: &mut Communicator, what: &str) -> Result<()> {
    let mut buf = [1_u32; 3];
    match (what, comm.rank() == ONE) {
        ("another root", true) => comm.broadcast(&mut buf, 0),
        ("another root", false) => comm.broadcast(&mut buf, ONE),
        ("another root of a reduce", true) => comm.reduce(&mut buf, ReduceOp::Sum, ONE),
        ("another root of a reduce", false) => comm.reduce(&mut buf, ReduceOp::Sum, 0),
        _ => unreachable!("{what}"),
    }
}

/// The values that the error gives for rank `ONE` and for the others.
fn values(what: &str) -> [&'static str; 2] {
    match what {
        "another root" => ["0", "1"],
        _ => ["1", "0"],
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    let Some(mut comm) = this_rank() else { return };
    comm.set_timeout(LONG);
    comm.barrier().unwrap();
    let what = std::env::var(DIFFERENCE).unwrap();
    let began = Instant::now();
    let mut result = Ok(());
    // A rank that needs nothing of its peers detects it in the next call.
    while result.is_ok() {
        result = call(&mut comm, &what);
    }
    let error = result.unwrap_err();
    let after = began.elapsed();
    eprintln!("detected after {after:.1?}");
    assert!(after < MOST, "after {after:.1?}: {error}");
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
fn calls_that_differ_are_named_though_their_ranks_exchange_nothing() {
    for what in ["another root", "another root of a reduce"] {
        for transport in ["shm", "tcp"] {
            let world = World::start("faults::mismatch::rank", 3, transport, |_| {
                vec![(DIFFERENCE, what.into())]
            });
            let context = format!("{what} by {transport}");
            let ends = world.succeeds(&context);
            let differ = ends.iter().filter(|lines| lines.contains("differs: ")).count();
            assert!(differ >= 2, "{context}: {ends:#?}");
            let after = ends.iter().filter_map(|lines| {
                lines.lines().find_map(|line| line.strip_prefix("detected after "))
            });
            eprintln!("{context}: detected after {:?}", after.collect::<Vec<_>>());
        }
    }
}
