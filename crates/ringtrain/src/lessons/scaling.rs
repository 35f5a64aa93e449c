//! Lesson 4: speed over 1, 2 and 4 replicas, for small and large batches; how much three models
//! compute for each byte that they communicate; optimizers for large batches.

use super::{Checks, job};
use crate::cli::{LessonArgs, OptimizerName, Settings, name};
use crate::data::Generated;
use crate::error::Result;
use crate::models::ModelKind;
use crate::report::print;
use crate::run::{Links, in_threads};

pub(super) fn run(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    speed(args)?;
    ratios(args, checks)?;
    large_batches(args, checks)
}

fn generated(train: usize) -> Generated {
    Generated { train, test: 500, ..Generated::default() }
}

/// The images of each size of data set.
fn images(args: &LessonArgs) -> [usize; 2] {
    if args.quick { [512, 2_048] } else { [4_000, 40_000] }
}

/// Images a second and the total time. They depend on the machine, so they are shown and not
/// checked.
fn speed(args: &LessonArgs) -> Result<()> {
    print("        images  batch  replicas  images/s  seconds  exposed")?;
    for images in images(args) {
        for batch in [32, 512] {
            for replicas in [1, 2, 4] {
                let settings = Settings { batch, epochs: 1, ..Settings::default() };
                let mut job = job(args, generated(images), (images, None), settings)?;
                job.data.limit(images);
                let images = job.data.train.len();
                let outcome = in_threads(&job, replicas, Links::Fastest)?.swap_remove(0);
                let Some(epoch) = outcome.epochs.first() else { continue };
                print(&format!(
                    "        {images:>6}  {batch:>5}  {replicas:>8}  {:>8.0}  {:>7.2}  {:>5.1} %",
                    epoch.images_per_second(),
                    epoch.seconds,
                    epoch.exposed / epoch.seconds * 100.0
                ))?;
            }
        }
    }
    Ok(())
}

/// Computation for each byte of gradients: a dense network has the least, because it uses each
/// weight once for each image; a convolution uses its weights at each place.
fn ratios(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let mut found = Vec::new();
    for model in [ModelKind::Dense, ModelKind::LeNet, ModelKind::MobileNet] {
        let images = if model == ModelKind::MobileNet { 128 } else { 512 };
        let settings = Settings { model, batch: 64, epochs: 1, ..Settings::default() };
        let mut job = job(
            args,
            Generated { is_colour: true, ..generated(images) },
            (images, None),
            settings,
        )?;
        job.data.limit(images);
        job.limit_tests(1);
        let outcome = in_threads(&job, 1, Links::Fastest)?.swap_remove(0);
        let seconds: f64 = outcome.epochs.iter().map(|epoch| epoch.seconds).sum();
        let megabytes = outcome.parameters as f64 * 4e-6;
        let ratio = seconds * 1e3 / outcome.steps as f64 / megabytes;
        print(&format!(
            "        {}: {:.2} MB of gradients, {ratio:.1} ms of computation per MB",
            name(&model),
            megabytes
        ))?;
        found.push(ratio);
    }
    checks.at_least(
        "computation per byte, LeNet's over the dense network's",
        1.0,
        found[1] / found[0],
    )?;
    checks.at_least(
        "computation per byte, MobileNet's over the dense network's",
        1.0,
        found[2] / found[0],
    )
}

/// LARS and LAMB with batches 16 times as large as those of SGD.
fn large_batches(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let images = images(args)[1];
    // A large batch needs some steps, and few images give few.
    let epochs = if args.quick { 8 } else { 4 };
    let train = |optimizer, batch, lr, warmup| -> Result<f64> {
        let settings =
            Settings { optimizer, batch, lr: Some(lr), warmup, epochs, ..Settings::default() };
        let mut job = job(args, generated(images), (images, None), settings)?;
        job.data.limit(images);
        let outcome = in_threads(&job, 2, Links::Fastest)?.swap_remove(0);
        print(&format!(
            "        {} in batches of {batch}: accuracy {:.2} %",
            name(&optimizer),
            outcome.accuracy() * 100.0
        ))?;
        Ok(outcome.accuracy())
    };
    let small = train(OptimizerName::Sgd, 32, 0.02, 0)?;
    for (optimizer, rate) in [(OptimizerName::Lars, 6.0), (OptimizerName::Lamb, 0.02)] {
        let large = train(optimizer, 512, rate, 4)?;
        let what =
            format!("accuracy of {} in batches of 512 over that of sgd in 32", name(&optimizer));
        checks.at_least(&what, 0.8, large / small)?;
    }
    Ok(())
}
