//! Options of single calls: an algorithm that cannot make a collective is refused, and calls
//! without an algorithm ignore it.

use std::time::Duration;

use harness::barrier::Barrier;
use harness::on_ranks;
use ringreduce::schedule::{Collective, Ring};
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, Error, ReduceOp, Result, Stall};

use super::SUM;

fn by(algorithm: Algorithm) -> CallOptions {
    CallOptions::new().algorithm(algorithm)
}

/// Checks the error of an algorithm that cannot make `call`.
fn is_refused(result: Result<()>, call: &str, algorithm: Algorithm) {
    let text = result.unwrap_err().to_string();
    let start = format!("{call}: algorithm is {algorithm}, expected one that can make this call");
    assert!(text.starts_with(&start), "{text}");
}

/// Makes messages, and calls that consist of several operations.
fn calls_without_an_algorithm(comm: &mut Communicator, algorithm: Algorithm) {
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
fn calls_without_an_algorithm_ignore_that_option_and_obey_others() {
    let end = Barrier::new(3);
    on_ranks(3, |comm| {
        for algorithm in Algorithm::ALL {
            calls_without_an_algorithm(comm, algorithm);
        }
        // Timeout and tag hold for a message.
        let short = Duration::from_millis(20);
        let options = by(Algorithm::Bruck).timeout(short).tag("halo");
        if comm.rank() == 0 {
            let error = comm.with(options).recv(&mut [0_u8], 1).unwrap_err();
            assert!(matches!(error, Error::Timeout { after, .. } if after == short), "{error}");
            assert!(error.to_string().contains("\"halo\""), "{error}");
        }
        end.wait(); // A rank that leaves would be another error.
    });
}

/// A refused call was never entered, though the ranks measured speeds for it.
#[test]
fn a_rank_whose_first_call_was_refused_is_said_to_be_in_none() {
    let (refused, end) = (Barrier::new(2), Barrier::new(2));
    on_ranks(2, |comm| {
        let hosts = Algorithm::Hierarchical;
        is_refused(comm.with(by(hosts)).all_reduce(&mut [1.0_f32], SUM), "all_reduce", hosts);
        refused.wait();
        let hurried = CallOptions::new().timeout(Duration::from_millis(20));
        let error = (comm.rank() == 0)
            .then(|| comm.with(hurried).all_reduce(&mut [1.0_f32], SUM).unwrap_err());
        end.wait(); // A rank that leaves would be another error.
        let Some(error) = error else { return };
        let Error::Stalled { peer, state: Stall::NeverEntered { .. }, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(peer.rank, 1, "{error}");
    });
}

/// A peer may still be in a call that this rank has left: the rank that it waits for is late.
#[test]
fn a_message_of_a_rank_in_a_call_that_this_rank_has_made_waits_for_the_absent_rank() {
    let (timed_out, end) = (Barrier::new(2), Barrier::new(3));
    on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let rank = comm.rank();
        // Rank 2 gives its contribution to rank 0, which gives both to rank 1.
        if rank == 0 {
            timed_out.wait();
        }
        comm.with(by(Algorithm::Ring)).reduce(&mut [1_u8], SUM, 1).unwrap();
        if rank == 2 {
            let options = CallOptions::new().timeout(Duration::from_millis(20));
            // Rank 1 may not have entered the call yet, and is late itself then.
            let (peer, state) = loop {
                match comm.with(options.clone()).recv(&mut [0_u8], 1).unwrap_err() {
                    Error::Timeout { peer, .. } if peer.rank == 1 => {}
                    Error::Stalled { peer, state, .. } => break (peer.rank, state),
                    error => panic!("{error}"),
                }
            };
            let is_absent = matches!(state, Stall::NeverEntered { entered: 1, .. });
            assert!(peer == 0 && is_absent, "rank {peer}: {state:?}");
            timed_out.wait();
        }
        end.wait();
    });
}

#[test]
fn a_collective_that_the_algorithm_cannot_make_is_refused() {
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
        // Uneven blocks go by the schedules of the ring, or of all pairs where these exist.
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

#[test]
fn a_group_with_a_refused_collective_sends_no_message() {
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
        // A ring folds in another order than that of the ranks.
        let strict = by(Algorithm::Ring).deterministic(true);
        let refused = comm.with(strict).group(|g| {
            g.send_recv(&[7_u32], next, &mut theirs, before)?;
            g.reduce(&mut buf, SUM, 0)
        });
        is_refused(refused, "reduce", Algorithm::Ring);
        assert_eq!((buf, theirs), ([1], [9]));
        // A message of the group would arrive here.
        comm.send_recv(&[me as u8], next, &mut [0], before).unwrap();
    });
}

#[test]
fn every_algorithm_reduces_in_a_world_of_one() {
    let mut comms = Communicator::local(1).unwrap();
    for algorithm in Algorithm::ALL {
        let mut comm = comms[0].with(by(algorithm).deterministic(true));
        // A call that does nothing would leave the 2.
        let [mut one, mut other] = [[2_u8]; 2];
        comm.reduce(&mut one, ReduceOp::LogicalOr, 0).unwrap();
        comm.group(|g| g.reduce(&mut other, ReduceOp::LogicalOr, 0)).unwrap();
        assert_eq!([one, other], [[1]; 2], "{algorithm}");
    }
}
