//! Pipelines beside one rank that has all layers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    Error, Optimizer, PipelineSchedule, PipelineSettings, PipelineStep, PipelineTrainer, Stage,
    State,
};

const SCHEDULES: [PipelineSchedule; 2] =
    [PipelineSchedule::FillDrain, PipelineSchedule::OneForwardOneBackward];

const WIDTH: usize = 40;
const LAYERS: usize = 6;
const STEPS: usize = 50;
const SAMPLES: usize = 7;
const RATE: f32 = 0.05;

/// Layers whose outputs are `tanh(weight * input)`, element by element, with a neighbor mixed in.
struct Layers {
    first: usize,
    is_last: bool,
    weights: Vec<Vec<f32>>,
    /// The samples of each micro-batch.
    micro_batches: Vec<Range<usize>>,
    /// The inputs of all layers and the output, by micro-batch and sample.
    held: HashMap<usize, Vec<Vec<Vec<f32>>>>,
    /// A layer with an output that is no number.
    damaged_output: Option<usize>,
    /// A layer with a gradient that is no number.
    damaged_gradient: Option<usize>,
}

impl Layers {
    fn new(stage: usize, stages: usize, offset: f32) -> Self {
        let place = |stage: usize| LAYERS * stage / stages;
        let weight = |layer: usize| {
            (0..WIDTH).map(|i| ((layer * WIDTH + i) as f32).sin() + offset).collect::<Vec<f32>>()
        };
        let weights: Vec<_> = (place(stage)..place(stage + 1)).map(weight).collect();
        Self {
            first: place(stage),
            is_last: stage + 1 == stages,
            weights,
            micro_batches: Vec::new(),
            held: HashMap::new(),
            damaged_output: None,
            damaged_gradient: None,
        }
    }

    fn sample_forward(&self, sample: usize, input: &[f32]) -> Vec<Vec<f32>> {
        let first = |i: usize| ((sample * WIDTH + i) as f32 * 0.7).cos();
        let mut values = vec![match self.first {
            0 => (0..WIDTH).map(first).collect(),
            _ => input.to_vec(),
        }];
        for (layer, weights) in self.weights.iter().enumerate() {
            let input = &values[layer];
            let output = |i: usize| (weights[i] * (input[i] + input[(i + 1) % WIDTH])).tanh();
            let mut output: Vec<f32> = (0..WIDTH).map(output).collect();
            if self.damaged_output == Some(self.first + layer) {
                output[3] = f32::NAN;
            }
            values.push(output);
        }
        values
    }

    fn sample_backward(
        &self,
        values: &[Vec<f32>],
        mut gradient: Vec<f32>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Vec<f32> {
        for (layer, weights) in self.weights.iter().enumerate().rev() {
            let (input, output) = (&values[layer], &values[layer + 1]);
            let (mut below, mut of_weights) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for i in 0..WIDTH {
                let next = (i + 1) % WIDTH;
                let inner = gradient[i] * (1.0 - output[i] * output[i]);
                of_weights[i] = inner * (input[i] + input[next]);
                below[i] += inner * weights[i];
                below[next] += inner * weights[i];
            }
            if self.damaged_gradient == Some(self.first + layer) {
                of_weights[5] = f32::INFINITY;
            }
            sink(layer, &of_weights);
            gradient = below;
        }
        gradient
    }
}

impl Stage for Layers {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        let layers = self.first..self.first + self.weights.len();
        layers.map(|layer| (format!("layer {layer}"), WIDTH)).collect()
    }

    fn read(&self, parameter: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.copy_from_slice(&self.weights[parameter]);
        Ok(())
    }

    fn write(&mut self, parameter: usize, from: &[f32]) -> Result<(), Infallible> {
        self.weights[parameter].copy_from_slice(from);
        Ok(())
    }

    fn forward(&mut self, micro_batch: usize, input: &[f32]) -> Result<Vec<f32>, Infallible> {
        let samples = self.micro_batches[micro_batch].clone().enumerate();
        let row = |at: usize| input.get(at * WIDTH..(at + 1) * WIDTH).unwrap_or_default();
        let values: Vec<_> =
            samples.map(|(at, sample)| self.sample_forward(sample, row(at))).collect();
        let outputs: Vec<f32> = values.iter().flat_map(|it| it[it.len() - 1].clone()).collect();
        self.held.insert(micro_batch, values);
        if self.is_last {
            let total = outputs.iter().map(|it| (it - 0.5).powi(2)).sum::<f32>();
            return Ok(vec![total / SAMPLES as f32]);
        }
        Ok(outputs)
    }

    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: &[f32],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>, Infallible> {
        let mut below = Vec::new();
        for (at, values) in self.held.remove(&micro_batch).unwrap().into_iter().enumerate() {
            let gradient = match self.is_last {
                true => values[values.len() - 1]
                    .iter()
                    .map(|it| 2.0 * (it - 0.5) / SAMPLES as f32)
                    .collect(),
                false => gradient[at * WIDTH..(at + 1) * WIDTH].to_vec(),
            };
            below.extend(self.sample_backward(&values, gradient, sink));
        }
        Ok(below)
    }
}

fn settings(stages: usize, schedule: PipelineSchedule) -> PipelineSettings {
    PipelineSettings { stages, schedule, optimizer: Optimizer::SGD, clip_norm: None }
}

/// Cuts a range into parts that differ by one at most.
fn cut(range: &Range<usize>, count: usize) -> Vec<Range<usize>> {
    let place = |at: usize| range.start + range.len() * at / count;
    (0..count).map(|at| place(at)..place(at + 1)).collect()
}

/// The weights and the losses after [`STEPS`] steps of `replicas` pipelines.
fn trained(
    replicas: usize,
    settings: PipelineSettings,
    count: usize,
) -> (Vec<Vec<f32>>, Vec<PipelineStep>) {
    let stages = settings.stages;
    let ends = on_ranks(replicas * stages, |comm: &mut Communicator| {
        let (replica, stage) = (comm.rank() / stages, comm.rank() % stages);
        let mut layers = Layers::new(stage, stages, replica as f32);
        let comm = comm.duplicate().unwrap();
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        // The last replica has the most samples; a replica may have fewer than micro-batches.
        let samples = cut(&(0..SAMPLES), replicas)[replica].clone();
        let count = count.min(samples.len());
        layers.micro_batches = cut(&samples, count);
        let step = |_| trainer.step(&mut layers, count, RATE).unwrap();
        let steps: Vec<_> = (0..STEPS).map(step).collect();
        assert!(layers.held.is_empty());
        assert_eq!(trainer.steps(), STEPS as u64);
        (layers.weights, steps)
    });
    let weights = |replica: usize| {
        let ends = &ends[replica * stages..(replica + 1) * stages];
        ends.iter().flat_map(|(weights, _)| weights.clone()).collect::<Vec<_>>()
    };
    assert!((1..replicas).all(|replica| weights(replica) == weights(0)));
    let losses = |at: usize| ends[at].1.iter().map(|step| step.loss).collect::<Vec<_>>();
    assert!((1..ends.len()).all(|rank| losses(rank) == losses(0)));
    (weights(0), ends[0].1.clone())
}

/// The distance of two lists of vectors, relative to the length of the first.
fn distance(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let pairs = || one.iter().flatten().zip(other.iter().flatten());
    let square = |it: f32| f64::from(it).powi(2);
    let apart = pairs().map(|(one, other)| square(one - other)).sum::<f64>();
    (apart / pairs().map(|(one, _)| square(*one)).sum::<f64>()).sqrt()
}

#[test]
fn pipelines_end_with_the_weights_of_one_rank_to_the_bit() {
    let fill_drain = PipelineSchedule::FillDrain;
    let (alone, steps) = trained(1, settings(1, fill_drain), 5);
    let losses = [steps[0].loss, steps[STEPS - 1].loss];
    assert!(losses[1] < 0.9 * losses[0], "{losses:?}");
    for schedule in SCHEDULES {
        for n in 1..=4 {
            assert!(trained(1, settings(n, schedule), 5).0 == alone, "{schedule:?}, {n} stages");
        }
        // Fewer micro-batches than stages, and one: plain model parallelism.
        for count in [1, 2] {
            let alone = trained(1, settings(1, fill_drain), count).0;
            assert!(trained(1, settings(4, schedule), count).0 == alone);
        }
    }
}

#[test]
fn replicas_of_pipelines_end_with_the_weights_of_one_rank() {
    for (optimizer, clip_norm) in [
        (Optimizer::SGD, None),
        (Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 }, Some(0.05)),
        (Optimizer::Lars { momentum: 0.9, weight_decay: 0.01, trust: 0.1 }, None),
    ] {
        let settings = |stages, schedule| PipelineSettings {
            optimizer,
            clip_norm,
            ..settings(stages, schedule)
        };
        let (alone, steps) = trained(1, settings(1, PipelineSchedule::FillDrain), 3);
        for schedule in SCHEDULES {
            for (replicas, stages) in [(1, 3), (2, 1), (2, 2), (3, 2), (9, 1)] {
                let (weights, other) = trained(replicas, settings(stages, schedule), 3);
                let distance = distance(&alone, &weights);
                let what = format!("{schedule:?}, {replicas} x {stages}, {optimizer:?}");
                assert!(distance < 1e-5, "{what}: {distance:e}");
                for (one, other) in steps.iter().zip(&other) {
                    assert!((one.loss - other.loss).abs() < 1e-4 * one.loss, "{what}");
                    assert!((0.0..1.0).contains(&other.bubble), "{what}: {other:?}");
                }
            }
        }
        if clip_norm.is_some() {
            let free =
                PipelineSettings { clip_norm: None, ..settings(1, PipelineSchedule::FillDrain) };
            assert!(distance(&alone, &trained(1, free, 3).0) > 1e-3, "clipping has an effect");
        }
    }
}

#[test]
fn a_number_that_is_not_finite_names_rank_stage_and_layer_and_changes_nothing() {
    // Stages have layers 0-1, 2-3 and 4-5; two replicas.
    let cases = [
        ((None, Some(2)), "rank 4 (stage 1) has such a gradient of layer 2"),
        ((Some(3), None), "rank 4 (stage 1) has such an output, behind layer 3"),
        ((Some(5), None), "rank 5 (stage 2) has such a loss"),
    ];
    for ((output, gradient), expected) in cases {
        on_ranks(6, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let mut layers = Layers::new(rank % 3, 3, 0.0);
            let settings = settings(3, PipelineSchedule::OneForwardOneBackward);
            let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
            layers.micro_batches = cut(&(0..SAMPLES), 2);
            let before = layers.weights.clone();
            if rank >= 3 {
                (layers.damaged_output, layers.damaged_gradient) = (output, gradient);
            }
            let error = trainer.step(&mut layers, 2, RATE).unwrap_err();
            let Error::Diverged { step: 1, cause, .. } = error else { panic!("{error}") };
            assert_eq!(cause, expected);
            assert_eq!(layers.weights, before);
            // The ranks are still in step.
            (layers.damaged_output, layers.damaged_gradient) = (None, None);
            assert!(trainer.step(&mut layers, 2, RATE).unwrap().loss.is_finite());
            assert_ne!(layers.weights, before);
        });
    }
}

#[test]
fn a_state_goes_from_pipelines_to_pipelines_of_other_stages() {
    let optimizer = Optimizer::Adam { betas: (0.9, 0.999), epsilon: 1e-2, weight_decay: 0.01 };
    let settings = |stages| PipelineSettings {
        optimizer,
        ..settings(stages, PipelineSchedule::OneForwardOneBackward)
    };
    let whole = after((1, settings(1)), 10, None);
    assert_eq!((whole.steps, whole.parameters.len()), (10, LAYERS));
    let half = after((1, settings(3)), 5, None);
    assert_eq!(after((1, settings(2)), 5, Some(&half)), whole);
    assert_eq!(after((1, settings(2)), 0, Some(&whole)), whole);
    let replicas = after((2, settings(3)), 5, Some(&half));
    let values =
        |state: &State| state.parameters.iter().map(|it| it.values.clone()).collect::<Vec<_>>();
    assert!(distance(&values(&whole), &values(&replicas)) < 1e-5);
    // Another model's state is refused at all ranks, and changes nothing.
    let mut other = half.clone();
    other.parameters[4].name = "layer 9".into();
    for (state, expected) in [(Some(&other), "no parameter layer 4"), (None, "passed none")] {
        on_ranks(2, |comm: &mut Communicator| {
            let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
            let mut layers = Layers::new(rank, 2, 0.0);
            let mut trainer = PipelineTrainer::new(comm, &mut layers, settings(2)).unwrap();
            let before = layers.weights.clone();
            let error = trainer.load_state(&mut layers, state).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!((&layers.weights, trainer.steps()), (&before, 0));
        });
    }
}

/// The state of replicas of a pipeline after `steps` steps from another state.
fn after(
    (replicas, settings): (usize, PipelineSettings),
    steps: usize,
    from: Option<&State>,
) -> State {
    let stages = settings.stages;
    let states = on_ranks(replicas * stages, |comm: &mut Communicator| {
        let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
        let mut layers = Layers::new(rank % stages, stages, 0.0);
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        if from.is_some() {
            // Only rank 0 needs it.
            trainer.load_state(&mut layers, from.filter(|_| rank == 0)).unwrap();
        }
        layers.micro_batches = cut(&cut(&(0..SAMPLES), replicas)[rank / stages], 2);
        for _ in 0..steps {
            trainer.step(&mut layers, 2, RATE).unwrap();
        }
        trainer.state(&layers).unwrap()
    });
    assert!(states[1..].iter().all(Option::is_none));
    states.into_iter().next().unwrap().unwrap()
}

#[test]
fn stages_that_do_not_divide_the_ranks_are_refused() {
    for stages in [0, 2] {
        let errors = on_ranks(3, |comm: &mut Communicator| {
            let (mut layers, comm) = (Layers::new(0, 1, 0.0), comm.duplicate().unwrap());
            let settings = settings(stages, PipelineSchedule::FillDrain);
            PipelineTrainer::new(comm, &mut layers, settings).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|it| it.contains("a number that divides the 3 ranks")));
    }
}

#[test]
fn a_lost_stage_ends_the_others_with_an_error_that_names_it() {
    let errors = on_ranks(3, |comm: &mut Communicator| {
        let (rank, comm) = (comm.rank(), comm.duplicate().unwrap());
        let mut layers = Layers::new(rank, 3, 0.0);
        layers.micro_batches = cut(&(0..SAMPLES), 4);
        let settings = settings(3, PipelineSchedule::OneForwardOneBackward);
        let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
        if rank == 1 {
            return None;
        }
        trainer.step(&mut layers, 4, RATE).err()
    });
    assert_eq!(errors.iter().flatten().count(), 2);
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}
