//! Calls that read peers' memory: a rank that reads late, when the memory is its user's again, gets
//! an error and never wrong data.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use harness::barrier::Barrier;
use harness::on_ranks;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, Error};

use super::SUM;
use super::interrupt::panic_in_next_wait;

fn by_single_copy() -> CallOptions {
    CallOptions::new().algorithm(Algorithm::SingleCopy)
}

/// The root gives up while it waits for its readers, and its user writes to the buffer; then the
/// readers come.
#[test]
fn a_late_reader_gets_an_error_and_no_garbage() {
    let rewritten = Barrier::new(3);
    on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let mut buf = vec![comm.rank() as u32; 100_000];
        if comm.rank() == 0 {
            let soon = by_single_copy().timeout(Duration::from_millis(200));
            let error = comm.with(soon).broadcast(&mut buf, 0).unwrap_err();
            assert!(matches!(error, Error::Stalled { .. } | Error::Timeout { .. }), "{error}");
            drop(buf);
            rewritten.wait();
        } else {
            rewritten.wait();
            let error = comm.with(by_single_copy()).broadcast(&mut buf, 0).unwrap_err();
            assert!(!matches!(error, Error::Argument { .. }), "{error}");
        }
        assert!(matches!(comm.barrier(), Err(Error::Broken { .. })));
    });
}

/// The memory that a rank has published is its user's again after a panic, as after a failure.
#[test]
fn a_panic_in_the_call_leaves_no_memory_to_late_readers() {
    let rewritten = Barrier::new(3);
    on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let mut buf = vec![comm.rank() as u32; 100_000];
        if comm.rank() == 0 {
            panic_in_next_wait();
            let root = AssertUnwindSafe(|| comm.with(by_single_copy()).broadcast(&mut buf, 0));
            assert!(catch_unwind(root).is_err());
            buf.fill(99);
            rewritten.wait();
        } else {
            rewritten.wait();
            let error = comm.with(by_single_copy()).broadcast(&mut buf, 0).unwrap_err();
            assert!(!matches!(error, Error::Argument { .. }), "{error}");
        }
        let error = comm.barrier().unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
    });
}

/// A job owns the buffer of its call, and a panic drops it before the job's end is seen.
#[test]
fn a_job_that_panics_frees_its_buffer_after_it_has_closed() {
    /// The buffer of a job, which others may read until it is gone.
    struct Buf(Vec<u32>, Arc<[Barrier; 2]>);
    impl Drop for Buf {
        fn drop(&mut self) {
            self.0.fill(99);
            self.1.iter().for_each(|barrier| {
                barrier.wait();
            });
        }
    }
    let turns = Arc::new([Barrier::new(3), Barrier::new(3)]);
    on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let mut buf = vec![comm.rank() as u32; 100_000];
        if comm.rank() == 0 {
            let job = comm.nonblocking().start(Buf(buf, Arc::clone(&turns)), |comm, buf| {
                panic_in_next_wait();
                comm.with(by_single_copy()).broadcast(&mut buf.0, 0)
            });
            assert!(job.wait().is_err());
        } else {
            turns[0].wait();
            let done = comm.with(by_single_copy()).broadcast(&mut buf, 0);
            turns[1].wait();
            let error = done.unwrap_err();
            assert!(!matches!(error, Error::Argument { .. }), "{error}");
        }
    });
}

#[test]
fn an_aborted_call_ends_at_all_ranks_and_names_the_rank() {
    let errors = on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let mut all = vec![0_u32; 3 * 50_000];
        if comm.rank() == 0 {
            comm.monitor().abort();
        }
        comm.with(by_single_copy()).all_gather_in_place(&mut all).unwrap_err()
    });
    let all = errors.iter().all(|error| matches!(error, Error::Aborted { by, .. } if by.rank == 0));
    assert!(all, "{errors:?}");
}

/// Ranks that make different calls find out before anything is stored.
#[test]
fn calls_that_differ_change_no_buffer() {
    on_ranks(3, |comm| {
        comm.barrier().unwrap();
        let count = if comm.rank() == 2 { 999 } else { 1000 };
        let (send, mut recv) = (vec![7_u32; count], vec![5_u32; 3 * count]);
        let error = comm.with(by_single_copy()).all_gather(&send, &mut recv).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(recv.iter().all(|&it| it == 5));
    });
}

#[test]
fn calls_of_all_ways_in_turns_have_their_own_data() {
    on_ranks(4, |comm| {
        let (n, me) = (comm.size(), comm.rank());
        for round in 0..50 {
            let len = [1, 700, 40_000][round % 3];
            let mine = (round * n + me) as u32;
            let mut parts: Vec<u32> = (0..n * len).map(|at| mine * 8 + (at / len) as u32).collect();
            comm.with(by_single_copy()).all_to_all_in_place(&mut parts).unwrap();
            let from = |at: usize| ((round * n + at / len) * 8 + me) as u32;
            assert!(parts.iter().enumerate().all(|(at, &it)| it == from(at)), "round {round}");
            let mut sum = vec![1_u32; len];
            let staged = CallOptions::new().algorithm(Algorithm::Staged);
            comm.with(staged).all_reduce(&mut sum, SUM).unwrap();
            assert!(sum.iter().all(|&it| it as usize == n), "round {round}");
            let root = round % n;
            let mut buf = vec![mine; len];
            comm.with(by_single_copy()).broadcast(&mut buf, root).unwrap();
            assert!(buf.iter().all(|&it| it as usize == round * n + root), "round {round}");
        }
    });
}

/// Where a call would overwrite what others read, or a buffer lies in several pieces, the ranks
/// make it over stages, and the next ones by single copy again.
#[test]
fn calls_whose_memory_cannot_be_shown_are_made_all_the_same() {
    on_ranks(3, |comm| {
        let (n, me) = (comm.size(), comm.rank());
        for round in 0..30 {
            let len = [2, 700, 40_000][round % 3];
            let mut comm = comm.with(by_single_copy());
            let mut parts = [vec![1_u32; len], vec![me as u32; len / 2], vec![3; len + 1]];
            comm.all_reduce_many(&mut parts, SUM).unwrap();
            for (part, each) in parts.iter().zip([1, (0..n).sum::<usize>() / n, 3]) {
                assert!(part.iter().all(|&it| it as usize == n * each), "round {round}");
            }
            let mut all: Vec<u32> = (0..n * len).map(|at| (round + at / len) as u32).collect();
            comm.reduce_scatter_in_place(&mut all, SUM).unwrap();
            let part = &all[me * len..(me + 1) * len];
            assert!(part.iter().all(|&it| it as usize == n * (round + me)), "round {round}");
            let (send, mut recv) = (vec![(me + round) as u32; len], vec![0; len]);
            comm.all_reduce_into(&send, &mut recv, SUM).unwrap();
            let sum = (0..n).map(|rank| rank + round).sum::<usize>();
            assert!(recv.iter().all(|&it| it as usize == sum), "round {round}");
            assert!(send.iter().all(|&it| it as usize == me + round), "round {round}");
        }
    });
}

#[test]
fn it_is_a_candidate_of_threads() {
    let is_candidate = |comm: &mut Communicator| {
        let explained = comm.explain(Collective::AllGather, 10_000, DataType::F32).unwrap();
        assert_eq!(explained.no_single_copy, None);
        explained.candidates.iter().any(|one| one.algorithm == Algorithm::SingleCopy)
    };
    on_ranks(2, |comm| {
        assert!(is_candidate(comm));
        let mut twin = comm.duplicate().unwrap();
        assert!(is_candidate(&mut twin));
    });
}
