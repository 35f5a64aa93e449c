//! What a trainer allocates is what the formula says, and sharded gradients are not all there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, Model, Optimizer, Part, Settings, Sink, Strategy, Trainer, memory_bytes,
};

const LAYERS: usize = 12;
const COUNT: usize = 1200;
/// Buckets of two layers, after a first one of one layer.
const BUCKETS: BucketSizes = BucketSizes { first: 4 * COUNT, others: 8 * COUNT };

struct Layers;

impl Model for Layers {
    type Batch = ();
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

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Infallible> {
        (0..LAYERS).rev().for_each(|layer| sink(layer, &[1.0; COUNT]));
        Ok(0.0)
    }
}

/// The bytes at each of `n` ranks after a step.
fn allocated(n: usize, strategy: Strategy) -> Vec<usize> {
    on_ranks(n, |comm: &mut Communicator| {
        let (optimizer, buckets) = (Optimizer::ADAM, Some(BUCKETS));
        let settings = Settings { strategy, optimizer, clip_norm: None, buckets };
        let mut trainer = Trainer::new(comm.duplicate().unwrap(), &mut Layers, settings).unwrap();
        let part = Part { batch: Some(()), total: n };
        trainer.step(&mut Layers, &[part], 0.1).unwrap();
        trainer.allocated_bytes()
    })
}

#[test]
fn a_trainer_allocates_what_the_formula_says() {
    let bytes = 4 * LAYERS * COUNT;
    for n in [1, 2, 3, 4] {
        for strategy in Strategy::ALL {
            for (rank, allocated) in allocated(n, strategy).into_iter().enumerate() {
                let optimizer = Optimizer::ADAM;
                let place = (rank, n);
                let formula =
                    memory_bytes(strategy, optimizer, bytes as u64, 8 * COUNT as u64, place);
                // The loss is one more parameter, and a bucket has as many elements at each rank.
                let more = allocated as i64 - formula as i64;
                assert!((0..400).contains(&more), "{strategy}, rank {rank} of {n}: {more} more");
            }
        }
    }
    let [first, second] = [Strategy::ShardedOptimizer, Strategy::ShardedGradients];
    assert!(allocated(4, second)[0] * 10 < allocated(4, first)[0] * 9);
}
