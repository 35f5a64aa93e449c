//! Networks: their gradients, and training by a strategy.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use std::sync::{Arc, Mutex};
use std::thread;

use candle_core::D;
use ringreduce::Communicator;
use ringtrain::data::{Batch, Dataset, Generated, Source};
use ringtrain::models::{ModelKind, Network};
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Parameters as _, Part, Settings, Sink, Strategy,
    Trainer, epoch_order, share,
};

fn data() -> Dataset {
    let form = Generated { train: 100, test: 10, ..Generated::default() };
    Dataset::load(&Source::Generated(form), None).unwrap()
}

fn network(kind: ModelKind, data: &Dataset, seed: u64) -> Network {
    Network::new(kind, data.shape, data.classes.len(), seed).unwrap()
}

fn parameters(network: &Network) -> Vec<f32> {
    let mut all = Vec::new();
    for (parameter, (_, count)) in network.parameters().into_iter().enumerate() {
        let mut values = vec![0.0; count];
        network.read(parameter, &mut values).unwrap();
        all.extend(values);
    }
    all
}

/// The distance of two vectors, relative to the length of the first.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    assert_eq!(one.len(), other.len());
    let square = |it: f32| f64::from(it).powi(2);
    let apart: f64 = one.iter().zip(other).map(|(one, other)| square(one - other)).sum();
    (apart / one.iter().map(|it| square(*it)).sum::<f64>()).sqrt()
}

/// The parameters of each rank after `steps` steps with batches of `batch` samples over all ranks.
fn trained(
    data: &Dataset,
    make: impl Fn(u64) -> Network + Sync,
    (n, batch, steps): (usize, usize, usize),
) -> Vec<Vec<f32>> {
    let count = data.train.len();
    let settings = Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::SGD,
        clip_norm: None,
        buckets: Some(BucketSizes { first: 4_000, others: 40_000 }),
    };
    let train = |comm: Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let mut network = make(rank as u64);
        let mut trainer = Trainer::new(comm, &mut network, settings).unwrap();
        let in_epoch = count.div_ceil(batch);
        for step in 0..steps {
            let order = epoch_order(count, 1, (step / in_epoch) as u64);
            let (places, total) = share(count, batch, step % in_epoch, rank, size);
            let batch = Some(data.train.batch(&order[places]).unwrap());
            trainer.step(&mut network, &[Part { batch, total }], 0.01).unwrap();
        }
        parameters(&network)
    };
    let train = &train;
    thread::scope(|scope| {
        let comms = Communicator::local(n).unwrap();
        let ranks: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || train(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_train_the_network_of_one_rank_with_the_whole_batch() {
    let data = data();
    for kind in [ModelKind::Dense, ModelKind::LeNet] {
        // 100 samples in batches of 11 leave a last batch of one, which not all ranks have a part
        // of.
        let make = |seed| network(kind, &data, seed);
        let alone = &trained(&data, make, (1, 11, 50))[0];
        assert!(distance(&parameters(&make(0)), alone) > 1e-4, "{kind:?}: it was trained");
        for n in [2, 3, 4] {
            for (rank, found) in trained(&data, make, (n, 11, 50)).iter().enumerate() {
                let distance = distance(alone, found);
                assert!(distance <= 1e-5, "{kind:?}, rank {rank} of {n}: {distance:e}");
            }
        }
    }
}

/// The gradients of a part, in the order in which they are passed on.
fn gradients(network: &mut Network, part: &Part<Batch>) -> Vec<(usize, Vec<f32>)> {
    let passed = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&passed);
    let sink: Sink = Arc::new(move |parameter, gradient| {
        to.lock().unwrap().push((parameter, gradient.to_vec()));
    });
    network.gradients(part, &sink).unwrap();
    passed.lock().unwrap().clone()
}

#[test]
fn gradients_come_last_layer_first_and_those_of_frozen_layers_not_at_all() {
    let data = data();
    let mut network = network(ModelKind::LeNet, &data, 1);
    let batch = data.train.batch(&[0, 1, 2]).unwrap();
    let part = Part { batch: Some(batch), total: 3 };
    let all = gradients(&mut network, &part);
    let names: Vec<String> = network.parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[0], "conv1.weight");
    let order: Vec<&str> = all.iter().map(|(parameter, _)| names[*parameter].as_str()).collect();
    let layers = ["dense3", "dense2", "dense1", "conv2", "conv1"];
    let expected = layers.map(|layer| [format!("{layer}.bias"), format!("{layer}.weight")]);
    assert_eq!(order, expected.concat());

    network.freeze("conv");
    assert_eq!(network.parameters()[0].0, "dense1.weight");
    assert_eq!(network.vars().len(), 6);
    let some = gradients(&mut network, &part);
    assert_eq!(some.len(), 6);
    // The others are what they were, under lower numbers.
    for ((full, one), (number, other)) in all.iter().zip(&some) {
        assert_eq!((*full - 4, one), (*number, other));
    }
}

#[test]
fn a_frozen_layer_passes_gradients_through_and_none_on() {
    let data = data();
    let part = Part { batch: Some(data.train.batch(&[0, 1, 2]).unwrap()), total: 3 };
    let whole = gradients(&mut network(ModelKind::LeNet, &data, 1), &part);
    let mut network = network(ModelKind::LeNet, &data, 1);
    network.freeze("dense2");
    // Parameters 6 and 7 are its; those behind it have lower numbers now.
    let expected: Vec<(usize, Vec<f32>)> = whole
        .into_iter()
        .filter(|(number, _)| !(6..8).contains(number))
        .map(|(number, gradient)| (if number < 6 { number } else { number - 2 }, gradient))
        .collect();
    assert_eq!(gradients(&mut network, &part), expected);
}

#[test]
fn the_same_seed_gives_the_same_network() {
    let data = data();
    let of = |seed| parameters(&network(ModelKind::LeNet, &data, seed));
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
    assert_eq!(of(3).len(), 44_426);
}

#[test]
fn networks_take_images_of_many_sizes_and_refuse_small_ones() {
    let form = |is_colour| Source::Generated(Generated { is_colour, train: 2, test: 1 });
    for (kind, is_colour, side) in [
        (ModelKind::Dense, true, 5),
        (ModelKind::LeNet, true, 33),
        (ModelKind::LeNet, false, 16),
        (ModelKind::MobileNet, false, 28),
        (ModelKind::MobileNet, true, 32),
        (ModelKind::MobileNet, true, 97),
        (ModelKind::MobileNet, true, 224),
        (ModelKind::Vgg, true, 32),
        (ModelKind::Vgg, false, 50),
    ] {
        let data = Dataset::load(&form(is_colour), Some(side)).unwrap();
        let network = Network::with_width(kind, data.shape, 7, 1, 0.25).unwrap();
        let batch = data.train.batch(&[0, 1]).unwrap();
        for is_training in [false, true] {
            let scores = network.forward(&batch.images, is_training).unwrap();
            assert_eq!(scores.dims(), [2, 7], "{kind:?} of {side}");
        }
    }
    for (kind, side) in [(ModelKind::LeNet, 15), (ModelKind::MobileNet, 27), (ModelKind::Vgg, 15)] {
        let data = Dataset::load(&form(true), Some(side)).unwrap();
        let error = Network::new(kind, data.shape, 10, 1).unwrap_err().to_string();
        assert!(error.starts_with(&format!("images are {side}x{side}: ")), "{error}");
    }
}

#[test]
fn the_parameters_are_as_many_as_the_papers_say() {
    let data = data();
    let count = |network: &Network| parameters(network).len();
    let shape = ringtrain::data::Shape { channels: 3, rows: 224, columns: 224 };
    // MobileNetV2 has 3.5 million for 1000 classes (3,504,872 in PyTorch's torchvision).
    let mobilenet = Network::new(ModelKind::MobileNet, shape, 1000, 1).unwrap();
    assert_eq!(count(&mobilenet), 3_504_872);
    assert_eq!(count(&network(ModelKind::LeNet, &data, 1)), 44_426);
    let wide = Network::with_width(ModelKind::Dense, data.shape, 10, 1, 7.4).unwrap();
    assert!((10.0e6..10.5e6).contains(&(count(&wide) as f64)), "{}", count(&wide));
}

#[test]
fn running_moments_follow_the_batches_unless_they_are_frozen() {
    let form = Generated { is_colour: true, train: 40, test: 1 };
    let data = Dataset::load(&Source::Generated(form), None).unwrap();
    let batch = data.train.batch(&(0..40).collect::<Vec<usize>>()).unwrap();
    let mut network = Network::with_width(ModelKind::MobileNet, data.shape, 10, 1, 0.1).unwrap();
    let buffer = |network: &Network, place: usize| -> (String, Vec<f32>) {
        let (name, var) = &network.buffers()[place];
        (name.clone(), var.to_vec1().unwrap())
    };
    let first = buffer(&network, 0);
    assert_eq!((first.0.as_str(), first.1[0]), ("stem.norm.mean", 0.0));
    let scores = |network: &Network, is_training| -> Vec<f32> {
        network
            .forward(&batch.images, is_training)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    };
    let before = scores(&network, false);
    assert_eq!(buffer(&network, 0), first, "inference changes nothing");
    let in_training = scores(&network, true);
    let once = buffer(&network, 0);
    assert_ne!(once, first);
    // After many batches the running moments are those of the batch.
    for _ in 0..100 {
        scores(&network, true);
    }
    let after = scores(&network, false);
    assert!(distance(&in_training, &after) < 0.05, "{}", distance(&in_training, &after));
    assert!(distance(&in_training, &before) > 0.1);
    let settled = buffer(&network, 0);
    network.freeze("stem");
    scores(&network, true);
    assert_eq!(buffer(&network, 0), settled);
    assert!(network.vars().iter().all(|(name, _)| !name.starts_with("stem")));
}

#[test]
fn transfer_learning_trains_the_classifier_alone() {
    let form = Generated { is_colour: true, train: 20, test: 1 };
    let data = Dataset::load(&Source::Generated(form), None).unwrap();
    let mut network = Network::with_width(ModelKind::Vgg, data.shape, 10, 1, 0.25).unwrap();
    network.freeze("features");
    let batch = data.train.batch(&[0, 1, 2, 3, 4]).unwrap();
    let names: Vec<String> = network.parameters().into_iter().map(|(name, _)| name).collect();
    let part = Part { batch: Some(batch), total: 5 };
    let passed: Vec<usize> =
        gradients(&mut network, &part).into_iter().map(|(number, _)| number).collect();
    assert_eq!(passed, [3, 2, 1, 0]);
    assert!(names.iter().all(|name| name.starts_with("classifier")), "{names:?}");
}

#[test]
fn a_loss_that_is_no_number_is_seen() {
    let data = data();
    let mut network = network(ModelKind::LeNet, &data, 1);
    network.write(0, &[f32::NAN; 150]).unwrap();
    let part = Part { batch: Some(data.train.batch(&[0]).unwrap()), total: 1 };
    let sink: Sink = Arc::new(|_, _| {});
    assert!(network.gradients(&part, &sink).unwrap().is_nan());
    let error = network.write(0, &[0.0; 149]).unwrap_err().to_string();
    assert!(error.contains("149 values"), "{error}");
    let error = network.read(0, &mut [0.0; 151]).unwrap_err().to_string();
    assert!(error.contains("151 values"), "{error}");
}

#[test]
fn lenet_learns_fashion_mnist_in_an_epoch() {
    let Some(dir) = launch::fashion_mnist("lenet_learns_fashion_mnist_in_an_epoch") else { return };
    let data = Dataset::load(&Source::detect(&dir).unwrap(), None).unwrap();
    let mut network = network(ModelKind::LeNet, &data, 1);
    let comm = Communicator::local(1).unwrap().remove(0);
    let settings = Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: None,
        buckets: None,
    };
    let mut trainer = Trainer::new(comm, &mut network, settings).unwrap();
    let count = data.train.len();
    let order = epoch_order(count, 1, 0);
    for step in 0..count.div_ceil(16) {
        let (places, total) = share(count, 16, step, 0, 1);
        let batch = Some(data.train.batch(&order[places]).unwrap());
        trainer.step(&mut network, &[Part { batch, total }], 0.01).unwrap();
    }
    let places: Vec<usize> = (0..data.test.len()).collect();
    let batch = data.test.batch(&places).unwrap();
    let found = network.forward(&batch.images, false).unwrap().argmax(D::Minus1).unwrap();
    let hits: Vec<u8> = found.eq(&batch.labels).unwrap().to_vec1().unwrap();
    let accuracy = hits.iter().map(|hit| f64::from(*hit)).sum::<f64>() / hits.len() as f64;
    assert!(accuracy > 0.6, "{accuracy} after {count} images");
}
