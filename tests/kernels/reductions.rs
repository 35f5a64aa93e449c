//! Functions of the caller, and reductions that are refused or differ between ranks. (`matrix`
//! tests the results of all reductions.)

use std::sync::atomic::{AtomicUsize, Ordering};

use harness::on_ranks;
use harness::ranks::on;
use ringreduce::{Communicator, Error, FoldOrder, LocI32, ReduceOp, Reduction};

#[test]
fn large_elements_reduce_and_larger_ones_are_refused() {
    on_ranks(2, |comm| {
        let mut buf = vec![[1_u8; 4096]; 3];
        let add = |a: &[u8; 4096], b: &[u8; 4096]| std::array::from_fn(|i| a[i] + b[i]);
        comm.all_reduce_by(&mut buf, FoldOrder::Any, add).unwrap();
        assert_eq!(buf, [[2; 4096]; 3]);
        let mut buf = [[0_u64; 1024]];
        let error = comm.all_reduce_by(&mut buf, FoldOrder::Any, |a, _| *a).unwrap_err();
        assert!(error.to_string().contains("1 to 4096 bytes"), "{error}");
        let error = comm.all_reduce_by(&mut [(); 3], FoldOrder::Any, |_, _| ()).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "T", .. }), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn a_panic_in_a_function_is_an_error_everywhere() {
    for order in [FoldOrder::Any, FoldOrder::Ranks] {
        let errors = on_ranks(2, |comm| {
            let rank = comm.rank();
            let call = std::panic::AssertUnwindSafe(|| {
                comm.all_reduce_by(&mut [7_u32; 100_000], order, |a, b| {
                    assert!(rank == 1, "this function panics, and the test wants it to");
                    a + b
                })
            });
            let first = std::panic::catch_unwind(call);
            assert_eq!(first.is_err(), rank == 0);
            (comm.barrier().unwrap_err(), first.ok())
        });
        let [(broken, _), (next, Some(first))] = &errors[..] else { panic!("{errors:?}") };
        assert!(matches!(broken, Error::Broken { .. }), "{broken}");
        // Rank 1 may have completed its part of this call, as the algorithm has it.
        let lost = first.as_ref().err().unwrap_or(next);
        assert!(matches!(lost, Error::PeerLost { .. }), "{lost}");
    }
}

#[test]
fn an_undefined_reduction_is_refused_before_a_byte_moves() {
    on_ranks(2, |comm| {
        let mut floats = [1.0_f32; 8];
        let wrong = [
            (comm.all_reduce(&mut floats, ReduceOp::BitXor), "bxor of float", "sum, prod, min"),
            (comm.all_reduce(&mut floats, Reduction::premul_sum(2.0_f64)), "by a double", "sum"),
            (
                comm.all_reduce(&mut [LocI32::new(1, 1)], ReduceOp::Sum),
                "int32_loc",
                "minloc, maxloc",
            ),
            (comm.reduce_scatter_in_place(&mut floats, ReduceOp::MaxLoc), "maxloc", "avg"),
        ];
        for (result, given, expected) in wrong {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "op", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(given) && text.contains(expected), "{text}");
        }
        assert_eq!(floats, [1.0; 8]);
        // The communicator still works.
        comm.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
        assert_eq!(floats, [2.0; 8]);
    });
}

#[test]
fn ranks_whose_reductions_differ_get_a_mismatch() {
    type Call = fn(&mut Communicator) -> ringreduce::Result<()>;
    let calls: [(Call, Call); 3] = [
        (
            |comm| comm.all_reduce(&mut [1.0_f32], Reduction::premul_sum(2.0_f32)),
            |comm| comm.all_reduce(&mut [1.0_f32], Reduction::premul_sum(3.0_f32)),
        ),
        (
            |comm| comm.all_reduce(&mut [1.0_f32], Reduction::premul_sum(2.0_f32)),
            |comm| comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum),
        ),
        (
            |comm| comm.all_reduce_by(&mut [1_u8], FoldOrder::Any, u8_sum),
            |comm| comm.all_reduce_by(&mut [1_u8], FoldOrder::Any, u8_product),
        ),
    ];
    for (first, second) in calls {
        let errors = on_ranks(2, |comm| if comm.rank() == 0 { first(comm) } else { second(comm) });
        assert_mismatch(&errors);
    }
}

/// Closures of one function have the same name and differ by the place in the source.
#[test]
fn different_closures_of_one_function_are_a_mismatch() {
    for order in [FoldOrder::Any, FoldOrder::Ranks] {
        let errors = on_ranks(2, |comm| match comm.rank() {
            0 => comm.all_reduce_by(&mut [3_u8], order, |a, b| a + b),
            _ => comm.all_reduce_by(&mut [3_u8], order, |a, b| a * b),
        });
        assert_mismatch(&errors);
    }
    let errors = on_ranks(2, |comm| {
        let by: fn(&u8, &u8) -> u8 = if comm.rank() == 0 { u8_sum } else { u8_product };
        match comm.rank() {
            0 => comm.reduce_scatter_by(&[3_u8, 4], &mut [0], FoldOrder::Any, by),
            _ => comm.reduce_scatter_by(&[3_u8, 4], &mut [0], FoldOrder::Any, by),
        }
    });
    assert!(errors.iter().all(Result::is_err), "{errors:?}");
}

#[test]
fn ranks_may_pass_a_named_function_at_different_places() {
    let sums = on_ranks(2, |comm| {
        let mut buf = [3_u8];
        match comm.rank() {
            0 => comm.all_reduce_by(&mut buf, FoldOrder::Any, u8_sum),
            _ => comm.all_reduce_by(&mut buf, FoldOrder::Any, u8_sum),
        }
        .unwrap();
        buf
    });
    assert_eq!(sums, [[6], [6]]);
}

/// All calls have failed, at least one because they differ.
fn assert_mismatch(results: &[ringreduce::Result<()>]) {
    let is_mismatch = results.iter().any(|result| matches!(result, Err(Error::Mismatch { .. })));
    assert!(is_mismatch && results.iter().all(Result::is_err), "{results:?}");
}

fn u8_sum(a: &u8, b: &u8) -> u8 {
    a + b
}

fn u8_product(a: &u8, b: &u8) -> u8 {
    a * b
}

/// Without links between all pairs a call in rank order is made in pieces; this one fails after the
/// first piece.
#[test]
fn a_call_in_pieces_that_fails_leaves_its_buffer_as_it_was() {
    let ranks = Communicator::builder().all_pairs(2).retry_safe(true).local(4).unwrap();
    let count = 3 << 20;
    on(ranks, |comm| {
        let (rank, abort) = (comm.rank(), comm.monitor());
        let mut buf = vec![rank as u8 + 1; count];
        let folded = AtomicUsize::new(0);
        let error = comm.all_reduce_by(&mut buf, FoldOrder::Ranks, |a: &u8, b: &u8| {
            // Three folds for each element of the result.
            if rank == 3 && folded.fetch_add(1, Ordering::Relaxed) == count {
                abort.abort();
            }
            a + b
        });
        assert!(matches!(error, Err(Error::Aborted { by, .. }) if by.rank == 3), "{rank}");
        assert!(buf.iter().all(|&it| it == rank as u8 + 1), "{rank}");
    });
}
