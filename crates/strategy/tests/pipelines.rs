//! Pipelines beside one rank that has all layers, and their schedules beside the formula.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{PipelineSchedule, Stage, Work, bubble, run_pipeline};

const SCHEDULES: [PipelineSchedule; 2] =
    [PipelineSchedule::FillDrain, PipelineSchedule::OneForwardOneBackward];

/// The seconds of a step, with forward passes of 1 s and backward passes of 2 s, and no time for
/// messages; and the most activations that the first stage holds. `None` if stages wait for ever.
fn simulated(schedule: PipelineSchedule, stages: usize, count: usize) -> Option<(usize, usize)> {
    let work: Vec<_> = (0..stages).map(|stage| schedule.work(stage, stages, count)).collect();
    let (mut next, mut clocks) = (vec![0; stages], vec![0; stages]);
    let mut done: HashMap<(usize, Work), usize> = HashMap::new();
    let (mut held, mut most_held) = (0, 0_usize);
    loop {
        let mut has_moved = false;
        for stage in 0..stages {
            let Some(work) = work[stage].get(next[stage]) else { continue };
            let (needed, seconds) = match work {
                Work::Forward(_) if stage == 0 => (Some(0), 1),
                Work::Forward(_) => (done.get(&(stage - 1, *work)).copied(), 1),
                Work::Backward(at) if stage + 1 == stages => {
                    (done.get(&(stage, Work::Forward(*at))).copied(), 2)
                }
                Work::Backward(_) => (done.get(&(stage + 1, *work)).copied(), 2),
            };
            let Some(needed) = needed else { continue };
            if stage == 0 {
                match work {
                    Work::Forward(_) => held += 1,
                    Work::Backward(_) => held -= 1,
                }
                most_held = most_held.max(held);
            }
            clocks[stage] = clocks[stage].max(needed) + seconds;
            done.insert((stage, *work), clocks[stage]);
            next[stage] += 1;
            has_moved = true;
        }
        if !has_moved {
            let is_done = done.len() == 2 * stages * count;
            return is_done.then(|| (clocks.into_iter().max().unwrap_or(0), most_held));
        }
    }
}

#[test]
fn schedules_end_and_wait_as_long_as_the_formula_says() {
    for schedule in SCHEDULES {
        for stages in 1..7 {
            for count in 1..12 {
                let (seconds, held) = simulated(schedule, stages, count).unwrap();
                let share = 1.0 - 3.0 * count as f64 / seconds as f64;
                let formula = bubble(stages, count);
                assert!((share - formula).abs() < 1e-9, "{schedule:?}, {stages}, {count}: {share}");
                let most = match schedule {
                    PipelineSchedule::FillDrain => count,
                    PipelineSchedule::OneForwardOneBackward => stages.min(count),
                };
                assert_eq!(held, most, "{schedule:?}, {stages} stages, {count} micro-batches");
            }
        }
    }
}

const WIDTH: usize = 40;
const LAYERS: usize = 6;
const STEPS: usize = 10;

/// Layers whose outputs are `tanh(weight * input)`, element by element, with a neighbor mixed in.
struct Layers {
    first: usize,
    is_last: bool,
    weights: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    /// The inputs of all layers and the output, by micro-batch.
    held: HashMap<usize, Vec<Vec<f32>>>,
    loss: f32,
}

impl Layers {
    fn new(stage: usize, stages: usize) -> Self {
        let place = |stage: usize| LAYERS * stage / stages;
        let weight = |layer: usize| {
            (0..WIDTH).map(|i| ((layer * WIDTH + i) as f32).sin()).collect::<Vec<f32>>()
        };
        let weights: Vec<_> = (place(stage)..place(stage + 1)).map(weight).collect();
        let gradients = vec![vec![0.0; WIDTH]; weights.len()];
        let is_last = stage + 1 == stages;
        Self { first: place(stage), is_last, weights, gradients, held: HashMap::new(), loss: 0.0 }
    }

    fn update(&mut self) {
        for (weights, gradients) in self.weights.iter_mut().zip(&mut self.gradients) {
            weights.iter_mut().zip(&*gradients).for_each(|(weight, it)| *weight -= 0.05 * it);
            gradients.fill(0.0);
        }
    }
}

impl Stage for Layers {
    type Error = Infallible;

    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, Infallible> {
        let sample = |i: usize| ((micro_batch * WIDTH + i) as f32 * 0.7).cos();
        let samples: Vec<f32> = (0..WIDTH).map(sample).collect();
        let input = if self.first == 0 { &samples } else { input };
        let mut values = vec![input.to_vec()];
        for weights in &self.weights {
            let input = &values[values.len() - 1];
            let output = |i: usize| (weights[i] * (input[i] + input[(i + 1) % WIDTH])).tanh();
            values.push((0..WIDTH).map(output).collect());
        }
        let output = values[values.len() - 1].clone();
        if self.is_last {
            self.loss += output.iter().map(|it| (it - 0.5).powi(2)).sum::<f32>();
        }
        self.held.insert(micro_batch, values);
        Ok(output)
    }

    fn backward(&mut self, micro_batch: usize, gradient: &[f32]) -> Result<Vec<f32>, Infallible> {
        let values = self.held.remove(&micro_batch).unwrap();
        let mut gradient = gradient.to_vec();
        if self.is_last {
            gradient = values[values.len() - 1].iter().map(|it| 2.0 * (it - 0.5)).collect();
        }
        for (layer, weights) in self.weights.iter().enumerate().rev() {
            let (input, output) = (&values[layer], &values[layer + 1]);
            let mut below = vec![0.0; WIDTH];
            for i in 0..WIDTH {
                let next = (i + 1) % WIDTH;
                let inner = gradient[i] * (1.0 - output[i] * output[i]);
                self.gradients[layer][i] += inner * (input[i] + input[next]);
                below[i] += inner * weights[i];
                below[next] += inner * weights[i];
            }
            gradient = below;
        }
        Ok(gradient)
    }
}

/// The weights and the losses after some steps of `n` stages.
fn trained(n: usize, schedule: PipelineSchedule, count: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
    let ends = on_ranks(n, |comm: &mut Communicator| {
        let messages = comm.messenger();
        let mut layers = Layers::new(comm.rank(), comm.size());
        let mut losses = Vec::new();
        for _ in 0..STEPS {
            layers.loss = 0.0;
            run_pipeline(&messages, schedule, count, &mut layers).unwrap();
            assert!(layers.held.is_empty());
            losses.push(layers.loss);
            layers.update();
        }
        (layers.weights, losses)
    });
    let losses = ends[n - 1].1.clone();
    (ends.into_iter().flat_map(|(weights, _)| weights).collect(), losses)
}

#[test]
fn pipelines_end_with_the_weights_of_one_rank_to_the_bit() {
    let alone = trained(1, PipelineSchedule::FillDrain, 5);
    assert!(alone.1[STEPS - 1] < 0.8 * alone.1[0], "{:?}", alone.1);
    for schedule in SCHEDULES {
        for n in 1..=4 {
            assert!(trained(n, schedule, 5) == alone, "{schedule:?}, {n} stages");
        }
    }
    // Fewer micro-batches than stages, and one.
    for count in [1, 2] {
        let alone = trained(1, PipelineSchedule::FillDrain, count);
        assert!(trained(4, PipelineSchedule::OneForwardOneBackward, count) == alone);
    }
}

#[test]
fn a_lost_stage_ends_the_others_with_an_error_that_names_it() {
    let errors = on_ranks(3, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        if comm.rank() == 1 {
            return None;
        }
        let mut layers = Layers::new(comm.rank(), comm.size());
        let schedule = PipelineSchedule::OneForwardOneBackward;
        run_pipeline(&comm.messenger(), schedule, 4, &mut layers).err()
    });
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
