//! A trainer allocates as much as the formula says, and sharded gradients are not all there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::convert::Infallible;

use harness::live_bytes::LiveBytes;
use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy,
    Trainer, memory_bytes,
};

#[global_allocator]
static HEAP: LiveBytes = LiveBytes::new();

const LAYERS: usize = 12;
const COUNT: usize = 60_000;
/// Buckets of two layers, after a first one of one layer.
const BUCKETS: BucketSizes = BucketSizes { first: 4 * COUNT, others: 8 * COUNT };

struct Layers;

impl Parameters for Layers {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        (0..LAYERS).map(|layer| (layer.to_string(), COUNT)).collect()
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.fill(0.0);
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Model for Layers {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Infallible> {
        (0..LAYERS).rev().for_each(|layer| sink(layer, &[1.0; COUNT]));
        Ok(0.0)
    }
}

/// The answers of [`Trainer::allocated_bytes`] at `n` ranks after a step, and the bytes that the
/// heap of all ranks has grown by.
fn allocated(n: usize, strategy: Strategy) -> (Vec<usize>, usize) {
    let ranks = on_ranks(n, |comm: &mut Communicator| {
        let (optimizer, buckets) = (Optimizer::ADAM, Some(BUCKETS));
        let settings = Settings { strategy, optimizer, clip_norm: None, buckets };
        let own = comm.duplicate().unwrap();
        comm.barrier().unwrap();
        let before = HEAP.get();
        comm.barrier().unwrap();
        let mut trainer = Trainer::new(own, &mut Layers, settings).unwrap();
        let part = Part { batch: Some(()), total: n };
        trainer.step(&mut Layers, &[part], 0.1).unwrap();
        comm.barrier().unwrap();
        let after = HEAP.get();
        comm.barrier().unwrap();
        (trainer.allocated_bytes(), after - before)
    });
    (ranks.iter().map(|(said, _)| *said).collect(), ranks[0].1)
}

/// The bytes of a rank that are not in the heap but in memory that ranks share: buckets, and the
/// parameters if other ranks read them.
fn registered(strategy: Strategy, bytes: usize) -> usize {
    match strategy {
        Strategy::Mirrored(_) | Strategy::Naive => bytes,
        Strategy::CentralStorage | Strategy::ShardedOptimizer => 2 * bytes,
        Strategy::ShardedGradients => bytes + 2 * BUCKETS.others,
    }
}

/// One test, because the heap is that of all tests of this program.
#[test]
fn a_trainer_allocates_what_it_says_and_what_the_formula_says() {
    let bytes = 4 * LAYERS * COUNT;
    for n in [1, 2, 3, 4] {
        for strategy in Strategy::ALL {
            let (said, heap) = allocated(n, strategy);
            let in_heap = said.iter().sum::<usize>() - n * registered(strategy, bytes);
            let more = heap as i64 - in_heap as i64;
            // A communicator takes less than this in its first calls, and a bucket is more than the
            // sum over all ranks. A reduction of more than two ranks to one needs buffers of its
            // own.
            let reduces_to_one = matches!(
                strategy,
                Strategy::CentralStorage | Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice)
            );
            let buffers = if n > 2 && reduces_to_one { n * BUCKETS.others } else { 0 } as i64;
            let expected = 0..100_000 * n as i64 + buffers;
            assert!(expected.contains(&more), "{strategy}, {n} ranks: {more} more");
            for (rank, allocated) in said.into_iter().enumerate() {
                let optimizer = Optimizer::ADAM;
                let place = (rank, n);
                let bucket = BUCKETS.others as u64;
                let formula = memory_bytes(strategy, optimizer, bytes as u64, bucket, place);
                // The loss is one more parameter, and a bucket has as many elements at each rank.
                let more = allocated as i64 - formula as i64;
                assert!((0..400).contains(&more), "{strategy}, rank {rank} of {n}: {more} more");
            }
        }
    }
    let [first, second] = [Strategy::ShardedOptimizer, Strategy::ShardedGradients];
    assert!(allocated(4, second).0[0] * 10 < allocated(4, first).0[0] * 9);
}
