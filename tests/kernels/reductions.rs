//! Reductions that are more than a plain operation on plain numbers, over worlds of thread ranks:
//! narrow floats, values with an index, scaled sums, functions of callers; and what is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use harness::on_ranks;
use harness::ranks::on;
use ringreduce::{
    Communicator, DataType, Element, Error, F8E4M3, F8E5M2, FoldOrder, LocF32, LocF64, LocI32,
    LocI64, ReduceOp, Reduction, f16,
};

/// The same result on every rank, in every verb that reduces.
fn check<T: Element + PartialEq + std::fmt::Debug>(
    n: usize,
    count: usize,
    by: Reduction,
    input: impl Fn(usize, usize) -> T + Sync,
    expected: impl Fn(usize) -> T + Sync,
) {
    let context = format!("{} {by} n={n} count={count}", T::DTYPE);
    on_ranks(n, |comm| {
        let rank = comm.rank();
        let mine: Vec<T> = (0..count).map(|i| input(rank, i)).collect();
        let want: Vec<T> = (0..count).map(&expected).collect();
        let mut buf = mine.clone();
        comm.all_reduce(&mut buf, by).unwrap();
        assert_eq!(buf, want, "all_reduce {context}");
        let mut apart = vec![T::zeroed(); count];
        comm.all_reduce_into(&mine, &mut apart, by).unwrap();
        assert_eq!(apart, want, "all_reduce_into {context}");

        let send: Vec<T> = (0..n * count).map(|i| input(rank, i)).collect();
        let part = rank * count..(rank + 1) * count;
        let want: Vec<T> = part.clone().map(&expected).collect();
        comm.reduce_scatter(&send, &mut apart, by).unwrap();
        assert_eq!(apart, want, "reduce_scatter {context}");
        let mut buf = send.clone();
        comm.reduce_scatter_in_place(&mut buf, by).unwrap();
        assert_eq!(buf[part], want, "reduce_scatter_in_place {context}");
    });
}

const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];
const COUNTS: [usize; 4] = [0, 1, 7, 1000];

fn each_world(check: impl Fn(usize, usize)) {
    for n in WORLDS {
        COUNTS.into_iter().for_each(|count| check(n, count));
    }
}

macro_rules! small_floats {
    ($($name:ident: $float:ty;)*) => {$(
        /// Sums and products of a few ones and twos are exact, whatever the order.
        #[test]
        fn $name() {
            let number = |x: usize| <$float>::from_f32(x as f32);
            each_world(|n, count| {
                let one = |rank: usize, i: usize| (rank + i).is_multiple_of(3);
                let ones = |i| (0..n).filter(|&rank| one(rank, i)).count();
                let value = |rank, i| number(usize::from(one(rank, i)));
                check(n, count, ReduceOp::Sum.into(), value, |i| number(ones(i)));
                let all = |_, i: usize| number(i % 5);
                check(n, count, ReduceOp::Avg.into(), |_, _| number(1), |_| number(1));
                check(n, count, ReduceOp::Max.into(), all, |i| number(i % 5));
                check(n, count, Reduction::premul_sum(number(2)), value, |i| number(2 * ones(i)));
                let two = |rank, i| number(1 + usize::from(one(rank, i)));
                check(n, count, ReduceOp::Prod.into(), two, |i| number(1 << ones(i)));
                check(n, count, ReduceOp::LogicalOr.into(), value, |i| number(ones(i).min(1)));
            });
        }
    )*};
}

small_floats! {
    f8e4m3: F8E4M3;
    f8e5m2: F8E5M2;
    halves: f16;
}

macro_rules! located {
    ($($name:ident: $loc:ident;)*) => {$(
        /// Every rank's value with its rank; ties are many.
        #[test]
        fn $name() {
            let value = |rank: usize, i: usize| ((rank * 7 + i * 3) % 4) as i8;
            each_world(|n, count| {
                let pair =
                    |rank: usize, i| $loc::new(value(rank, i).into(), rank.try_into().unwrap());
                let best = |i, sign: i8| {
                    (0..n).min_by_key(|&rank| (sign * value(rank, i), rank)).unwrap()
                };
                check(n, count, ReduceOp::MinLoc.into(), pair, |i| pair(best(i, 1), i));
                check(n, count, ReduceOp::MaxLoc.into(), pair, |i| pair(best(i, -1), i));
            });
        }
    )*};
}

located! {
    loc_f32: LocF32;
    loc_f64: LocF64;
    loc_i32: LocI32;
    loc_i64: LocI64;
}

#[test]
fn premul_sum_multiplies_every_contribution_once() {
    each_world(|n, count| {
        let value = |rank: usize, i: usize| ((rank + 1) * (i + 1)) as f64;
        let sum = |i| (0..n).map(|rank| value(rank, i)).sum::<f64>();
        check(n, count, Reduction::premul_sum(0.25), value, |i| 0.25 * sum(i));
        check(
            n,
            count,
            Reduction::premul_sum(-3_i16),
            |rank, i| (rank + i) as i16,
            |i| (0..n).fold(0, |sum: i16, rank| sum.wrapping_add(-3 * (rank + i) as i16)),
        );
    });
}

/// A matrix [[a, b], [c, d]], whose product is associative and not commutative.
type Matrix = [u32; 4];

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let cell = |row: usize, column: usize| {
        let terms = (0..2).map(|k| a[2 * row + k].wrapping_mul(b[2 * k + column]));
        terms.fold(0, u32::wrapping_add)
    };
    [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)]
}

fn matrix(rank: usize, i: usize) -> Matrix {
    let (rank, i) = (rank as u32, i as u32);
    [rank + 1, i, rank * i + 2, 3]
}

#[test]
fn functions_that_do_not_commute_are_folded_in_the_order_of_ranks() {
    // More than one piece is gathered, too.
    for (n, count) in WORLDS.into_iter().flat_map(|n| [0, 1, 7, 10_000].map(|count| (n, count))) {
        let all = |i| (1..n).fold(matrix(0, i), |left, rank| product(&left, &matrix(rank, i)));
        on_ranks(n, |comm| {
            let rank = comm.rank();
            let mut buf: Vec<Matrix> = (0..count).map(|i| matrix(rank, i)).collect();
            comm.all_reduce_by(&mut buf, FoldOrder::Ranks, product).unwrap();
            assert_eq!(buf, (0..count).map(all).collect::<Vec<_>>(), "n={n} count={count}");
            let count = count.min(100);
            let send: Vec<Matrix> = (0..n * count).map(|i| matrix(rank, i)).collect();
            let mut recv = vec![Matrix::default(); count];
            comm.reduce_scatter_by(&send, &mut recv, FoldOrder::Ranks, product).unwrap();
            let want: Vec<Matrix> = (rank * count..(rank + 1) * count).map(all).collect();
            assert_eq!(recv, want, "n={n} count={count}");
        });
    }
}

/// 24 bytes, of which slots and scratch hold no whole number.
#[derive(Clone, Copy, Debug, PartialEq, Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Span {
    low: i64,
    high: i64,
    sum: i64,
}

#[test]
fn functions_over_types_of_the_callers() {
    let span = |rank: usize, i: usize| {
        let value = ((rank * 37 + i * 11) % 101) as i64;
        Span { low: value, high: value, sum: value }
    };
    let join = |a: &Span, b: &Span| Span {
        low: a.low.min(b.low),
        high: a.high.max(b.high),
        sum: a.sum + b.sum,
    };
    for (n, count) in WORLDS.into_iter().flat_map(|n| [0, 1, 7, 30_000].map(|count| (n, count))) {
        let all = |i| (1..n).fold(span(0, i), |left, rank| join(&left, &span(rank, i)));
        on_ranks(n, |comm| {
            let rank = comm.rank();
            let mut buf: Vec<Span> = (0..count).map(|i| span(rank, i)).collect();
            comm.all_reduce_by(&mut buf, FoldOrder::Any, join).unwrap();
            assert_eq!(buf, (0..count).map(all).collect::<Vec<_>>(), "n={n} count={count}");
            let count = count.min(1000);
            let send: Vec<Span> = (0..n * count).map(|i| span(rank, i)).collect();
            let mut recv = vec![span(0, 0); count];
            comm.reduce_scatter_by(&send, &mut recv, FoldOrder::Any, join).unwrap();
            let want: Vec<Span> = (rank * count..(rank + 1) * count).map(all).collect();
            assert_eq!(recv, want, "n={n} count={count}");
        });
    }
}

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
        // Whether it had all that it needs before depends on the algorithm.
        let lost = first.as_ref().err().unwrap_or(next);
        assert!(matches!(lost, Error::PeerLost { .. }), "{lost}");
    }
}

#[test]
fn what_is_not_defined_is_refused_before_anything_moves() {
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
        // Nothing happened, so everything goes on.
        comm.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
        assert_eq!(floats, [2.0; 8]);
    });
}

#[test]
fn ranks_that_reduce_differently_are_told() {
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
        let told = errors.iter().filter(|e| matches!(e, Err(Error::Mismatch { .. }))).count();
        assert!(told > 0 && errors.iter().all(Result::is_err), "{errors:?}");
    }
}

/// Closures of one function have one name: only the places where they are passed differ.
#[test]
fn closures_of_one_function_are_told_apart() {
    for order in [FoldOrder::Any, FoldOrder::Ranks] {
        let errors = on_ranks(2, |comm| match comm.rank() {
            0 => comm.all_reduce_by(&mut [3_u8], order, |a, b| a + b),
            _ => comm.all_reduce_by(&mut [3_u8], order, |a, b| a * b),
        });
        let told = errors.iter().filter(|e| matches!(e, Err(Error::Mismatch { .. }))).count();
        assert!(told > 0 && errors.iter().all(Result::is_err), "{errors:?}");
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

/// A function with a name may be passed at other places.
#[test]
fn a_function_is_the_same_wherever_it_is_passed() {
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

fn u8_sum(a: &u8, b: &u8) -> u8 {
    a + b
}

fn u8_product(a: &u8, b: &u8) -> u8 {
    a * b
}

/// Elements of every type are moved, whether they reduce or not.
#[test]
fn what_is_not_reduced_only_needs_a_size() {
    on_ranks(3, |comm| {
        let mine = [LocF64::new(f64::from(comm.rank() as u32), 1)];
        let mut all = [LocF64::default(); 3];
        comm.all_gather(&mine, &mut all).unwrap();
        assert_eq!(all.map(|loc| loc.value), [0.0, 1.0, 2.0]);
        comm.broadcast(&mut all, 1).unwrap();
        assert_eq!(DataType::LocF64.size(), 16);
    });
}

/// Where a rank's result is of one contribution, that counts as the operation says too.
#[test]
fn a_contribution_alone_counts_as_any_other() {
    let results = on_ranks(3, |comm| {
        let (mut scan, mut exscan, mut scaled) = ([2_u32], [7_u32], [2.0_f32]);
        comm.scan(&mut scan, ReduceOp::LogicalXor).unwrap();
        comm.exscan_into(&[2_u32], &mut exscan, ReduceOp::LogicalXor).unwrap();
        comm.scan(&mut scaled, Reduction::premul_sum(3.0_f32)).unwrap();
        (scan, exscan, scaled)
    });
    assert_eq!(results, [([1], [7], [6.0]), ([0], [1], [12.0]), ([1], [0], [18.0])]);
}

/// A call in the order of ranks is made in pieces where ranks have not all links, and fails here
/// after the first of them.
#[test]
fn a_call_in_pieces_that_fails_leaves_its_buffer_as_it_was() {
    let ranks = Communicator::builder().all_pairs(2).retry_safe(true).local(4).unwrap();
    let count = 3 << 20;
    on(ranks, |comm| {
        let (rank, abort) = (comm.rank(), comm.abort_handle());
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
