//! The time of a step of `Strategy::Mirrored` beside a loop written by hand, in turns in one run:
//! `ringrun -n 2 target/release/examples/step_overhead [PASSES] [LAYERS_PER_BUCKET]`
//!
//! Both compute the same model, have the same buckets in registered memory, and end with the same
//! parameters. The loop by hand makes an all-reduce of each bucket as soon as it is full.

mod work;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use ringreduce::{Communicator, ReduceOp, Registered};
use strategy::{
    BucketSizes, CrossDeviceOp, Error, Optimizer, Parameters, Part, Settings, Strategy, Trainer,
};

use work::Work;

const LAYERS: usize = 8;
const COUNT: usize = 125_000;
const TURNS: usize = 201;
const RATE: f32 = 1e-3;

/// Buckets of whole layers, the last layer first.
struct ByHand {
    comm: Communicator,
    buckets: Vec<Registered<'static, f32>>,
    values: Vec<Vec<f32>>,
    in_bucket: usize,
}

impl ByHand {
    fn new(comm: Communicator, in_bucket: usize) -> Result<Self, ringreduce::Error> {
        let count = LAYERS.div_ceil(in_bucket);
        let buckets =
            (0..count).map(|_| comm.alloc(in_bucket * COUNT)).collect::<Result<_, _>>()?;
        Ok(Self { comm, buckets, values: vec![vec![0.0; in_bucket * COUNT]; count], in_bucket })
    }

    fn step(&mut self, model: &mut Work) -> Result<(), ringreduce::Error> {
        let Self { comm, buckets, values, in_bucket } = self;
        let mut result = Ok(());
        model.backward(&mut |layer, gradient| {
            let (bucket, place) =
                ((LAYERS - 1 - layer) / *in_bucket, (LAYERS - 1 - layer) % *in_bucket);
            buckets[bucket][place * COUNT..][..COUNT].copy_from_slice(gradient);
            if place + 1 == *in_bucket || layer == 0 {
                let reduced = comm.all_reduce(&mut buckets[bucket], ReduceOp::Sum);
                result = std::mem::replace(&mut result, Ok(())).and(reduced);
            }
        });
        result?;
        for (values, sums) in values.iter_mut().zip(buckets) {
            values.iter_mut().zip(&sums[..]).for_each(|(value, sum)| *value -= RATE * sum);
        }
        for layer in 0..LAYERS {
            let (bucket, place) =
                ((LAYERS - 1 - layer) / *in_bucket, (LAYERS - 1 - layer) % *in_bucket);
            let Ok(()) = model.write(layer, &values[bucket][place * COUNT..][..COUNT]);
        }
        Ok(())
    }
}

fn main() -> Result<(), Error<Infallible>> {
    let mut comm = Communicator::from_env()?;
    let mut arguments = std::env::args().skip(1).map(|it| it.parse().unwrap_or(0));
    let passes = arguments.next().unwrap_or(40).max(1);
    let in_bucket = arguments.next().unwrap_or(2).clamp(1, LAYERS);
    let mut model = Work::new(LAYERS, COUNT, passes);
    let bytes = in_bucket * COUNT * 4;
    let settings = Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::SGD,
        clip_norm: None,
        buckets: Some(BucketSizes { first: bytes, others: bytes }),
    };
    let mut trained = Work::new(LAYERS, COUNT, passes);
    let mut trainer = Trainer::new(comm.duplicate()?, &mut trained, settings)?;
    let mut by_hand = ByHand::new(comm.duplicate()?, in_bucket)?;
    let (mut theirs, mut own) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let mut hand = |times: &mut Vec<Duration>| -> Result<(), ringreduce::Error> {
            comm.barrier()?;
            let start = Instant::now();
            by_hand.step(&mut model)?;
            times.push(start.elapsed());
            Ok(())
        };
        if turn % 2 == 0 {
            hand(&mut theirs)?;
        }
        trainer.with_communicator(Communicator::barrier)?;
        let start = Instant::now();
        trainer.step(&mut trained, &[Part { batch: Some(()), total: 1 }], RATE)?;
        own.push(start.elapsed());
        if turn % 2 == 1 {
            hand(&mut theirs)?;
        }
    }
    let is_same = model.layers == trained.layers;
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let (theirs, own) = (median(&mut theirs), median(&mut own));
    if comm.rank() == 0 {
        let more = (own / theirs - 1.0) * 100.0;
        println!("by hand {theirs:.3} ms, Trainer {own:.3} ms a step: {more:+.1} %");
        println!("the same parameters: {is_same}");
    }
    Ok(())
}
