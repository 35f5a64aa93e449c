//! Networks with batch norm of all ranks, trained on uneven parts of batches, beside one rank with
//! the whole batches.

use std::thread;

use candle_core::{Device, Tensor};
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Optimizer, Parameters, Part, Settings, Strategy, SyncBatchNorm,
    Trainer, share,
};

use super::builder::Builder;
use super::ops::Activation::{Identity, Relu6};
use super::{ModelKind, Network};
use crate::data::{Dataset, Generated, Source};

const STEPS: usize = 50;
const SAMPLES: usize = 40;

/// The values of all parameters.
type Values = Vec<f32>;

fn data() -> Dataset {
    let form = Generated { is_colour: true, train: SAMPLES, test: 1 };
    Dataset::load(&Source::Generated(form), None).unwrap()
}

/// A MobileNet with channels a tenth as many.
fn mobilenet(data: &Dataset) -> Network {
    Network::with_width(ModelKind::MobileNet, data.shape, data.classes.len(), 5, 0.1).unwrap()
}

/// The layers of MobileNet with one block: each kind of layer that has batch norm, and a residual.
fn small(data: &Dataset) -> Network {
    let mut builder = Builder::new(5);
    let (channels, wide) = (16, 48);
    builder.conv_norm("stem", (data.shape.channels, channels), (3, 2), Relu6).unwrap();
    let block = |builder: &mut Builder| {
        builder.conv_norm("block.expand", (channels, wide), (1, 1), Relu6)?;
        builder.depthwise_norm("block.depthwise", wide, 1, Relu6)?;
        builder.conv_norm("block.project", (wide, channels), (1, 1), Identity)
    };
    builder.block("block", true, block).unwrap();
    builder.conv_norm("head", (channels, wide), (1, 1), Relu6).unwrap();
    builder.mean("mean");
    builder.linear("classifier", wide, data.classes.len(), Identity).unwrap();
    Network::of(builder)
}

fn read(network: &Network) -> Values {
    let mut all = Vec::new();
    for (parameter, (_, count)) in network.parameters().into_iter().enumerate() {
        let start = all.len();
        all.resize(start + count, 0.0);
        network.read(parameter, &mut all[start..]).unwrap();
    }
    all
}

fn write(network: &mut Network, from: &[f32]) {
    let mut rest = from;
    for (parameter, (_, count)) in network.parameters().into_iter().enumerate() {
        let (values, after) = rest.split_at(count);
        network.write(parameter, values).unwrap();
        rest = after;
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|it| f64::from(it).powi(2)).sum::<f64>().sqrt()
}

/// The distance of two lists of parameters, relative to the length of the first.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    norm(one.iter().zip(other).map(|(one, other)| one - other)) / norm(one.iter().copied())
}

/// How a network is trained.
#[derive(Clone, Copy)]
struct How {
    batch: usize,
    rate: f32,
    momentum: f32,
}

fn settings(how: How) -> Settings {
    Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::Sgd { momentum: how.momentum, weight_decay: 0.001 },
        clip_norm: None,
        buckets: Some(BucketSizes { first: 4_000, others: 40_000 }),
    }
}

/// Makes one step, with the samples of a rank.
fn step(trainer: &mut Trainer, network: &mut Network, data: &Dataset, how: How, step: usize) {
    let (rank, size) = trainer.with_communicator(|comm| (comm.rank(), comm.size()));
    let in_epoch = SAMPLES.div_ceil(how.batch);
    let (places, total) = share(SAMPLES, how.batch, step % in_epoch, rank, size);
    // A rank without samples takes part in batch norm.
    let batch = Some(data.train.batch(&places.collect::<Vec<_>>()).unwrap());
    trainer.step(network, &[Part { batch, total }], how.rate).unwrap();
}

/// The results of ranks that train, the same at all of them.
#[derive(Debug, PartialEq)]
struct Trained {
    /// The parameters before the first step and after each step.
    seen: Vec<Values>,
    /// The running moments of batch norm.
    moments: Vec<f32>,
}

fn trained(
    n: usize,
    make: impl Fn() -> Network + Sync,
    data: &Dataset,
    (how, steps): (How, usize),
) -> Trained {
    let train = |mut comm: Communicator| {
        let mut network = make();
        let ranks = SyncBatchNorm::new(comm.duplicate().unwrap(), 1e-5);
        network.synchronise(Box::new(ranks));
        let mut trainer = Trainer::new(comm, &mut network, settings(how)).unwrap();
        let mut seen = vec![read(&network)];
        for at in 0..steps {
            step(&mut trainer, &mut network, data, how, at);
            seen.push(read(&network));
        }
        let moments = network.buffers().iter().flat_map(|(_, var)| var.to_vec1::<f32>().unwrap());
        Trained { seen, moments: moments.collect() }
    };
    let train = &train;
    let mut ranks: Vec<Trained> = thread::scope(|scope| {
        let comms = Communicator::local(n).unwrap();
        let ranks: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || train(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "ranks differ");
    ranks.swap_remove(0)
}

#[test]
fn fifty_steps_of_ranks_with_batch_norm_end_as_those_of_one_rank() {
    let data = data();
    // 40 samples in batches of 11 leave a last batch of 7.
    let how = How { batch: 11, rate: 0.005, momentum: 0.5 };
    let train = |n: usize| trained(n, || small(&data), &data, (how, STEPS));
    let alone = train(1);
    let moved = distance(&alone.seen[0], &alone.seen[STEPS]);
    assert!(moved > 1e-2, "the network was trained: {moved:e}");
    for n in [2, 3, 4] {
        let ranks = train(n);
        let parameters = distance(&alone.seen[STEPS], &ranks.seen[STEPS]);
        let moments = distance(&alone.moments, &ranks.moments);
        println!("{n} ranks: parameters {parameters:e}, moments {moments:e}");
        assert!(parameters <= 1e-5 && moments <= 1e-5, "{n}: {parameters:e}, {moments:e}");
    }
}

/// Each step of the ranks is compared with that of one rank which begins with their parameters, as
/// 50 steps in a row enlarge rounding too much (see the next test).
#[test]
fn each_step_of_ranks_that_train_mobilenet_is_that_of_one_rank() {
    let data = data();
    // With batches of 3 a rank of 4 has no sample, and the last batch has one.
    for (n, batch) in [(2, 11), (3, 11), (4, 11), (4, 3)] {
        let how = How { batch, rate: 0.01, momentum: 0.0 };
        let ranks = trained(n, || mobilenet(&data), &data, (how, STEPS));
        for (at, pair) in ranks.seen.windows(2).enumerate() {
            let mut network = mobilenet(&data);
            write(&mut network, &pair[0]);
            let comm = Communicator::local(1).unwrap().remove(0);
            let mut trainer = Trainer::new(comm, &mut network, settings(how)).unwrap();
            step(&mut trainer, &mut network, &data, how, at);
            let difference = |one: &[f32], other: &[f32]| -> Values {
                one.iter().zip(other).map(|(one, other)| one - other).collect()
            };
            // Relative to what the step changes.
            let alone = difference(&read(&network), &pair[0]);
            let error = distance(&alone, &difference(&pair[1], &pair[0]));
            assert!(error <= 1e-5, "{n} ranks, batches of {batch}, step {at}: {error:e}");
        }
    }
}

/// Training with batch norm of few values in many layers is chaotic: a change of the last binary
/// digit of a thousandth of the first weights moves one rank's parameters as far as other numbers
/// of ranks, which add up gradients in another order, do.
#[test]
fn mobilenet_enlarges_rounding_as_much_on_one_rank_as_on_many() {
    let data = data();
    let (how, steps) = (How { batch: 11, rate: 0.01, momentum: 0.0 }, 10);
    let rounded = || {
        let mut network = mobilenet(&data);
        let mut values = read(&network);
        values.iter_mut().step_by(1000).for_each(|value| *value = value.next_up());
        write(&mut network, &values);
        network
    };
    let alone = trained(1, || mobilenet(&data), &data, (how, steps)).seen;
    let rounded = trained(1, rounded, &data, (how, steps)).seen;
    let apart = distance(&alone[steps], &rounded[steps]);
    assert!(distance(&alone[0], &rounded[0]) < 1e-8 && apart > 1e-3, "{apart:e}");
    for n in [2, 3, 4] {
        let ranks = trained(n, || mobilenet(&data), &data, (how, steps)).seen;
        for at in 1..=steps {
            let many = distance(&alone[at], &ranks[at]);
            let one = distance(&alone[at], &rounded[at]);
            assert!(many <= 2.0 * one, "{n} ranks, step {at}: {many:e}, one rank {one:e}");
        }
    }
}

#[test]
fn running_moments_go_a_tenth_of_the_way_to_those_of_a_batch() {
    let mut builder = Builder::new(1);
    builder.conv_norm("only", (1, 1), (1, 1), Identity).unwrap();
    let mut network = Network::of(builder);
    network.write(0, &[1.0]).unwrap();
    let images = Tensor::from_slice(&[1_f32, 2.0, 3.0, 4.0], (2, 1, 1, 2), &Device::Cpu).unwrap();
    network.forward(&images, true).unwrap();
    let moments = network.buffers().iter().flat_map(|(_, var)| var.to_vec1::<f32>().unwrap());
    // From 0 and 1 towards the mean and the variance without bias.
    let expected = [0.1 * 2.5, 0.9 + 0.1 * 5.0 / 3.0];
    assert!(
        moments.zip(expected).all(|(found, expected): (f32, f32)| (found - expected).abs() < 1e-6)
    );
}
