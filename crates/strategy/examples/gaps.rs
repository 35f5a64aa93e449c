//! Two pipelines on the same ranks: one after the other, and at the same time, so that each
//! computes in the gaps of the other: `ringrun -n 2 target/release/examples/gaps`

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringreduce::Communicator;
use strategy::{
    Error, OnDevice, Optimizer, Parameters, PipelineSchedule, PipelineSettings, PipelineTrainer,
    Stage, Turns, bubble,
};

const WIDTH: usize = 1000;
const STEPS: usize = 100;

/// A layer whose weight is a circulant matrix: each row is the one above, rotated.
struct Circulant {
    weight: Vec<f32>,
    /// Inputs and outputs, by micro-batch.
    held: Vec<(Vec<f32>, Vec<f32>)>,
    is_last: bool,
}

/// The product of the circulant matrix with this first row and a vector.
fn product(row: &[f32], vector: &[f32]) -> Vec<f32> {
    let doubled = [row, row].concat();
    let entry = |i: usize| doubled[i..].iter().zip(vector).map(|(row, it)| row * it).sum();
    (0..WIDTH).map(entry).collect()
}

impl Parameters for Circulant {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        vec![("weight".into(), WIDTH)]
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.weight);
        Ok(())
    }

    fn write(&mut self, _: usize, from: &[f32]) -> Result<(), Infallible> {
        self.weight.copy_from_slice(from);
        Ok(())
    }
}

impl Stage for Circulant {
    fn forward(&mut self, at: usize, input: &[f32]) -> Result<Vec<f32>, Infallible> {
        let input = if input.is_empty() { vec![0.5; WIDTH] } else { input.to_vec() };
        let output: Vec<f32> = product(&self.weight, &input).iter().map(|it| it.tanh()).collect();
        self.held.resize(self.held.len().max(at + 1), Default::default());
        self.held[at] = (input, output.clone());
        Ok(if self.is_last { vec![output.iter().sum()] } else { output })
    }

    fn backward(
        &mut self,
        at: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, Infallible> {
        let (input, output) = &self.held[at];
        let gradient = if gradient.is_empty() { vec![1.0; WIDTH] } else { gradient.to_vec() };
        let inner = gradient.iter().zip(output).map(|(it, output)| it * (1.0 - output * output));
        let inner: Vec<f32> = inner.collect();
        let reversed =
            |values: &[f32]| (0..WIDTH).map(|i| values[(WIDTH - i) % WIDTH]).collect::<Vec<f32>>();
        sink(0, &reversed(&product(&reversed(input), &inner)));
        Ok(product(&self.weight, &inner))
    }
}

/// Trains [`STEPS`] steps; gives the mean share of waits.
fn train(comm: Communicator, device: Arc<Turns>, count: usize) -> Result<f64, Error<Infallible>> {
    let stages = comm.size();
    let weight = vec![1e-3; WIDTH];
    let inner = Circulant { weight, held: Vec::new(), is_last: comm.rank() + 1 == stages };
    let mut stage = OnDevice { device, inner };
    let settings = PipelineSettings {
        stages,
        schedule: PipelineSchedule::OneForwardOneBackward,
        optimizer: Optimizer::SGD,
        clip_norm: None,
    };
    let mut trainer = PipelineTrainer::new(comm, &mut stage, settings)?;
    let mut waits = 0.0;
    for _ in 0..STEPS {
        waits += trainer.step(&mut stage, count, 1e-6)?.bubble / STEPS as f64;
    }
    Ok(waits)
}

fn main() -> Result<(), Error<Infallible>> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    if rank == 0 {
        println!(
            "micro-batches  waits  formula  one after the other  at the same time  device busy"
        );
    }
    for count in [1, 2, 4, 8] {
        let device = Arc::new(Turns::new());
        let mut comms = (comm.duplicate()?, comm.duplicate()?);
        comm.barrier()?;
        let start = Instant::now();
        let waits = train(comms.0, Arc::clone(&device), count)?;
        train(comms.1, device, count)?;
        let sequential = start.elapsed();
        let device = Arc::new(Turns::new());
        comms = (comm.duplicate()?, comm.duplicate()?);
        comm.barrier()?;
        let start = Instant::now();
        std::thread::scope(|scope| {
            let (first, second) = (Arc::clone(&device), Arc::clone(&device));
            let other = scope.spawn(|| train(comms.0, first, count));
            train(comms.1, second, count)?;
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let concurrent = start.elapsed();
        if rank == 0 {
            let (formula, by_step) =
                (bubble(size, count), |it: Duration| it.as_secs_f64() * 1e3 / STEPS as f64);
            let busy = device.busy().as_secs_f64() / concurrent.as_secs_f64();
            let (one, both) = (by_step(sequential), by_step(concurrent));
            println!(
                "{count:13}  {waits:5.2}  {formula:7.2}  {one:16.2} ms  {both:13.2} ms  \
                 {busy:10.0}%",
                busy = busy * 100.0
            );
        }
    }
    Ok(())
}
