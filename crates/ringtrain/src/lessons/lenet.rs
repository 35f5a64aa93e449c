//! Lesson 2: LeNet on Fashion-MNIST's form with 2 ranks, batches of 256 and a learning rate of 0.2.

use super::{Checks, job};
use crate::cli::{Decay, LessonArgs, Settings};
use crate::data::Generated;
use crate::error::Result;
use crate::models::ModelKind;
use crate::report::print;
use crate::run::{Links, in_threads};

/// Epochs, and the accuracy after them: 0.82 is seen on 3,000 images of Fashion-MNIST.
const FULL: (usize, f64) = (20, 0.75);
const QUICK: (usize, f64) = (6, 0.5);

pub(super) fn run(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let (epochs, accuracy) = if args.quick { QUICK } else { FULL };
    let settings = Settings {
        model: ModelKind::LeNet,
        batch: 256,
        lr: Some(0.2),
        momentum: 0.0,
        decay: Some(Decay::Constant),
        epochs,
        ..Settings::default()
    };
    let generated = Generated { train: 4_096, test: 1_000, ..Generated::default() };
    let job = job(args, generated, (4_096, None), settings)?;
    print(&format!("{}: {} images", job.data.origin, job.data.train.len()))?;
    let two = in_threads(&job, 2, Links::Fastest)?.swap_remove(0);
    for epoch in &two.epochs {
        print(&format!(
            "        epoch {}: loss {:.4}, accuracy {:.2} %, {:.1} s",
            epoch.epoch,
            epoch.loss(),
            epoch.accuracy * 100.0,
            epoch.seconds
        ))?;
    }
    checks.at_least("accuracy after all epochs", accuracy, two.accuracy())?;
    // One rank with the same batches makes the same steps, but for rounding.
    let mut job = job;
    job.settings.epochs = 1;
    let one = in_threads(&job, 1, Links::Fastest)?.swap_remove(0);
    let loss = |outcome: &crate::run::Outcome| {
        outcome.epochs.first().map_or(f64::NAN, |epoch| f64::from(epoch.loss()))
    };
    checks.near("mean loss of epoch 1 on 2 ranks and on 1", loss(&one), loss(&two), 1e-3)
}
