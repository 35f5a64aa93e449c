//! Deterministic calls: the bits are those of ((r0 + r1) + r2) + .. for every algorithm, length,
//! kind of memory and number of ranks.

use std::time::Duration;

use harness::on_ranks;
use harness::ranks::on;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::{Algorithm, Collective};
use ringreduce::{
    CallOptions, Communicator, DataType, Element, Error, FoldOrder, ReduceOp, Reduction,
};
use ringreduce::{F8E4M3, bf16, f16};

const SUM: ReduceOp = ReduceOp::Sum;
const COUNTS: [usize; 5] = [0, 1, 17, 1000, 70_001];

fn deterministic() -> CallOptions {
    CallOptions::new().deterministic(true)
}

/// Values whose sum depends on the order; the length of a buffer does not change them.
fn value(rank: usize, i: usize) -> f32 {
    let mut random = SmallRng::seed_from_u64((i * 64 + rank) as u64);
    let scale = 2_f32.powi(random.random_range(-12..12));
    random.random_range(-1.0..1.0) * scale
}

fn values<T>(rank: usize, count: usize, of: impl Fn(f32) -> T) -> Vec<T> {
    (0..count).map(|i| of(value(rank, i))).collect()
}

/// Makes a deterministic all-reduce in every way; each must give the bits of `want`.
fn check<T: Element>(n: usize, of: impl Fn(f32) -> T + Sync, by: Reduction, want: &[T]) {
    let algorithms = [None, Some(Algorithm::AllPairs), Some(Algorithm::TwoShot)];
    on_ranks(n, |comm| {
        let same = |got: &[T], what: &str| {
            let bytes = |it: &[T]| bytemuck::cast_slice::<T, u8>(it).to_vec();
            let len = got.len();
            assert!(bytes(got) == bytes(&want[..len]), "{what}: {} {by} n={n} {len}", T::DTYPE);
        };
        let mine = values(comm.rank(), want.len(), &of);
        for count in COUNTS {
            for algorithm in algorithms {
                let options = algorithm.map_or(deterministic(), |it| deterministic().algorithm(it));
                let mut buf = mine[..count].to_vec();
                comm.with(options).all_reduce(&mut buf, by).unwrap();
                same(&buf, "all_reduce");
            }
            let mut memory = comm.alloc::<T>(count).unwrap();
            memory.copy_from_slice(&mine[..count]);
            comm.with(deterministic()).all_reduce(&mut memory, by).unwrap();
            same(&memory, "registered");
            let part = count / n;
            let mut recv = vec![T::zeroed(); part];
            let send = &mine[..part * n];
            comm.with(deterministic()).reduce_scatter(send, &mut recv, by).unwrap();
            let mut parts = vec![T::zeroed(); part * n];
            comm.all_gather(&recv, &mut parts).unwrap();
            same(&parts, "reduce_scatter");
        }
    });
}

fn largest() -> usize {
    COUNTS.into_iter().max().unwrap()
}

#[test]
fn f32_is_folded_in_the_order_of_ranks() {
    for n in 2..=9 {
        let all: Vec<_> = (0..n).map(|rank| values(rank, largest(), |x| x)).collect();
        let fold = |i: usize| all.iter().map(|of| of[i]).reduce(|a, b| a + b).unwrap();
        let want: Vec<f32> = (0..largest()).map(fold).collect();
        check(n, |x| x, SUM.into(), &want);
    }
}

macro_rules! narrow {
    ($($name:ident: $float:ty;)*) => {$(
        #[test]
        fn $name() {
            for n in [2, 3, 5, 8] {
                let of = <$float>::from_f32;
                let all: Vec<_> = (0..n).map(|rank| values(rank, largest(), of)).collect();
                let scalar = of(0.3);
                let fold = |i: usize, by: f32| {
                    let all = all.iter().map(|of| of[i].to_f32() * by);
                    all.reduce(|a, b| a + b).unwrap()
                };
                let sums: Vec<_> = (0..largest()).map(|i| of(fold(i, 1.0))).collect();
                check(n, of, SUM.into(), &sums);
                let averages: Vec<_> =
                    (0..largest()).map(|i| of(fold(i, 1.0) / n as f32)).collect();
                check(n, of, ReduceOp::Avg.into(), &averages);
                let scaled: Vec<_> =
                    (0..largest()).map(|i| of(fold(i, scalar.to_f32()))).collect();
                check(n, of, Reduction::premul_sum(scalar), &scaled);
            }
        }
    )*};
}

narrow! {
    f16_is_rounded_once: f16;
    bf16_is_rounded_once: bf16;
    f8e4m3_is_rounded_once: F8E4M3;
}

/// Makes prefixes and calls over uneven blocks: each element is the same fold.
fn check_prefixes_and_blocks<T: Element>(
    n: usize,
    of: impl Fn(f32) -> T,
    back: fn(T) -> f32,
    scale: Option<T>,
) {
    let by = scale.map_or(SUM.into(), Reduction::premul_sum);
    let scale = scale.map_or(1.0, back);
    let all: Vec<Vec<T>> = (0..n).map(|rank| values(rank, largest(), &of)).collect();
    let fold = |ranks: usize, i: usize| {
        let scaled = all[..ranks].iter().map(|of| back(of[i]) * scale);
        of(scaled.reduce(|a, b| a + b).unwrap())
    };
    let folds = |ranks, places: std::ops::Range<usize>| -> Vec<T> {
        if ranks == 0 { all[0][places].to_vec() } else { places.map(|i| fold(ranks, i)).collect() }
    };
    let want: Vec<Vec<T>> = (0..=n).map(|ranks| folds(ranks, 0..largest())).collect();
    on_ranks(n, |comm| {
        let me = comm.rank();
        let mut comm = comm.with(deterministic());
        for count in COUNTS {
            let same = |got: &[T], want: &[T], what: &str| {
                let bytes = |it: &[T]| bytemuck::cast_slice::<T, u8>(it).to_vec();
                assert!(bytes(got) == bytes(want), "{what}: {} {by} n={n} {count}", T::DTYPE);
            };
            let send = &all[me][..count];
            let mut buf = send.to_vec();
            comm.scan(&mut buf, by).unwrap();
            same(&buf, &want[me + 1][..count], "scan");
            buf.copy_from_slice(send);
            comm.exscan_into(send, &mut buf, by).unwrap();
            same(&buf, &want[me][..count], "exscan");
            let counts: Vec<usize> = (0..n).map(|rank| count * (rank % 3) / (2 * n)).collect();
            let at = counts[..me].iter().sum::<usize>();
            let mut part = vec![T::zeroed(); counts[me]];
            let send = &send[..counts.iter().sum()];
            comm.reduce_scatter_v(send, &mut part, &counts, by).unwrap();
            same(&part, &want[n][at..at + counts[me]], "reduce_scatter_v");
        }
    });
}

#[test]
fn prefixes_and_uneven_blocks_are_folded_in_the_order_of_ranks() {
    for n in [2, 3, 5] {
        check_prefixes_and_blocks(n, |x| x, |x| x, None);
        check_prefixes_and_blocks(n, |x| x, |x| x, Some(0.3));
        check_prefixes_and_blocks(n, f16::from_f32, f16::to_f32, None);
        check_prefixes_and_blocks(n, bf16::from_f32, bf16::to_f32, None);
        check_prefixes_and_blocks(n, bf16::from_f32, bf16::to_f32, Some(bf16::from_f32(0.3)));
        check_prefixes_and_blocks(n, F8E4M3::from_f32, F8E4M3::to_f32, None);
    }
}

#[test]
fn a_call_that_cannot_be_deterministic_is_refused_and_the_communicator_works_on() {
    on_ranks(3, |comm| {
        let ring = deterministic().algorithm(Algorithm::Ring);
        let refused = comm.with(ring).all_reduce(&mut [1.0_f32], SUM);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        let refused = comm.with(deterministic()).reduce(&mut [1.0_f32], SUM, 0);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        let (send, mut part) = ([1.0_f32; 6], vec![0.0_f32; comm.rank() + 1]);
        let ring = deterministic().algorithm(Algorithm::Ring);
        let refused = comm.with(ring).reduce_scatter_v(&send, &mut part, &[1, 2, 3], SUM);
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with("reduce_scatter_v: ") && text.contains("all_pairs"), "{text}");
        let wire = CallOptions::new().wire(DataType::F64);
        let refused = comm.with(wire).all_reduce(&mut [1.0_f32], SUM);
        assert!(matches!(refused, Err(Error::Argument { argument: "wire", .. })), "{refused:?}");
        let wire = CallOptions::new().wire(DataType::I8);
        let refused = comm.with(wire).scan(&mut [1_i64], SUM);
        assert!(matches!(refused, Err(Error::Argument { argument: "wire", .. })), "{refused:?}");
        comm.with(deterministic()).scan(&mut [1.0_f32], SUM).unwrap();
        comm.with(deterministic()).barrier().unwrap();
        comm.with(deterministic()).broadcast(&mut [1.0_f32], 1).unwrap();
        comm.all_reduce(&mut [1.0_f32], SUM).unwrap();
    });
}

#[test]
fn a_builder_refuses_a_wire_type_that_is_not_narrower() {
    for wire in [DataType::I8, DataType::F64] {
        let refused = Communicator::builder().rank(0).size(1).wire(wire).build();
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("wire") && text.contains(wire.name()), "{text}");
    }
    let unchanged = Communicator::builder().rank(0).size(1).wire(DataType::F32).build();
    assert!(unchanged.is_ok(), "{unchanged:?}");
}

#[test]
fn ranks_whose_numeric_options_differ_get_a_mismatch() {
    let bf16 = DataType::BF16;
    let pairs = [
        (deterministic(), CallOptions::new()),
        (CallOptions::new().wire(bf16), CallOptions::new()),
        (CallOptions::new().wire(bf16), CallOptions::new().wire(DataType::F16)),
    ];
    for (one, other) in pairs {
        let failed = on_ranks(2, |comm: &mut Communicator| {
            comm.set_timeout(Duration::from_secs(60));
            let options = if comm.rank() == 0 { &one } else { &other };
            comm.with(options.clone()).all_reduce(&mut [1.0_f32; 100], SUM).unwrap_err()
        });
        let is_mismatch = failed.iter().any(|error| matches!(error, Error::Mismatch { .. }));
        assert!(is_mismatch, "{failed:?}");
    }
}

/// The first pieces are equally long, and still no byte is written.
#[test]
fn wide_calls_of_different_lengths_fail_before_a_byte_moves() {
    on_ranks(2, |comm| {
        comm.set_timeout(Duration::from_secs(60));
        let mut buf = vec![bf16::ONE; 300_000 + comm.rank()];
        let result = comm.with(CallOptions::new().wide(true)).all_reduce(&mut buf, SUM);
        assert!(result.is_err() && buf.iter().all(|&it| it == bf16::ONE), "{result:?}");
    });
}

/// The function concatenates lists of ranks: it is associative, but not commutative.
#[test]
fn functions_of_the_user_are_called_in_the_order_of_ranks() {
    for (n, most) in [(2, 2), (3, 3), (8, 8), (17, 17), (3, 2), (17, 2)] {
        let got = on(Communicator::builder().all_pairs(most).local(n).unwrap(), |comm| {
            let options = CallOptions::new().deterministic(most == 2);
            let mut comm = comm.with(options);
            let me = comm.rank() as u8 + 1;
            let alone: [u8; 18] = std::array::from_fn(|i| if i == 0 { me } else { 0 });
            let join = |a: &[u8; 18], b: &[u8; 18]| {
                let mut all = a.iter().chain(b).copied().filter(|&it| it != 0);
                std::array::from_fn(|_| all.next().unwrap_or(0))
            };
            let mut buf = vec![alone; 40];
            comm.all_reduce_by(&mut buf, FoldOrder::Ranks, join).unwrap();
            let mut part = vec![alone; 2];
            let send = vec![alone; 2 * n];
            comm.reduce_scatter_by(&send, &mut part, FoldOrder::Ranks, join).unwrap();
            buf.extend(part);
            buf
        });
        let want: [u8; 18] = std::array::from_fn(|i| if i < n { i as u8 + 1 } else { 0 });
        assert!(got.iter().flatten().all(|it| *it == want), "n={n}");
    }
}

#[test]
fn explain_obeys_the_options_of_the_call() {
    let call = Collective::AllReduce;
    on_ranks(4, |comm| {
        comm.barrier().unwrap();
        let mut explain =
            |options| comm.with(options).explain(call, 1 << 24, DataType::F32).unwrap().algorithm;
        assert!(explain(deterministic()).folds_left(call));
        assert_eq!(explain(CallOptions::new().algorithm(Algorithm::Ring)), Algorithm::Ring);
        assert!(explain(deterministic()).folds_left(call));
    });
}
