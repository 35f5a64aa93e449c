//! Five lessons of distributed training, with fixed seeds and figures that are checked.

mod checks;
mod lenet;
mod mobilenet;
mod ring;
mod scaling;
mod transfer;

use checks::Checks;

use crate::cli::{DataArgs, LessonArgs, LessonName, Settings};
use crate::data::{Generated, Source};
use crate::error::{Error, Result};
use crate::run::Job;
use crate::run::world::refuse_launcher;

/// Runs a lesson: prints what it does and each figure beside the expected one.
///
/// # Errors
/// Those of the trainings; and if a figure is not as expected.
pub fn lesson(args: &LessonArgs) -> Result<()> {
    refuse_launcher("lesson")?;
    match &args.data {
        Some(_) if args.name == LessonName::Ring => {
            let text = "--data is not for lesson ring, which takes no images: leave it out";
            return Err(Error::Unfit(text.into()));
        }
        Some(dir) => drop(Source::detect(dir)?),
        None => {}
    }
    let mut checks = Checks::default();
    match args.name {
        LessonName::Ring => ring::run(&mut checks)?,
        LessonName::Lenet => lenet::run(args, &mut checks)?,
        LessonName::Mobilenet => mobilenet::run(args, &mut checks)?,
        LessonName::Scaling => scaling::run(args, &mut checks)?,
        LessonName::Transfer => transfer::run(args, &mut checks)?,
    }
    checks.end()
}

/// The images of a lesson: those of its folder, the first `limit` if it is quick; or generated
/// ones.
fn job(
    args: &LessonArgs,
    generated: Generated,
    (limit, side): (usize, Option<usize>),
    settings: Settings,
) -> Result<Job> {
    let limit = args.quick.then_some(limit);
    let data = DataArgs { data: args.data.clone(), side, limit };
    let mut job = Job::load(&data, generated, settings)?;
    let (batch, count) = (job.settings.batch, job.data.train.len());
    if batch > count {
        return Err(Error::Unfit(format!(
            "{} has {count} training images, and this lesson takes batches of {batch}: take a \
             folder with more",
            job.data.origin
        )));
    }
    if args.quick {
        job.limit_tests(limit.unwrap_or_default());
    }
    Ok(job)
}
