//! Lesson 5: transfer learning on a folder of images. A VGG-like network learns one half of the
//! classes as a whole; then its convolutions are frozen, and its dense layers alone learn the other
//! half. Only what is trained is communicated. Beside it stands the same training on convolutions
//! that have learnt nothing.

use std::sync::Arc;

use ringreduce::{Algorithm, Builder, Communicator, ReduceOp};
use strategy::{CrossDeviceOp, Part, Strategy, Trainer, epoch_order, share};

use super::{Checks, job};
use crate::cli::{LessonArgs, OptimizerName, Settings};
use crate::data::{Dataset, Generated, Loader, Samples};
use crate::error::{Error, Result};
use crate::models::{ModelKind, Network};
use crate::report::print;
use crate::run::test;
use crate::run::world::{self, sent_bytes};

/// The side to which images are resized.
const SIDE: usize = 32;
const RANKS: usize = 2;
const BATCH: usize = 32;
/// The epochs of a training, and the fewest steps: a small folder is gone through more often.
/// A quick lesson has half of both.
const EPOCHS: usize = 8;
const STEPS: usize = 256;
/// The most epochs whose figures are printed.
const LINES: usize = 8;
/// The images that are generated, or taken if the lesson is quick.
const IMAGES: usize = 2_048;
const RATE: f32 = 0.001;
/// A quarter of the VGG's channels, so that a processor trains it in a minute.
const WIDTH: f32 = 0.25;
const SEED: u64 = 1;
/// The layers that are frozen.
const FEATURES: &str = "features";
/// The images of one test batch.
const TEST_BATCH: usize = 250;
/// Threads that make batches, and how many batches they are ahead.
const LOADER: (usize, usize) = (1, 4);

/// The accuracy on the other classes: seen are 0.98 to 1.00 on generated images, and 0.85 on images
/// of Fashion-MNIST in folders, where features that have learnt nothing serve as well. On generated
/// ones learnt features do 1.4 to 1.6 times as well.
const OF_GENERATED: f64 = 0.85;
const OF_FOLDER: f64 = 0.75;
const GAIN: f64 = 1.2;

/// The images of some classes, and how often a network sees them.
struct Task {
    epochs: usize,
    /// The places of the images.
    train: Vec<usize>,
    test: Vec<usize>,
}

/// The results of a training.
struct Found {
    /// The mean loss and the accuracy of each epoch.
    epochs: Vec<(f32, f64)>,
    /// The bytes that this rank has sent in a step.
    bytes: u64,
    /// The trained values.
    parameters: usize,
}

impl Found {
    fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(0.0, |(_, accuracy)| *accuracy)
    }
}

/// The names of the trainings of a rank, in their order.
const NAMES: [&str; 3] = [
    "first classes, all layers",
    "other classes, dense layers",
    "other classes, dense layers on features that have learnt nothing",
];

pub(super) fn run(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let generated = Generated { is_colour: true, train: IMAGES, test: 400 };
    let data = job(args, generated, (IMAGES, Some(SIDE)), Settings::default())?.data;
    let [first, others] = halves(&data, args.quick)?;
    let ring = Builder::default().algorithm(Algorithm::Ring);
    let ranks = world::run(&ring, RANKS, &|comm| rank(comm, &data, &first, &others))?;
    for (name, found) in NAMES.iter().zip(&ranks[0]) {
        let all = found.epochs.len();
        let shown = (1..=all).filter(|epoch| (all - epoch).is_multiple_of(all.div_ceil(LINES)));
        for epoch in shown {
            let (loss, accuracy) = found.epochs[epoch - 1];
            print(&format!(
                "        {name}, epoch {epoch}: loss {loss:.4}, accuracy {:.2} %",
                accuracy * 100.0
            ))?;
        }
        // Gradients of S bytes; the loss and what fills up a bucket are a little more.
        let formula = 4 * found.parameters * 2 * (RANKS - 1) / RANKS;
        let what = format!("bytes that a rank sends in a step, {name}");
        checks.near(&what, formula as f64, found.bytes as f64, 0.01)?;
    }
    let [whole, dense, untrained] = &ranks[0];
    let saved = whole.bytes as f64 / dense.bytes as f64;
    checks.at_least("bytes of all layers over bytes of dense layers", 1.5, saved)?;
    let expected = if args.data.is_some() { OF_FOLDER } else { OF_GENERATED };
    checks.at_least("accuracy on the other classes", expected, dense.accuracy())?;
    let gain = dense.accuracy() / untrained.accuracy();
    let what = "the same over that on features that have learnt nothing";
    if args.data.is_some() {
        return print(&format!("        {what}: {gain:.3}"));
    }
    checks.at_least(what, GAIN, gain)
}

/// One task with the first half of the classes, and one with the others.
fn halves(data: &Dataset, is_quick: bool) -> Result<[Task; 2]> {
    let classes = data.classes.len();
    if classes < 4 {
        return Err(Error::Unfit(format!(
            "{} has {classes} classes: this lesson needs 2 to begin with and 2 others",
            data.origin
        )));
    }
    let places = |samples: &Samples, is_first: bool| -> Vec<usize> {
        let labels = samples.labels().iter().enumerate();
        let is_wanted = |label: u32| ((label as usize) < classes / 2) == is_first;
        labels.filter(|(_, label)| is_wanted(**label)).map(|(place, _)| place).collect()
    };
    Ok([true, false].map(|is_first| {
        let (train, test) = (places(&data.train, is_first), places(&data.test, is_first));
        let steps = train.len().div_ceil(BATCH).max(1);
        let epochs = EPOCHS.max(STEPS.div_ceil(steps)) / if is_quick { 2 } else { 1 };
        Task { epochs, train, test }
    }))
}

fn rank(mut comm: Communicator, data: &Dataset, first: &Task, others: &Task) -> Result<[Found; 3]> {
    let network =
        || Network::with_width(ModelKind::Vgg, data.shape, data.classes.len(), SEED, WIDTH);
    let mut learnt = network()?;
    let whole = train(comm.duplicate()?, &mut learnt, data, first)?;
    learnt.freeze(FEATURES);
    let dense = train(comm.duplicate()?, &mut learnt, data, others)?;
    let mut untrained = network()?;
    untrained.freeze(FEATURES);
    let untrained = train(comm, &mut untrained, data, others)?;
    Ok([whole, dense, untrained])
}

/// Trains what is not frozen.
fn train(comm: Communicator, network: &mut Network, data: &Dataset, task: &Task) -> Result<Found> {
    let settings = strategy::Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: OptimizerName::Adam.optimizer(0.0, 0.0),
        clip_norm: None,
        buckets: None,
    };
    let (rank, size) = (comm.rank(), comm.size());
    let mut trainer = Trainer::new(comm, network, settings)?;
    let sent = |trainer: &Trainer| trainer.with_communicator(|comm| sent_bytes(&comm.monitor()));
    let count = task.train.len();
    let (mut epochs, mut bytes) = (Vec::new(), 0);
    for epoch in 0..task.epochs {
        let order = epoch_order(count, SEED, epoch as u64);
        let (mut batches, mut totals) = (Vec::new(), Vec::new());
        for step in 0..count.div_ceil(BATCH) {
            let (mine, total) = share(count, BATCH, step, rank, size);
            batches.push(order[mine].iter().map(|at| task.train[*at]).collect());
            totals.push(total);
        }
        let loader = Loader::new(Arc::clone(&data.train), batches, LOADER.0, LOADER.1)?;
        let (mut loss, before) = (0.0, sent(&trainer));
        for (batch, total) in loader.zip(&totals) {
            let part = Part { batch: Some(batch?), total: *total };
            loss += trainer.step(network, &[part], RATE)?.loss / totals.len() as f32;
        }
        bytes += sent(&trainer) - before;
        epochs.push((loss, accuracy(&trainer, network, data, task)?));
    }
    let parameters = network.vars().iter().map(|(_, var)| var.elem_count()).sum();
    Ok(Found { epochs, bytes: bytes / trainer.steps().max(1), parameters })
}

/// The share of a task's test images that are classified right, each of them by one rank.
fn accuracy(trainer: &Trainer, network: &Network, data: &Dataset, task: &Task) -> Result<f64> {
    let (rank, size) = trainer.with_communicator(|comm| (comm.rank(), comm.size()));
    let mine: Vec<usize> = task.test.iter().skip(rank).step_by(size).copied().collect();
    let mut hits = [0];
    for places in mine.chunks(TEST_BATCH) {
        hits[0] += test(network, &data.test.batch(places)?)?.right;
    }
    trainer.with_communicator(|comm| comm.all_reduce(&mut hits, ReduceOp::Sum))?;
    Ok(hits[0] as f64 / task.test.len().max(1) as f64)
}
