//! The promises of docs/numerics.md for whole collectives: where roundings happen, the order of the
//! fold, and equal bits at all ranks and in all runs. (`scalar` tests single elements,
//! `instruction_sets` every level of kernels.)

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::kernel::Kernel;
use ringreduce::memory::{Dst, Src};
use ringreduce::schedule::Algorithm;
use ringreduce::{CallOptions, Element, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

use super::floats;

fn random(rank: usize, count: usize) -> Vec<f32> {
    let mut random = SmallRng::seed_from_u64(rank as u64);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// Elements of a chunk: a buffer of so many for each rank is cut into chunks of this length.
fn chunk<T>() -> usize {
    (64 << 10) / size_of::<T>()
}

/// An all-reduce by an algorithm.
fn all_reduce_by<T: Element>(algorithm: Algorithm, inputs: &[Vec<T>], by: Reduction) -> Vec<T> {
    floats::all_reduce(inputs, by, &CallOptions::new().algorithm(algorithm)).unwrap()
}

/// An all-reduce on a ring.
fn all_reduce<T: Element>(inputs: &[Vec<T>], by: Reduction) -> Vec<T> {
    all_reduce_by(Algorithm::Ring, inputs, by)
}

fn fold<T: Element>(inputs: &[Vec<T>], by: Reduction) -> Vec<T> {
    let mut out = vec![T::zeroed(); inputs[0].len()];
    let sources: Vec<Src<'_>> =
        inputs.iter().map(|input| Src::from(bytemuck::cast_slice::<T, u8>(input))).collect();
    let kernel = Kernel::select(T::DTYPE, by, inputs.len()).unwrap();
    kernel.fold(true, &mut [Dst::from(bytemuck::cast_slice_mut(&mut out))], &sources);
    out
}

#[test]
fn direct_calls_fold_in_rank_order_and_round_once() {
    for n in [2, 3, 5, 8, 9] {
        let bf16s: Vec<Vec<bf16>> =
            (0..n).map(|r| random(r, 1000).into_iter().map(bf16::from_f32).collect()).collect();
        for by in [ReduceOp::Sum.into(), ReduceOp::Avg.into(), Reduction::premul_sum(bf16::ONE)] {
            assert_eq!(all_reduce_by(Algorithm::Direct, &bf16s, by), fold(&bf16s, by), "{n} {by}");
        }
    }
}

#[test]
fn a_ring_folds_each_chunk_from_the_rank_after_its_owner() {
    for n in [2, 3, 5, 8] {
        let chunk = chunk::<f32>();
        let inputs: Vec<_> = (0..n).map(|rank| random(rank, n * chunk)).collect();
        let want: Vec<f32> = (0..n * chunk)
            .map(|i| {
                let ranks = (1..=n).map(|hop| inputs[(i / chunk + hop) % n][i]);
                ranks.reduce(|left, right| left + right).unwrap()
            })
            .collect();
        let got = all_reduce(&inputs, ReduceOp::Sum.into());
        assert!(got == want, "n={n}");
        let again = all_reduce(&inputs, ReduceOp::Sum.into());
        assert!(got == again, "two runs differ, n={n}");
    }
}

macro_rules! narrow {
    ($($name:ident: $float:ty, $widen:expr;)*) => {$(
        /// A ring rounds from f32 at every hop, a fold of many sources once at the end.
        #[test]
        fn $name() {
            let widen = $widen;
            let n = 8;
            let chunk = chunk::<$float>();
            let inputs: Vec<Vec<$float>> = (0..n)
                .map(|rank| random(rank, n * chunk).into_iter().map(<$float>::from_f32).collect())
                .collect();
            let ring = all_reduce(&inputs, ReduceOp::Sum.into());
            let once = fold(&inputs, ReduceOp::Sum.into());
            let averaged = fold(&inputs, ReduceOp::Avg.into());
            for i in 0..n * chunk {
                let values = (1..=n).map(|hop| inputs[(i / chunk + hop) % n][i]);
                let want =
                    values.reduce(|a, b| <$float>::from_f32(widen(a) + widen(b))).unwrap();
                assert_eq!(ring[i].to_bits(), want.to_bits(), "ring, element {i}");
                let sum = inputs.iter().map(|input| widen(input[i])).reduce(|a, b| a + b).unwrap();
                assert_eq!(once[i].to_bits(), <$float>::from_f32(sum).to_bits(), "fold, {i}");
                let average = <$float>::from_f32(sum / n as f32);
                assert_eq!(averaged[i].to_bits(), average.to_bits(), "average, {i}");
            }
        }
    )*};
}

narrow! {
    bf16_rounds_at_every_hop_or_once: bf16, bf16::to_f32;
    f16_rounds_at_every_hop_or_once: f16, f16::to_f32;
    f8e4m3_rounds_at_every_hop_or_once: F8E4M3, F8E4M3::to_f32;
    f8e5m2_rounds_at_every_hop_or_once: F8E5M2, F8E5M2::to_f32;
}

/// The fold of 64 ranks is half a unit of the last place away from the exact sum, apart from the
/// loss of f32.
#[test]
fn a_fold_of_many_ranks_is_as_good_as_one_rounding() {
    let inputs: Vec<Vec<bf16>> = (0..64)
        .map(|rank| random(rank, 10_000).into_iter().map(bf16::from_f32).collect())
        .collect();
    for (i, got) in fold(&inputs, ReduceOp::Sum.into()).into_iter().enumerate() {
        let exact: f64 = inputs.iter().map(|input| input[i].to_f64()).sum();
        let magnitude: f64 = inputs.iter().map(|input| input[i].to_f64().abs()).sum();
        // Half a unit of 8 bits, and 64 roundings to 24 bits of partial sums.
        let bound = exact.abs() / 256.0 + 64.0 * magnitude / f64::from(1 << 24);
        assert!((got.to_f64() - exact).abs() <= bound, "element {i}: {got} for {exact}");
    }
}

#[test]
fn products_of_narrow_floats_are_rounded_on_links() {
    let (n, chunk) = (3, chunk::<f16>());
    let inputs: Vec<Vec<f16>> = (0..n)
        .map(|rank| random(rank, n * chunk).into_iter().map(f16::from_f32).collect())
        .collect();
    let scalar = f16::from_f32(0.3);
    let product = |x: f16| x.to_f32() * scalar.to_f32();
    let by = Reduction::premul_sum(scalar);
    let (ring, once) = (all_reduce(&inputs, by), fold(&inputs, by));
    for i in 0..n * chunk {
        let products = (1..=n).map(|hop| f16::from_f32(product(inputs[(i / chunk + hop) % n][i])));
        let add = |sum: f16, x: f16| f16::from_f32(sum.to_f32() + x.to_f32());
        let want = products.reduce(add).unwrap();
        assert_eq!(ring[i].to_bits(), want.to_bits(), "ring, element {i}");
        let sum = inputs.iter().map(|input| product(input[i])).reduce(|a, b| a + b).unwrap();
        assert_eq!(once[i].to_bits(), f16::from_f32(sum).to_bits(), "fold, element {i}");
    }
}

#[test]
fn products_of_wide_floats_are_never_contracted() {
    let (n, chunk) = (3, chunk::<f64>());
    let inputs: Vec<Vec<f64>> = (0..n)
        .map(|rank| random(rank, n * chunk).into_iter().map(|x| f64::from(x) / 3.0).collect())
        .collect();
    let by = Reduction::premul_sum(0.3_f64);
    let (ring, once) = (all_reduce(&inputs, by), fold(&inputs, by));
    for i in 0..n * chunk {
        let ranks = (1..=n).map(|hop| inputs[(i / chunk + hop) % n][i] * 0.3);
        assert_eq!(Some(ring[i]), ranks.reduce(|sum, x| sum + x), "ring, element {i}");
        let sum = inputs.iter().map(|input| input[i] * 0.3).reduce(|sum, x| sum + x);
        assert_eq!(Some(once[i]), sum, "fold, element {i}");
    }
}

#[test]
fn special_values_reach_every_rank() {
    let tiny = f32::from_bits(1);
    // The values of rank 0 and of the others, the operation, the result.
    let cases: [((f32, f32), ReduceOp, f32); 9] = [
        ((f32::NAN, 1.0), ReduceOp::Sum, f32::NAN),
        ((f32::NAN, 1.0), ReduceOp::Min, f32::NAN),
        ((f32::NAN, f32::INFINITY), ReduceOp::Max, f32::NAN),
        ((f32::INFINITY, f32::NEG_INFINITY), ReduceOp::Sum, f32::NAN),
        ((f32::MAX, f32::MAX), ReduceOp::Sum, f32::INFINITY),
        ((-0.0, -0.0), ReduceOp::Sum, -0.0),
        ((-0.0, 0.0), ReduceOp::Min, -0.0),
        ((-0.0, 0.0), ReduceOp::Max, 0.0),
        ((tiny, 0.0), ReduceOp::Sum, tiny),
    ];
    for ((first, others), op, want) in cases {
        for n in [2, 3] {
            let inputs: Vec<Vec<f32>> =
                (0..n).map(|rank| vec![if rank == 0 { first } else { others }; 100]).collect();
            for got in all_reduce(&inputs, op.into()) {
                let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                assert!(same, "{first} {op} {others}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn narrow_floats_overflow_as_their_type_does() {
    let three = |x: u8| vec![vec![F8E4M3::from_bits(x)]; 3];
    assert_eq!(all_reduce(&three(0x7e), ReduceOp::Sum.into())[0], F8E4M3::MAX, "no infinity");
    assert!(all_reduce(&three(0x7f), ReduceOp::Sum.into())[0].is_nan());
    let large = vec![vec![F8E5M2::from_bits(0x7c)]; 2];
    assert_eq!(
        all_reduce(&large, ReduceOp::Max.into())[0],
        F8E5M2::MAX,
        "infinity becomes the largest"
    );
    let halves = vec![vec![f16::MAX]; 2];
    assert_eq!(all_reduce(&halves, ReduceOp::Sum.into())[0], f16::INFINITY);
    // The sum of two overflows f16 but not f32, in which the last hop of a ring divides.
    assert_eq!(all_reduce(&halves, ReduceOp::Avg.into())[0], f16::MAX);
    assert_eq!(all_reduce(&vec![vec![f16::MAX]; 3], ReduceOp::Avg.into())[0], f16::INFINITY);
    assert_eq!(fold(&vec![vec![f16::MAX]; 3], ReduceOp::Avg.into())[0], f16::MAX);
}

#[test]
fn integers_wrap_and_averages_truncate() {
    assert_eq!(all_reduce(&[vec![100_i8], vec![100]], ReduceOp::Sum.into()), [-56]);
    assert_eq!(all_reduce(&[vec![-2_i32], vec![-1]], ReduceOp::Avg.into()), [-1]);
    assert_eq!(all_reduce(&[vec![u64::MAX], vec![2]], ReduceOp::Prod.into()), [u64::MAX - 1]);
    assert_eq!(all_reduce(&[vec![100_i8], vec![100]], ReduceOp::Avg.into()), [-28]);
}

#[test]
fn a_world_of_one_reduces_its_single_contribution() {
    assert_eq!(all_reduce(&[vec![5_u8]], ReduceOp::Sum.into()), [5]);
    assert_eq!(all_reduce(&[vec![5_u8]], ReduceOp::LogicalXor.into()), [1]);
    assert_eq!(all_reduce(&[vec![5.0_f64]], Reduction::premul_sum(0.5_f64)), [2.5]);
    assert_eq!(all_reduce(&[vec![-0.0_f32]], ReduceOp::Avg.into())[0].to_bits(), 1 << 31);
}
