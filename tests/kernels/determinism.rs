//! Deterministic calls: the bits are those of ((r0 + r1) + r2) + .. for every algorithm, length,
//! kind of memory and number of ranks.

use std::time::Duration;

use harness::on_ranks;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::{Algorithm, Collective};
use ringreduce::{CallOptions, Communicator, DataType, Error, ReduceOp, Reduction, Wire};
use ringreduce::{F8E4M3, F8E5M2, bf16, f16};

use super::floats::Float;

const SUM: ReduceOp = ReduceOp::Sum;
const LARGEST: usize = 70_001;
const COUNTS: [usize; 5] = [0, 1, 17, 1000, LARGEST];

fn deterministic() -> CallOptions {
    CallOptions::new().deterministic(true)
}

/// Values whose sum depends on the order; the length of a buffer does not change them.
fn value(rank: usize, i: usize) -> f32 {
    let mut random = SmallRng::seed_from_u64((i * 64 + rank) as u64);
    let scale = 2_f32.powi(random.random_range(-12..12));
    random.random_range(-1.0..1.0) * scale
}

/// Makes a deterministic call of every kind, in every way; each element must have the bits of
/// `fold` over the contributions in the order of ranks.
fn check<T: Float>(comm: &mut Communicator, by: Reduction, fold: fn(&[T]) -> T) {
    let (n, me) = (comm.size(), comm.rank());
    let column = |i| (0..n).map(|rank| T::of(value(rank, i).into())).collect();
    let columns: Vec<Vec<T>> = (0..LARGEST).map(column).collect();
    let folds = |ranks: usize| columns.iter().map(|of| fold(&of[..ranks])).collect();
    let want: Vec<Vec<T>> = (1..=n).map(folds).collect();
    let all = &want[n - 1];
    for count in COUNTS {
        let same = |got: &[T], want: &[T], what: &str| {
            let is_same = bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice(want);
            assert!(is_same, "{what}: {} {by} n={n} {count}", T::DTYPE);
        };
        let send: Vec<T> = columns[..count].iter().map(|of| of[me]).collect();
        for algorithm in [None, Some(Algorithm::AllPairs), Some(Algorithm::TwoShot)] {
            let options = algorithm.map_or(deterministic(), |it| deterministic().algorithm(it));
            let mut buf = send.clone();
            comm.with(options).all_reduce(&mut buf, by).unwrap();
            same(&buf, &all[..count], "all_reduce");
        }
        for (algorithm, root) in [None, Some(Algorithm::TwoShot)].map(|it| (it, count % n)) {
            let options = algorithm.map_or(deterministic(), |it| deterministic().algorithm(it));
            let mut buf = send.clone();
            comm.with(options).reduce(&mut buf, by, root).unwrap();
            if me == root {
                same(&buf, &all[..count], "reduce");
            }
        }
        let mut memory = comm.alloc::<T>(count).unwrap();
        memory.copy_from_slice(&send);
        let mut comm = comm.with(deterministic());
        comm.all_reduce(&mut memory, by).unwrap();
        same(&memory, &all[..count], "registered");
        let part = count / n;
        let mut recv = vec![T::zeroed(); part];
        comm.reduce_scatter(&send[..part * n], &mut recv, by).unwrap();
        same(&recv, &all[me * part..(me + 1) * part], "reduce_scatter");
        let counts: Vec<usize> = (0..n).map(|rank| count * (rank % 3) / (2 * n)).collect();
        let at = counts[..me].iter().sum::<usize>();
        recv.resize(counts[me], T::zeroed());
        comm.reduce_scatter_v(&send[..counts.iter().sum()], &mut recv, &counts, by).unwrap();
        same(&recv, &all[at..at + counts[me]], "reduce_scatter_v");
        if by == ReduceOp::Avg.into() {
            continue; // There is no average of a prefix.
        }
        let mut buf = send.clone();
        comm.scan(&mut buf, by).unwrap();
        same(&buf, &want[me][..count], "scan");
        buf.copy_from_slice(&send);
        comm.exscan_into(&send, &mut buf, by).unwrap();
        let before = if me == 0 { &send } else { &want[me - 1] };
        same(&buf, &before[..count], "exscan");
    }
}

/// Makes all deterministic calls on floats of one type.
pub(crate) fn every_call<T: Float>(comm: &mut Communicator) {
    check::<T>(comm, SUM.into(), |all| T::fold(SUM, all, None));
    check::<T>(comm, ReduceOp::Avg.into(), |all| T::fold(ReduceOp::Avg, all, Some(all.len())));
    check::<T>(comm, Reduction::premul_sum(T::of(0.3)), |all| T::scaled_sum(T::of(0.3), all));
}

macro_rules! worlds {
    ($($name:ident: $float:ty;)*) => {$(
        #[test]
        fn $name() {
            for n in [2, 3, 8] {
                on_ranks(n, every_call::<$float>);
            }
        }
    )*};
}

worlds! {
    f64_is_folded_in_the_order_of_ranks: f64;
    f32_is_folded_in_the_order_of_ranks: f32;
    f16_is_rounded_once: f16;
    bf16_is_rounded_once: bf16;
    f8e4m3_is_rounded_once: F8E4M3;
    f8e5m2_is_rounded_once: F8E5M2;
}

#[test]
fn a_call_that_cannot_be_deterministic_is_refused_and_the_communicator_works_on() {
    on_ranks(3, |comm| {
        let ring = deterministic().algorithm(Algorithm::Ring);
        let refused = comm.with(ring).all_reduce(&mut [1.0_f32], SUM);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        let tree = deterministic().algorithm(Algorithm::Binomial);
        let refused = comm.with(tree).reduce(&mut [1.0_f32], SUM, 0);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        comm.with(deterministic()).reduce(&mut [1.0_f32], SUM, 0).unwrap();
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
    let (bf16, blocks) = (DataType::BF16, Wire::INT8_BLOCK);
    let pairs = [
        (deterministic(), CallOptions::new()),
        (CallOptions::new().wire(bf16), CallOptions::new()),
        (CallOptions::new().wire(bf16), CallOptions::new().wire(DataType::F16)),
        (CallOptions::new().wire(blocks), CallOptions::new()),
        (CallOptions::new().wire(blocks), CallOptions::new().wire(bf16)),
        (CallOptions::new().wire(blocks), CallOptions::new().wire(Wire::F8E4M3_BLOCK)),
    ];
    for (one, other) in pairs {
        let failed = on_ranks(2, |comm: &mut Communicator| {
            comm.set_timeout(Duration::from_secs(60));
            let options = if comm.rank() == 0 { &one } else { &other };
            comm.with(options.clone()).all_reduce(&mut [1.0_f32; 100], SUM).unwrap_err()
        });
        let is_mismatch = failed.iter().any(|error| matches!(error, Error::Mismatch { .. }));
        assert!(is_mismatch, "{failed:?}");
        let text = format!("{failed:?}");
        assert!(!format!("{one:?}").contains("Blocks") || text.contains("int8-block"), "{text}");
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
