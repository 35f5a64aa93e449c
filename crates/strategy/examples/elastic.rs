//! A training that goes on when ranks are lost and when they join:
//! `ringrun --elastic 2:4 target/release/examples/elastic`, and kill ranks of it.

mod work;

use std::convert::Infallible;
use std::ops::Range;
use std::time::Duration;

use ringreduce::Communicator;
use strategy::{Error, JobConfig, Optimizer, Part, Settings, Strategy, Trainer, share};

use work::Work;

const SAMPLES: usize = 1000;
const BATCH: usize = 64;
const EPOCH: usize = SAMPLES.div_ceil(BATCH);
const STEPS: u64 = 500;

/// A part of a batch. The model's gradients do not depend on the samples.
fn part(places: Range<usize>, total: usize) -> Part<()> {
    Part { batch: (!places.is_empty()).then_some(()), total }
}

fn main() -> Result<(), Error<Infallible>> {
    let comm = Communicator::from_env()?;
    let mut losses: Vec<f32> = Vec::new();
    let mut model = Work::new(8, 20_000, 10);
    model.calibrate(Duration::from_millis(20));
    let settings = Settings {
        strategy: Strategy::ShardedOptimizer,
        optimizer: Optimizer::ADAM,
        clip_norm: None,
        buckets: None,
    };
    // Ranks that join must have it, too.
    let config = JobConfig::from_iter([("batch".to_owned(), BATCH.to_string())]);
    let mut trainer = Trainer::elastic(comm, &mut model, settings, config, &mut losses)?;
    while trainer.steps() < STEPS {
        let (rank, size) = trainer.with_communicator(|comm| (comm.rank(), comm.size()));
        let step = trainer.steps() as usize % EPOCH;
        let (places, total) = share(SAMPLES, BATCH, step, rank, size);
        let done = trainer.step(&mut model, &[part(places, total)], 0.1);
        let grown = done.and_then(|step| {
            losses.push(step.loss);
            trainer.grow(&mut model, &mut losses)
        });
        if let Err(error) = grown {
            trainer.recover(error, &mut model, &mut losses)?;
        }
    }
    let (rank, size) = trainer.with_communicator(|comm| (comm.rank(), comm.size()));
    if rank == 0 {
        println!("{} steps, {} losses, {size} ranks in the end", trainer.steps(), losses.len());
    }
    Ok(())
}
