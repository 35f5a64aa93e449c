//! Trains one model by each strategy, and shows what each costs:
//! `ringrun -n 4 target/release/examples/strategies`

use std::convert::Infallible;
use std::time::{Duration, Instant};

use ringreduce::Communicator;
use strategy::{
    Error, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy, Trainer, sent_bytes, share,
};

const SAMPLES: usize = 64;
const STEPS: usize = 20;
const LAYERS: usize = 8;
const COUNT: usize = 100_000;

/// Layers of values, whose loss is their distance from each sample.
struct Values(Vec<Vec<f32>>);

impl Parameters for Values {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        (0..LAYERS).map(|layer| (format!("layer {layer}"), COUNT)).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.0[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.0[parameter].copy_from_slice(from);
        Ok(())
    }
}

impl Model for Values {
    type Batch = Vec<f32>;

    fn gradients(&mut self, part: &Part<Vec<f32>>, sink: &Sink) -> Result<f32, Infallible> {
        let samples = part.batch.as_deref().unwrap_or_default();
        let (sum, count) = (samples.iter().sum::<f32>(), samples.len() as f32);
        let mut loss = 0.0;
        for layer in (0..LAYERS).rev() {
            let total = part.total as f32;
            let gradient: Vec<f32> =
                self.0[layer].iter().map(|it| 2.0 * (count * it - sum) / total).collect();
            loss += samples.iter().map(|it| (self.0[layer][0] - it).powi(2)).sum::<f32>() / total;
            sink(layer, &gradient);
        }
        Ok(loss)
    }
}

fn main() -> Result<(), Error<Infallible>> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    if rank == 0 {
        println!("strategy                    ms/step  of them waited  MB sent by rank 0     loss");
    }
    for strategy in Strategy::ALL {
        let mut model = Values(vec![vec![0.0; COUNT]; LAYERS]);
        let buckets = None;
        let optimizer = Optimizer::SGD;
        let settings = Settings { strategy, optimizer, clip_norm: None, buckets };
        let mut trainer = Trainer::new(comm.duplicate()?, &mut model, settings)?;
        let (mut exposed, mut loss, start) = (Duration::ZERO, 0.0, Instant::now());
        for _ in 0..STEPS {
            let (places, total) = share(SAMPLES, SAMPLES, 0, rank, size);
            let batch = Some(places.map(|at| at as f32 / SAMPLES as f32).collect());
            let step = trainer.step(&mut model, &[Part { batch, total }], 0.1)?;
            exposed += step.times.exposed;
            loss = step.loss;
        }
        if rank == 0 {
            let by_step = |time: Duration| time.as_secs_f64() * 1e3 / STEPS as f64;
            let bytes = sent_bytes(strategy, (LAYERS * COUNT * 4) as u64, rank, size);
            let (all, waited) = (by_step(start.elapsed()), by_step(exposed));
            let megabytes = bytes as f64 / 1e6;
            let name = strategy.name();
            println!("{name:26} {all:8.2}  {waited:14.2}  {megabytes:17.1}  {loss:7.4}");
        }
    }
    Ok(())
}
