//! Lesson 3: MobileNetV2 with Adam on CIFAR-10's form, batches of 64 for each replica, and a
//! learning rate that grows with the replicas.

use super::{Checks, job};
use crate::cli::{Decay, LessonArgs, OptimizerName, Settings};
use crate::data::{Dataset, Generated};
use crate::error::Result;
use crate::models::ModelKind;
use crate::report::print;
use crate::run::{EpochReport, Links, in_threads};

const BATCH: usize = 64;
const RATE: f32 = 0.001;
/// How many times the loss falls: 5 to 6 times are seen where the lesson is quick.
const FALL: f64 = 2.0;
/// The accuracy: 0.70 and 0.68 are seen on 3,000 images of Fashion-MNIST in CIFAR-10's form.
const ACCURACY: f64 = 0.6;

/// The parameters, but for those of each channel and of each class of images: with 3 and 1,000 they
/// are the 3,504,872 of torchvision's network.
const PARAMETERS: (usize, usize, usize) = (2_223_008, 288, 1_281);
/// A network that has learnt nothing has a loss of about ln(classes): 1.1 to 1.2 times are seen.
const FIRST_LOSS: f64 = 0.35;

fn parameters(data: &Dataset) -> u64 {
    let (all, of_channel, of_class) = PARAMETERS;
    (all + data.shape.channels * of_channel + data.classes.len() * of_class) as u64
}

pub(super) fn run(args: &LessonArgs, checks: &mut Checks) -> Result<()> {
    let (images, epochs) = if args.quick { (192, 3) } else { (10_000, 3) };
    let generated = Generated { is_colour: true, train: images, test: 200 };
    for replicas in [1, 2] {
        let settings = Settings {
            model: ModelKind::MobileNet,
            optimizer: OptimizerName::Adam,
            batch: BATCH * replicas,
            lr: Some(RATE * replicas as f32),
            decay: Some(Decay::Constant),
            epochs,
            ..Settings::default()
        };
        let mut job = job(args, generated, (images, None), settings)?;
        job.data.limit(images);
        let ranks = in_threads(&job, replicas, Links::Fastest)?;
        for epoch in &ranks[0].epochs {
            print(&format!(
                "        {replicas} replicas, epoch {}: loss {:.4}, accuracy {:.2} %, {:.0} \
                 images/s",
                epoch.epoch,
                epoch.loss(),
                epoch.accuracy * 100.0,
                epoch.images_per_second()
            ))?;
        }
        let steps = images.min(job.data.train.len()).div_ceil(BATCH * replicas) * epochs;
        let what = format!("steps of {replicas} replicas");
        checks.equal(&what, steps as u64, ranks[0].steps)?;
        if replicas == 1 {
            let found = ranks[0].parameters as u64;
            checks.equal("parameters of MobileNetV2", parameters(&job.data), found)?;
            let found = ranks[0].epochs.first().and_then(|epoch| epoch.losses.first());
            let (expected, found) = ((job.data.classes.len() as f64).ln(), found.copied());
            let found = f64::from(found.unwrap_or(f32::NAN));
            checks.near(
                "loss before anything is learnt, ln(classes)",
                expected,
                found,
                FIRST_LOSS,
            )?;
        }
        let loss = |epoch: Option<&EpochReport>| epoch.map_or(f32::NAN, EpochReport::loss);
        let (first, last) = (loss(ranks[0].epochs.first()), loss(ranks[0].epochs.last()));
        let what = format!("first epoch's loss over last epoch's of {replicas} replicas");
        checks.at_least(&what, FALL, f64::from(first / last))?;
        // After a quick lesson images of the test are classified by chance; the accuracy on
        // generated images is not known.
        if args.data.is_some() && !args.quick {
            let what = format!("accuracy of {replicas} replicas");
            checks.at_least(&what, ACCURACY, ranks[0].accuracy())?;
        }
    }
    Ok(())
}
