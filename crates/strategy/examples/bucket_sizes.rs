//! The sizes of buckets by the cost model beside those of PyTorch (1 MiB and 25 MiB), in turns in
//! one run, for a model of 10 million parameters:
//! `ringrun -n 2 target/release/examples/bucket_sizes [PASSES]`

mod work;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use ringreduce::Communicator;
use strategy::{BucketSizes, CrossDeviceOp, Error, Optimizer, Part, Settings, Strategy, Trainer};

use work::Work;

const LAYERS: usize = 40;
const COUNT: usize = 250_000;
const TURNS: usize = 41;

fn main() -> Result<(), Error<Infallible>> {
    let mut comm = Communicator::from_env()?;
    let passes = std::env::args().nth(1).and_then(|it| it.parse().ok()).unwrap_or(10);
    let settings = |buckets| Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::SGD,
        clip_norm: None,
        buckets,
    };
    let kinds = [("by the cost model", None), ("of PyTorch", Some(BucketSizes::default()))];
    let mut trained = Vec::new();
    for (name, buckets) in kinds {
        let mut model = Work::new(LAYERS, COUNT, passes);
        let trainer = Trainer::new(comm.duplicate()?, &mut model, settings(buckets))?;
        trained.push((name, trainer, model, Vec::new()));
    }
    for turn in 0..TURNS {
        for at in [turn % 2, (turn + 1) % 2] {
            let (_, trainer, model, times) = &mut trained[at];
            comm.barrier()?;
            let start = Instant::now();
            trainer.step(model, &[Part { batch: Some(()), total: 1 }], 1e-3)?;
            times.push(start.elapsed());
        }
    }
    for (name, trainer, _, times) in &mut trained {
        times.sort();
        let median: Duration = times[TURNS / 2];
        let (first, count) = (trainer.trace()[0].bytes, trainer.trace().len());
        let others = trainer.trace().get(1).map_or(0, |it| it.bytes);
        if comm.rank() == 0 {
            let milliseconds = median.as_secs_f64() * 1e3;
            println!(
                "{name}: {milliseconds:.2} ms a step; {count} buckets of {first}, {others} bytes"
            );
        }
    }
    Ok(())
}
