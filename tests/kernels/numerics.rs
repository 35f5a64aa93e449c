//! The order of additions on a ring, as docs/numerics.md has it. (`adversarial` has the orders of
//! other algorithms, `determinism` that of deterministic calls, `scalar` single elements.)

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::Algorithm;
use ringreduce::{CallOptions, F8E4M3, F8E5M2, ReduceOp, Reduction, bf16, f16};

use super::floats::{Float, all_reduce};

fn random<T: Float>(rank: usize, count: usize) -> Vec<T> {
    let mut random = SmallRng::seed_from_u64(rank as u64);
    (0..count).map(|_| T::of(random.random_range(-1.0..1.0))).collect()
}

/// Each chunk is folded from the rank after its owner; narrow floats and the products of premul_sum
/// are rounded at every hop.
fn check<T: Float>() {
    let (options, scalar) = (CallOptions::new().algorithm(Algorithm::Ring), T::of(0.3));
    // A buffer of so many elements for each rank is cut into chunks of this length.
    let chunk = (64 << 10) / size_of::<T>();
    for n in [2, 3, 8] {
        let inputs: Vec<Vec<T>> = (0..n).map(|rank| random(rank, n * chunk)).collect();
        let sum = (Reduction::from(ReduceOp::Sum), None);
        for (by, scale) in [sum, (Reduction::premul_sum(scalar), Some(scalar))] {
            let product = |x| scale.map_or(x, |scale| T::fold(ReduceOp::Prod, &[x, scale], None));
            let got = all_reduce(&inputs, by, &options).unwrap();
            for (i, got) in got.iter().enumerate() {
                let ranks = (1..=n).map(|hop| product(inputs[(i / chunk + hop) % n][i]));
                let add = |left, right| T::fold(ReduceOp::Sum, &[left, right], None);
                let want = ranks.reduce(add).unwrap();
                let same = bytemuck::bytes_of(got) == bytemuck::bytes_of(&want);
                assert!(same, "{} {by} n={n}, element {i}: {got:?}, not {want:?}", T::DTYPE);
            }
        }
    }
}

#[test]
fn a_ring_folds_each_chunk_from_the_rank_after_its_owner() {
    check::<f64>();
    check::<f32>();
    check::<f16>();
    check::<bf16>();
    check::<F8E4M3>();
    check::<F8E5M2>();
}
