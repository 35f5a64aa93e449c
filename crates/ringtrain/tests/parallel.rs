//! Networks split over ranks, by layers and within layers, beside one rank that has them whole.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ops::Range;
use std::thread;

use ringreduce::Communicator;
use ringtrain::data::{Dataset, Generated, Source};
use ringtrain::models::{ModelKind, Network};
use ringtrain::parallel::{DensePart, NetworkStage, layer_seconds};
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Part, PipelineSchedule, PipelineSettings,
    PipelineTrainer, Settings, Stage, Strategy, TensorParallel, Trainer, balanced_stages, share,
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

fn settings() -> Settings {
    Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: SGD,
        clip_norm: None,
        buckets: Some(BucketSizes { first: 4_000, others: 40_000 }),
    }
}

/// The samples of a step, of which the last ones of the data make a shorter batch.
fn places(step: usize, batch: usize, rank: usize, size: usize) -> (Vec<usize>, usize) {
    let (places, total) = share(SAMPLES, batch, step % SAMPLES.div_ceil(batch), rank, size);
    (places.collect(), total)
}

/// The parameters after [`STEPS`] steps of data-parallel ranks, and the first ones.
fn mirrored(
    n: usize,
    make: impl Fn() -> Network + Sync,
    data: &Dataset,
    batch: usize,
) -> [Vec<Vec<f32>>; 2] {
    let ends = on_ranks(n, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut network = make();
        let before = parameters(&network);
        let mut trainer = Trainer::new(comm, &mut network, settings()).unwrap();
        for step in 0..STEPS {
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
        assert_eq!(stage.parameters_in_network().len(), Stage::parameters(&stage).len());
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
        let [alone, before] = mirrored(1, || network(kind, &data, 0.5), &data, 11);
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

#[test]
fn tensor_parallel_ranks_train_the_network_of_one_rank() {
    let data = data();
    let [alone, before] = mirrored(1, || network(ModelKind::Dense, &data, 1.0), &data, 11);
    assert!(distance(&alone, &before) > 1e-2, "the network was trained");
    // 512, 256 and 10 units are not divisible by 3.
    for n in 1..=4 {
        let ends = on_ranks(n, |comm| {
            let ranks = TensorParallel::new(comm);
            let mut model = DensePart::new(ranks, data.shape, data.classes.len(), SEED).unwrap();
            // No replicas: the gradients of a part are those of one rank.
            let own = Communicator::local(1).unwrap().remove(0);
            let mut trainer = Trainer::new(own, &mut model, settings()).unwrap();
            let mut losses = Vec::new();
            for step in 0..STEPS {
                let (places, total) = places(step, 11, 0, 1);
                let batch = Some(data.train.batch(&places).unwrap());
                let part = Part { batch, total };
                losses.push(trainer.step(&mut model, &[part], RATE).unwrap().loss.to_bits());
            }
            (model.parts().clone(), parameters(&model), losses)
        });
        let mut joined = before.clone();
        for (parts, parameters, losses) in &ends {
            assert_eq!(losses, &ends[0].2);
            for (layer, part) in parts.iter().enumerate() {
                part.put(&parameters[2 * layer], &mut joined[2 * layer]).unwrap();
                joined[2 * layer + 1][part.outputs.clone()]
                    .copy_from_slice(&parameters[2 * layer + 1]);
            }
        }
        let distance = distance(&alone, &joined);
        println!("{n} ranks: {distance:e}");
        assert!(distance <= 1e-5, "{n} ranks: {distance:e}");
    }
    let errors = on_ranks(11, |comm| {
        let ranks = TensorParallel::new(comm);
        DensePart::new(ranks, data.shape, 10, SEED).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|it| it.contains("11 ranks can't share a layer of 10 units")));
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
