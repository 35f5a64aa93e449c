//! A search for violations of the bounds in docs/numerics.md for wide sums and narrow wire types:
//! random contributions of many magnitudes are compared with sums in f64, which are exact or nearly
//! so. (`adversarial` and `matrix` have the bounds of all other sums.)

use harness::ranks::on;
use harness::{on_ranks, share};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringreduce::schedule::Algorithm;
use ringreduce::{CallOptions, Communicator, DataType, F8E4M3, F8E5M2, ReduceOp, Reduction};
use ringreduce::{Wire, bf16, f16, wire_error};

use super::floats::{Float, all_reduce};
use super::matrix::table::Walk;

const SUM: ReduceOp = ReduceOp::Sum;
const COUNT: usize = 3000;

/// The contributions of all ranks; sums of up to 64 ranks are in range of every type.
fn inputs<T: Float>(n: usize, seed: u64) -> Vec<Vec<T>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut one = |_| {
        let scale = 2_f64.powi(random.random_range(-8..3));
        T::of(random.random_range(-1.0..1.0) * scale)
    };
    (0..n).map(|_| (0..COUNT).map(&mut one).collect()).collect()
}

/// The exact sum at a position, and the sum of magnitudes.
fn exact<T: Float>(inputs: &[Vec<T>], i: usize) -> (f64, f64) {
    let all = || inputs.iter().map(|of| of[i].wide());
    (all().sum(), all().map(f64::abs).sum())
}

/// A wide sum is rounded once, apart from the loss of f32.
fn wide<T: Float>(n: usize, options: &CallOptions) {
    let inputs = inputs::<T>(n, 7);
    let got = all_reduce(&inputs, SUM.into(), options).unwrap();
    for (i, got) in got.into_iter().enumerate() {
        let (sum, magnitude) = exact(&inputs, i);
        let bound = sum.abs() * T::UNIT + T::LEAST / 2.0 + magnitude * n as f64 * 2_f64.powi(-23);
        assert!((got.wide() - sum).abs() <= bound, "{}: {} for {sum}", T::DTYPE, got.wide());
    }
}

#[test]
fn wide_sums_of_many_ranks_are_rounded_once() {
    let options = CallOptions::new().wide(true);
    let all: [fn(usize, &CallOptions); 4] =
        [wide::<f16>, wide::<bf16>, wide::<F8E4M3>, wide::<F8E5M2>];
    for n in [2, 9] {
        all.iter().for_each(|each| each(n, &options));
    }
    share::of(&all, 4).for_each(|each| each(64, &options));
}

/// Calls of several pieces, the last one shorter; with and without a block for each rank.
#[test]
fn wide_calls_of_several_pieces_are_right_in_every_form() {
    let count = 700_001;
    on_ranks(3, |comm| {
        let mut comm = comm.with(CallOptions::new().wide(true));
        Walk::new(&mut comm).chosen::<bf16>(&[0, count]);
        let (send, part) = (vec![bf16::ONE; 3 * count], 2 * count + 1);
        // The first block takes more pieces than the last one, and one block is empty.
        let counts = [part, 0, count - 1];
        let mut recv = vec![bf16::ZERO; counts[comm.rank()]];
        comm.reduce_scatter_v(&send, &mut recv, &counts, SUM).unwrap();
        assert!(recv.iter().all(|it| it.to_f32() == 3.0));
        // The address of the buffer has any alignment.
        let mut bytes = vec![0; 2 * count + 1];
        bytes[1..].copy_from_slice(bytemuck::cast_slice(&send[..count]));
        comm.all_reduce_bytes(&mut bytes[1..], DataType::BF16, SUM).unwrap();
        assert!(bytes[1..] == *bytemuck::cast_slice::<bf16, u8>(&vec![bf16::from_f32(3.0); count]));
    });
}

#[test]
fn a_wide_sum_on_registered_memory_is_wide_with_and_without_retry_safe() {
    for retry_safe in [false, true] {
        let ranks = Communicator::builder().retry_safe(retry_safe).wide(true).local(4).unwrap();
        on(ranks, |comm| {
            // Three small numbers are lost if each is rounded into the sum by itself.
            let mine = if comm.rank() == 0 { 1.0 } else { 2_f32.powi(-9) };
            let mut plain = vec![bf16::from_f32(mine); 100_000];
            let mut registered = comm.alloc::<bf16>(100_000).unwrap();
            registered.copy_from_slice(&plain);
            comm.all_reduce(&mut plain, SUM).unwrap();
            comm.all_reduce(&mut registered, SUM).unwrap();
            let want = bf16::from_f32(1.0 + 3.0 * 2_f32.powi(-9));
            assert!(plain.iter().all(|&got| got == want), "{retry_safe}");
            assert!(registered.iter().all(|&got| got == want), "{retry_safe}");
        });
    }
}

#[test]
fn sums_with_a_narrow_wire_type_are_within_the_bound_of_wire_error() {
    for wire in Wire::ALL.into_iter().filter(|wire| wire.is_narrow()) {
        for n in (2..=9).chain([16]) {
            let inputs = inputs::<f32>(n, n as u64);
            let largest = inputs.iter().flatten().fold(0.0, |most: f32, x| most.max(x.abs()));
            let bound = wire_error(n, wire, largest.into());
            let mut worst = 0.0_f64;
            let mut made = 0;
            for algorithm in Algorithm::ALL {
                let options = CallOptions::new().wire(wire).algorithm(algorithm);
                let Some(got) = all_reduce(&inputs, SUM.into(), &options) else { continue };
                made += 1;
                for (i, got) in got.into_iter().enumerate() {
                    worst = worst.max((f64::from(got) - exact(&inputs, i).0).abs());
                }
            }
            assert!(worst <= bound && bound.is_finite(), "{wire} n={n}: {worst}, over {bound}");
            assert!(worst > 0.0 && made >= 7, "{wire} n={n}: nothing was rounded, {made}");
        }
    }
    assert!(wire_error(8, DataType::F8E4M3, 56.0).is_infinite(), "8 x 56 is at the border");
    assert!(wire_error(8, DataType::F32, 1.0).is_infinite());
    assert!(wire_error(2, Wire::INT8_BLOCK, f32::MAX.into()).is_infinite());
    assert!(wire_error(8, Wire::F8E4M3_BLOCK, 1e30).is_finite(), "a scale has the range of f32");
}

/// premul_sum multiplies before its products are rounded for the wire; other operations ignore the
/// wire type.
#[test]
fn a_wire_type_applies_to_sums_of_f32_alone() {
    on_ranks(3, |comm| {
        let mut comm = comm.with(CallOptions::new().wire(DataType::F8E4M3));
        let mut large = [4096.0_f32; 10];
        comm.all_reduce(&mut large, Reduction::premul_sum(1.0_f32 / 64.0)).unwrap();
        assert_eq!(large, [192.0; 10]);
        let mut exact = [1.001_f64; 10];
        comm.all_reduce(&mut exact, ReduceOp::Max).unwrap();
        assert_eq!(exact, [1.001; 10]);
        let mut tiny = [1e-30_f32; 10];
        comm.all_reduce(&mut tiny, ReduceOp::LogicalAnd).unwrap();
        assert_eq!(tiny, [1.0; 10]);
        let mut rooted = [2.1_f32; 10];
        comm.reduce(&mut rooted, SUM, 2).unwrap();
        assert_eq!(rooted, if comm.rank() == 2 { [6.0; 10] } else { [2.1; 10] });
        let me = comm.rank();
        let (mut upto, mut before) = ([2.1_f32; 10], [2.1_f32; 10]);
        comm.scan(&mut upto, SUM).unwrap();
        comm.exscan(&mut before, SUM).unwrap();
        assert_eq!(
            (upto, before),
            ([[2.0; 10], [4.0; 10], [6.0; 10]][me], [[2.1; 10], [2.0; 10], [4.0; 10]][me])
        );
        let mut part = vec![0.0_f32; me];
        comm.reduce_scatter_v(&[2.1; 3], &mut part, &[0, 1, 2], SUM).unwrap();
        assert_eq!(part, vec![6.0; me]);
        let mut many = [[2.1_f32; 3]; 2];
        comm.all_reduce_many(&mut many, SUM).unwrap();
        assert_eq!(many, [[6.0; 3]; 2]);
        // A group checks its calls before it makes them, which changes no buffer.
        let mut grouped = [4.0_f32; 10];
        comm.group(|g| g.all_reduce(&mut grouped, Reduction::premul_sum(0.25_f32))).unwrap();
        assert_eq!(grouped, [3.0; 10]);
    });
}
