//! Networks split over ranks, by layers and within layers, beside one rank that has them whole.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ops::Range;
use std::thread;

use ringreduce::Communicator;
use ringtrain::data::{Dataset, Generated, Source};
use ringtrain::models::{ModelKind, Network};
use ringtrain::parallel::{NetworkStage, TensorParallelNetwork, layer_seconds, most_ranks};
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Parameters, Part, PipelineSchedule,
    PipelineSettings, PipelineTrainer, Settings, Strategy, TensorParallel, Trainer,
    balanced_stages, share,
};

const STEPS: usize = 50;
const SAMPLES: usize = 40;
const RATE: f32 = 0.02;
const SEED: u64 = 5;
const SGD: Optimizer = Optimizer::Sgd { momentum: 0.5, weight_decay: 0.001 };

fn data() -> Dataset {
    let form = Generated { is_colour: false, train: SAMPLES, test: 1 };
    Dataset::load(&Source::Generated(form), None).unwrap()
}

fn network(kind: ModelKind, data: &Dataset, width: f32) -> Network {
    Network::with_width(kind, data.shape, data.classes.len(), SEED, width).unwrap()
}

fn on_ranks<R: Send>(n: usize, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let comms = Communicator::local(n).unwrap();
        let ranks: Vec<_> = comms.into_iter().map(|it| scope.spawn(move || work(it))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The distance of two lists of parameters, relative to the length of the first.
fn distance(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    assert!(one.iter().map(Vec::len).eq(other.iter().map(Vec::len)));
    let square = |it: f32| f64::from(it).powi(2);
    let pairs = || one.iter().flatten().zip(other.iter().flatten());
    let apart: f64 = pairs().map(|(one, other)| square(one - other)).sum();
    (apart / pairs().map(|(one, _)| square(*one)).sum::<f64>()).sqrt()
}

fn parameters(model: &impl Model<Error: std::fmt::Debug>) -> Vec<Vec<f32>> {
    let read = |(parameter, (_, count)): (usize, (String, usize))| {
        let mut values = vec![0.0; count];
        model.read(parameter, &mut values).unwrap();
        values
    };
    model.parameters().into_iter().enumerate().map(read).collect()
}

fn settings(clip_norm: Option<f32>) -> Settings {
    Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: SGD,
        clip_norm,
        buckets: Some(BucketSizes { first: 4_000, others: 40_000 }),
    }
}

/// The samples of a step, of which the last ones of the data make a shorter batch.
fn places(step: usize, batch: usize, rank: usize, size: usize) -> (Vec<usize>, usize) {
    let (places, total) = share(SAMPLES, batch, step % SAMPLES.div_ceil(batch), rank, size);
    (places.collect(), total)
}

/// The parameters after some steps of data-parallel ranks, and the first ones.
fn mirrored(
    n: usize,
    make: impl Fn() -> Network + Sync,
    data: &Dataset,
    (batch, steps, clip_norm): (usize, usize, Option<f32>),
) -> [Vec<Vec<f32>>; 2] {
    let ends = on_ranks(n, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut network = make();
        let before = parameters(&network);
        let mut trainer = Trainer::new(comm, &mut network, settings(clip_norm)).unwrap();
        for step in 0..steps {
            let (places, total) = places(step, batch, rank, size);
            let batch = Some(data.train.batch(&places).unwrap());
            trainer.step(&mut network, &[Part { batch, total }], RATE).unwrap();
        }
        [parameters(&network), before]
    });
    ends.into_iter().next().unwrap()
}

/// The same of a pipeline, with `count` micro-batches.
fn pipelined(
    stages: usize,
    schedule: PipelineSchedule,
    kind: ModelKind,
    data: &Dataset,
    (batch, count): (usize, usize),
) -> Vec<Vec<f32>> {
    let ends = on_ranks(stages, |comm| {
        let network = network(kind, data, 0.5);
        // Rank 0's measured times would do; the split must be the same at all ranks.
        let costs: Vec<f64> = (0..network.layers().len()).map(|it| (it % 3 + 1) as f64).collect();
        let layers = balanced_stages(&costs, stages)[comm.rank()].clone();
        let mut stage = NetworkStage::new(network, data.shape, layers).unwrap();
        let settings = PipelineSettings { stages, schedule, optimizer: SGD, clip_norm: None };
        let mut trainer = PipelineTrainer::new(comm, &mut stage, settings).unwrap();
        for step in 0..STEPS {
            let (places, total) = places(step, batch, 0, 1);
            let count = count.min(places.len());
            let cut = |at: usize| places.len() * at / count;
            let micro_batch = |at: usize| data.train.batch(&places[cut(at)..cut(at + 1)]).unwrap();
            stage.set_batch((0..count).map(micro_batch).collect(), total);
            let step = trainer.step(&mut stage, count, RATE).unwrap();
            assert!(step.loss.is_finite());
        }
        let parameters = parameters(stage.network());
        let ours = stage.parameters_in_network().iter();
        assert_eq!(stage.parameters_in_network().len(), stage.parameters().len());
        ours.map(|at| (*at, parameters[*at].clone())).collect::<Vec<_>>()
    });
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    assert!(ends.iter().map(|(at, _)| *at).eq(0..ends.len()), "each parameter has one stage");
    ends.into_iter().map(|(_, values)| values).collect()
}

#[test]
fn pipelines_train_the_network_of_one_rank() {
    let data = data();
    // 40 samples in batches of 11 leave a last batch of 7; micro-batches of 11 / 3 are uneven.
    for (kind, worlds) in [(ModelKind::LeNet, 2..=4), (ModelKind::Dense, 2..=3)] {
        let [alone, before] = mirrored(1, || network(kind, &data, 0.5), &data, (11, STEPS, None));
        assert!(distance(&alone, &before) > 1e-2, "the network was trained");
        for n in worlds {
            for schedule in [PipelineSchedule::FillDrain, PipelineSchedule::OneForwardOneBackward] {
                for count in [1, 3] {
                    let split = pipelined(n, schedule, kind, &data, (11, count));
                    let distance = distance(&alone, &split);
                    let what = format!("{kind:?}, {n} stages, {schedule:?}, {count} micro-batches");
                    println!("{what}: {distance:e}");
                    assert!(distance <= 1e-5, "{what}: {distance:e}");
                }
            }
        }
    }
}

/// A tensor-parallel training: the network of one rank and its width, how it is trained.
struct Split {
    kind: ModelKind,
    width: f32,
    steps: usize,
    clip_norm: Option<f32>,
    frozen: &'static str,
}

impl Split {
    fn network(&self, data: &Dataset) -> Network {
        let mut network = network(self.kind, data, self.width);
        assert_eq!(network.freeze(self.frozen) > 0, self.frozen != NOTHING);
        network
    }

    /// The parameters that `n` ranks have parts of or all of, joined; and how many are split.
    fn joined(&self, n: usize, data: &Dataset) -> (Vec<Vec<f32>>, usize) {
        let ends = on_ranks(n, |comm| {
            let ranks = TensorParallel::new(comm);
            let mut model = TensorParallelNetwork::new(ranks, self.network(data)).unwrap();
            model.set_clip_norm(self.clip_norm);
            // No replicas: the gradients of a part are those of one rank.
            let own = Communicator::local(1).unwrap().remove(0);
            let mut trainer = Trainer::new(own, &mut model, settings(None)).unwrap();
            let mut losses = Vec::new();
            for step in 0..self.steps {
                let (places, total) = places(step, 11, 0, 1);
                let batch = Some(data.train.batch(&places).unwrap());
                let part = Part { batch, total };
                losses.push(trainer.step(&mut model, &[part], RATE).unwrap().loss.to_bits());
            }
            let values = parameters(&model).into_iter().enumerate();
            let split = |(at, values): (usize, Vec<f32>)| match model.is_split(at) {
                true => (true, model.spread(at, &values).unwrap()),
                false => (false, values),
            };
            let moments = model.network().buffers().iter();
            let moments = moments.map(|(_, var)| var.to_vec1::<f32>().unwrap());
            (values.map(split).collect::<Vec<_>>(), (losses, moments.collect::<Vec<_>>()))
        });
        let mut joined = ends[0].0.clone();
        for (values, seen) in &ends[1..] {
            assert!(seen == &ends[0].1, "all ranks have the same losses and moments, to the bit");
            for ((is_split, joined), (_, values)) in joined.iter_mut().zip(values) {
                if *is_split {
                    joined.iter_mut().zip(values).for_each(|(sum, it)| *sum += it);
                } else {
                    assert!(joined == values, "what all ranks have is the same, to the bit");
                }
            }
        }
        let split = joined.iter().filter(|(is_split, _)| *is_split).count();
        (joined.into_iter().map(|(_, values)| values).collect(), split)
    }
}

/// No layer's name.
const NOTHING: &str = "nothing";

#[test]
fn tensor_parallel_ranks_train_the_network_of_one_rank() {
    let data = data();
    let whole = |kind, steps| Split { kind, width: 1.0, steps, clip_norm: None, frozen: NOTHING };
    // The parameters that ranks have parts of: weights and biases by columns, weights by rows.
    for (split, parts) in [
        (whole(ModelKind::Dense, STEPS), 5),
        (whole(ModelKind::LeNet, STEPS), 5),
        (Split { clip_norm: Some(0.5), ..whole(ModelKind::LeNet, STEPS) }, 5),
        (Split { frozen: "conv", ..whole(ModelKind::LeNet, 5) }, 5),
        (Split { frozen: "dense2", ..whole(ModelKind::LeNet, 5) }, 4),
        // At width 0.25 rounding decides a rectifier in step 4: it is at its kink there.
        (Split { width: 0.5, ..whole(ModelKind::Vgg, 5) }, 3),
        // Training is chaotic there: rounding grows from step to step.
        (Split { width: 0.1, ..whole(ModelKind::MobileNet, 1) }, 2),
    ] {
        let Split { kind, steps, clip_norm, frozen, .. } = split;
        let make = || split.network(&data);
        let [alone, before] = mirrored(1, make, &data, (11, steps, clip_norm));
        assert!(distance(&alone, &before) > 1e-3, "the network was trained");
        // 10, 120, 256 and 512 units are not all divisible by 3, or by 4.
        for n in 1..=4 {
            let (joined, found) = split.joined(n, &data);
            let distance = distance(&alone, &joined);
            let what = format!("{kind:?}, {n} ranks, {clip_norm:?}, {frozen} frozen");
            println!("{what}: {distance:e}");
            assert!(distance <= 1e-5, "{what}: {distance:e}");
            assert_eq!(found, parts, "{what}");
        }
    }
}

#[test]
fn more_ranks_than_the_narrowest_layer_has_units_are_refused() {
    let data = data();
    let errors = on_ranks(11, |comm| {
        let network = network(ModelKind::LeNet, &data, 1.0);
        let ranks = TensorParallel::new(comm);
        TensorParallelNetwork::new(ranks, network).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|it| it.contains("11 ranks can't share a layer of 10 units")));
    // The layer of 10 units is split by its 256 inputs there.
    assert_eq!(most_ranks(&network(ModelKind::Vgg, &data, 1.0)).unwrap(), 256);
}

#[test]
fn layers_that_a_network_has_not_are_refused_and_those_that_it_has_are_timed() {
    let data = data();
    let layers = |range: Range<usize>| {
        NetworkStage::new(network(ModelKind::LeNet, &data, 1.0), data.shape, range)
    };
    for range in [3..3, 5..8] {
        let error = layers(range).unwrap_err().to_string();
        assert!(error.contains("use at most 7 stages"), "{error}");
    }
    let seconds = layer_seconds(&network(ModelKind::LeNet, &data, 1.0), data.shape, 2).unwrap();
    assert_eq!(seconds.len(), 7);
    assert!(seconds.iter().all(|it| it.is_finite() && *it >= 0.0));
}
