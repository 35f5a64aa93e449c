//! Collectives of thread ranks over long buffers and in many runs; and ranks that call something
//! else, leave or abort. (`kernels::matrix` tests the results of every call.)

use harness::on_ranks;
use ringreduce::{Algorithm, CallOptions, DataType, Element, Error, ReduceOp, bf16, f16};

#[test]
fn calls_of_many_rounds_are_right_at_every_alignment() {
    // Chunks take more than one round (half a link is 512 KiB), and each position has its own
    // value.
    let count = (3 << 20) / 4 + 1;
    let value = |rank: usize, i: usize| (i as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 + 1);
    for n in [2, 4] {
        let want: Vec<u32> = (0..count)
            .map(|i| (0..n).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, i))))
            .collect();
        on_ranks(n, |comm| {
            let mine: Vec<u32> = (0..count).map(|i| value(comm.rank(), i)).collect();
            for offset in [0, 1, 3] {
                let mut buf = vec![0; 4 * count + offset];
                let window = &mut buf[offset..];
                window.copy_from_slice(bytemuck::cast_slice(&mine));
                comm.all_reduce_bytes(window, DataType::U32, ReduceOp::Sum).unwrap();
                assert!(window == bytemuck::cast_slice::<u32, u8>(&want), "n={n} offset={offset}");
            }
        });
    }
}

#[test]
fn every_rank_and_run_gets_the_same_bits() {
    let sum = || {
        on_ranks(5, |comm| {
            let seed = comm.rank() as f32 + 1.0;
            let mut buf: Vec<f32> = (0..9999).map(|i| (i as f32 * seed).sin() / seed).collect();
            comm.all_reduce(&mut buf, ReduceOp::Avg).unwrap();
            buf.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (first, second) = (sum(), sum());
    assert!(first.iter().chain(&second).all(|bits| *bits == first[0]));
}

#[test]
fn no_rank_leaves_a_barrier_before_all_have_entered() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let entered = AtomicUsize::new(0);
    on_ranks(6, |comm| {
        for round in 1..=50 {
            entered.fetch_add(1, Ordering::SeqCst);
            comm.barrier().unwrap();
            assert!(entered.load(Ordering::SeqCst) >= 6 * round);
        }
    });
}

#[test]
fn a_different_call_is_a_mismatch_that_names_the_peer() {
    let errors = on_ranks(2, |comm| {
        let mut buf = vec![0_f32; 100 + comm.rank()];
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err()
    });
    // The first rank that compares the calls sees the mismatch; the other may see its links close.
    assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    for (rank, error) in errors.into_iter().enumerate() {
        assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("all_reduce #1") && text.contains(&format!("rank {}", 1 - rank)));
    }
}

/// Ranks that only send need nothing of each other. One of them finds the difference in that call,
/// and the other may be in the next one by then.
#[test]
fn a_different_root_is_a_mismatch_though_no_rank_waits_for_another() {
    for algorithm in [Algorithm::Staged, Algorithm::SingleCopy] {
        for collective in ["broadcast", "scatter", "gather"] {
            if (algorithm, collective) == (Algorithm::SingleCopy, "gather") {
                continue;
            }
            let errors = on_ranks(2, |comm| {
                comm.barrier().unwrap();
                let (me, mut two) = (comm.rank(), [0_u32; 2]);
                let call = match (comm.with(CallOptions::new().algorithm(algorithm)), collective) {
                    (mut comm, "broadcast") => comm.broadcast(&mut two, me),
                    (mut comm, "scatter") => comm.scatter(&two, &mut [0], me),
                    (mut comm, _) => comm.gather(&[0], &mut two, 1 - me),
                };
                let by_links = CallOptions::new().algorithm(Algorithm::Ring);
                call.and_then(|()| comm.with(by_links).barrier()).unwrap_err()
            });
            for error in errors {
                let names_root = matches!(error, Error::Mismatch { field: "the root", .. });
                assert!(names_root, "{collective} by {algorithm}: {error}");
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_an_error_at_every_peer_and_breaks_the_communicator() {
    on_ranks(4, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            return;
        }
        let error = comm.all_reduce(&mut [1.0_f64; 10], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        let again = comm.barrier().unwrap_err();
        assert!(matches!(again, Error::Broken { .. }), "{again}");
    });
}

#[test]
fn element_types_agree_with_their_data_types() {
    fn same<T: Element>() {
        assert_eq!(size_of::<T>(), T::DTYPE.size());
        assert_eq!(T::DTYPE.name().parse(), Ok(T::DTYPE));
    }
    same::<f16>();
    same::<bf16>();
    same::<i64>();
    assert!("floaty".parse::<DataType>().unwrap_err().to_string().contains("bfloat16"));
}
