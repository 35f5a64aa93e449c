//! A call of many buffers has the bits of a call of one.

use ringreduce::{Algorithm, CallOptions, Communicator, DataType, Error, ReduceOp, Reduction};

use super::{SUM, message};
use harness::ranks::on_ranks;

/// Buffers of these lengths, and their concatenation.
fn buffers(rank: usize, lengths: &[usize]) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut at = 0;
    let all: Vec<Vec<f32>> = lengths
        .iter()
        .map(|&len| {
            at += len;
            (at - len..at).map(|i| ((i * 37 + rank * 11) % 1001) as f32 / 7.0).collect()
        })
        .collect();
    let one = all.concat();
    (all, one)
}

/// Lengths of small, large and empty buffers, with one that spans slices.
fn lists() -> Vec<Vec<usize>> {
    vec![
        vec![],
        vec![0, 0],
        vec![1],
        vec![3, 0, 1, 0],
        vec![1; 100],
        vec![7, 1000, 1, 64, 33],
        (0..200).map(|i| i * 13 % 97).collect(),
        vec![1, 100_000, 17, 50_001, 2],
    ]
}

pub(crate) fn the_same_bits(comm: &mut Communicator, op: impl Into<Reduction> + Copy) {
    for lengths in lists() {
        let (mut many, mut one) = buffers(comm.rank(), &lengths);
        comm.all_reduce_many(&mut many, op).unwrap();
        comm.all_reduce(&mut one, op).unwrap();
        let bits = |floats: Vec<f32>| floats.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(many.concat()) == bits(one), "{lengths:?} of {}", comm.size());
    }
}

#[test]
fn many_buffers_have_the_bits_of_one_all_reduce() {
    for n in 1..=6 {
        on_ranks(n, |comm| {
            the_same_bits(comm, SUM);
            the_same_bits(comm, ReduceOp::Avg);
            the_same_bits(comm, Reduction::premul_sum(0.3_f32));
        });
    }
}

#[test]
fn many_buffers_have_the_bits_of_one_by_every_algorithm() {
    use Algorithm::{AllPairs, HalvingDoubling, RecursiveDoubling, Ring, TwoShot};
    on_ranks(4, |comm| {
        for algorithm in [Ring, AllPairs, TwoShot, RecursiveDoubling, HalvingDoubling] {
            the_same_bits(&mut comm.with(CallOptions::new().algorithm(algorithm)), SUM);
        }
    });
}

#[test]
fn buffers_may_be_slices_arrays_vectors_bytes_and_registered_memory() {
    on_ranks(2, |comm| {
        let (mut a, mut b, mut c) = ([1_u64; 3], vec![2_u64; 1], [[1_u8; 8]; 2]);
        comm.all_reduce_many(&mut [&mut a[..], &mut b], SUM).unwrap();
        assert_eq!((a, &b[..]), ([2; 3], &[4][..]));
        comm.all_reduce_many_bytes(&mut c, DataType::U64, SUM).unwrap();
        assert_eq!(c, [[2; 8]; 2]);
        comm.scope(|s| s.all_reduce_many(vec![&mut a[..], &mut b], ReduceOp::Max).wait()).unwrap();
        let owned = comm.nonblocking().all_reduce_many(vec![vec![1_i8; 3], vec![2]], SUM);
        assert_eq!(owned.wait().unwrap(), [vec![2; 3], vec![4]]);
        let text = message(comm.all_reduce_many_bytes(&mut [[0_u8; 3]], DataType::U16, SUM));
        let expected = "expected a multiple of 2, the size of uint16";
        assert_eq!(text, format!("all_reduce_many: bufs is 3 bytes long, {expected}"));
        let mut memory = comm.alloc::<f32>(10_000).unwrap();
        memory.fill(1.0);
        let mut beside = [1.0];
        comm.all_reduce_many(&mut [&mut memory[..]], SUM).unwrap();
        comm.all_reduce_many(&mut [&mut memory[..], &mut beside], SUM).unwrap();
        assert!(memory.iter().all(|&it| it == 4.0) && beside == [2.0]);
    });
}

#[test]
fn lists_of_different_lengths_are_a_mismatch() {
    for [one, other] in [[vec![2, 3], vec![3, 2]], [vec![5], vec![2, 3]]] {
        on_ranks(2, |comm| {
            let lengths = if comm.rank() == 0 { &one } else { &other };
            let (mut many, before) = buffers(comm.rank(), lengths);
            let error = comm.all_reduce_many(&mut many, SUM).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
            assert_eq!(many.concat(), before);
        });
    }
}
