//! Options of single calls: an algorithm that can't make a collective is refused, and is no matter
//! for what has none.

use std::sync::Barrier;
use std::time::Duration;

use harness::ranks::{PerRank, on_ranks};
use ringreduce::schedule::{Collective, Ring};
use ringreduce::{
    Algorithm, CallOptions, Communicator, DataType, Error, ReduceOp, Reduction, Result,
};

const SUM: ReduceOp = ReduceOp::Sum;

fn by(algorithm: Algorithm) -> CallOptions {
    CallOptions::new().algorithm(algorithm)
}

/// The error of an algorithm that can't make `call`.
fn is_refused(result: Result<()>, call: &str, algorithm: Algorithm) {
    let text = result.unwrap_err().to_string();
    let start = format!("{call}: algorithm is {algorithm}, expected one that can make this call");
    assert!(text.starts_with(&start), "{text}");
}

/// Messages, and calls that are made of several.
fn without_an_algorithm(comm: &mut Communicator, algorithm: Algorithm) {
    let (rank, n) = (comm.rank(), comm.size());
    let (next, before, me) = ((rank + 1) % n, (rank + n - 1) % n, rank as u32);
    let (mine, mut theirs) = ([me], [9]);
    let mut comm = comm.with(by(algorithm));
    comm.send_recv(&mine, next, &mut theirs, before).unwrap();
    assert_eq!(theirs, [before as u32]);
    if rank == 0 {
        comm.send(&[5_u8], 1).unwrap();
    } else if rank == 1 {
        comm.recv(&mut [0_u8], 0).unwrap();
    }
    comm.group(|g| {
        g.recv(&mut theirs, next)?;
        g.send(&mine, before)
    })
    .unwrap();
    assert_eq!(theirs, [next as u32]);
    let mut twin = comm.duplicate().unwrap();
    twin.all_to_all(&vec![me; n], &mut vec![0; n]).unwrap();
    assert!(comm.split(Some(0), 0).unwrap().is_some());
    let mut memory = comm.alloc::<f32>(100).unwrap();
    memory.fill(1.0);
    drop(comm.register(&mut vec![1.0_f32; 5000]).unwrap());
}

#[test]
fn what_has_no_algorithm_goes_as_always() {
    let end = Barrier::new(3);
    on_ranks(3, |comm| {
        for algorithm in Algorithm::ALL {
            without_an_algorithm(comm, algorithm);
        }
        // The options hold: who waits does so as long as they say, and says what for.
        let short = Duration::from_millis(20);
        let options = by(Algorithm::Bruck).timeout(short).tag("halo");
        if comm.rank() == 0 {
            let error = comm.with(options).recv(&mut [0_u8], 1).unwrap_err();
            assert!(matches!(error, Error::Timeout { after, .. } if after == short), "{error}");
            assert!(error.to_string().contains("\"halo\""), "{error}");
        }
        end.wait(); // nobody goes, which would be another error
    });
}

#[test]
fn a_collective_that_an_algorithm_can_not_make_is_refused() {
    on_ranks(3, |comm| {
        let pairs = by(Algorithm::AllPairs);
        for algorithm in Algorithm::ALL {
            let makes = algorithm.makes(Collective::AllGather, &Ring::natural(3));
            let done = comm.with(by(algorithm)).all_gather(&[1_u8], &mut [0; 3]);
            if makes {
                done.unwrap();
            } else {
                is_refused(done, "all_gather", algorithm);
            }
        }
        // The uneven forms go by the ring's schedules; those that all pairs have too by theirs.
        let (me, mut all) = (comm.rank(), [0_u8; 3]);
        comm.with(pairs.clone())
            .all_gather_v(&[7; 3][..[2, 0, 1][me]], &mut all, &[2, 0, 1])
            .unwrap();
        assert_eq!(all, [7; 3]);
        let bruck = comm.with(by(Algorithm::Bruck)).all_gather_v(&[1], &mut all, &[1; 3]);
        is_refused(bruck, "all_gather_v", Algorithm::Bruck);
        let done = comm.with(pairs.clone()).all_to_all_v(&[1; 3], &[1; 3], &mut all, &[1; 3]);
        is_refused(done, "all_to_all_v", Algorithm::AllPairs);
        comm.with(by(Algorithm::Ring)).gather_v(&[1], &mut all, &[1; 3], 0).unwrap();
        comm.all_gather_v(&[1], &mut all, &[1; 3]).unwrap();
        assert_eq!(all, [1; 3]);
        let text = comm.with(pairs).explain(Collective::Scan, 1, DataType::F32).unwrap_err();
        assert!(text.to_string().contains("algorithm is all_pairs"), "{text}");
    });
}

/// A group is refused as a whole: no message of it has gone before a collective is found to be one
/// that can't be made.
#[test]
fn a_group_is_refused_before_a_byte_moves() {
    on_ranks(3, |comm| {
        let (me, mut buf, mut theirs) = (comm.rank(), [1_u32], [9_u32]);
        let (next, before) = ((me + 1) % 3, (me + 2) % 3);
        for algorithm in [Algorithm::TwoShot, Algorithm::RecursiveDoubling] {
            let refused = comm.with(by(algorithm)).group(|g| {
                g.send_recv(&[7_u32], next, &mut theirs, before)?;
                g.scan(&mut buf, SUM)
            });
            is_refused(refused, "scan", algorithm);
        }
        let strict = CallOptions::new().deterministic(true);
        let refused = comm.with(strict).group(|g| {
            g.send_recv(&[7_u32], next, &mut theirs, before)?;
            g.reduce(&mut buf, SUM, 0)
        });
        assert!(refused.unwrap_err().to_string().contains("deterministic is on"));
        assert_eq!((buf, theirs), ([1], [9]));
        // Had one gone, this would not be what comes.
        comm.send_recv(&[me as u8], next, &mut [0], before).unwrap();
    });
}

/// What travels as another type is not rounded, nor scaled, while its arguments are checked.
#[test]
fn a_group_leaves_buffers_alone_until_it_is_carried_out() {
    on_ranks(2, |comm| {
        let options = CallOptions::new().wire(DataType::BF16);
        let third = 1.0_f32 / 3.0;
        let (mut buf, mut other) = ([third], [0_u8]);
        let refused = comm.with(options.clone()).group(|g| {
            g.all_reduce(&mut buf, SUM)?;
            g.broadcast(&mut other, 2)
        });
        assert!(refused.is_err() && buf == [third], "{buf:?}");
        let (mut grouped, mut alone) = ([3.0_f32], [3.0_f32]);
        let scaled = Reduction::premul_sum(0.5_f32);
        let mut comm = comm.with(options);
        comm.group(|g| g.all_reduce(&mut grouped, scaled)).unwrap();
        comm.all_reduce(&mut alone, scaled).unwrap();
        assert_eq!((grouped, alone), ([3.0], [3.0]));
    });
}

/// In a world of one a reduction is what it makes of one contribution, by whatever algorithm.
#[test]
fn alone_every_algorithm_reduces() {
    let PerRank(mut comms) = PerRank::new(1);
    for algorithm in Algorithm::ALL {
        let mut comm = comms[0].with(by(algorithm).deterministic(true));
        let mut buf = [2.0_f32];
        comm.reduce(&mut buf, SUM, 0).unwrap();
        comm.group(|g| g.reduce(&mut buf, SUM, 0)).unwrap();
        assert_eq!(buf, [2.0]);
    }
}
