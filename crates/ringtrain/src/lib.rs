//! Data-parallel training with ringreduce. Every rank holds the whole network and a slice of each
//! batch; after each backward pass the gradients are averaged over the ranks, bucket by bucket.
//! `cli` is the command line · `data` the images · `models` the networks · `parallel` networks
//! split over ranks · `bucket` variables as one vector · `group` the ranks and their time · `trainer`
//! steps and epochs · `progress` the recovery after ranks left or joined · `report` the output. Law:
//! n ranks with batch B/n have the loss curve of one rank with batch B, except for rounding.
#![deny(unsafe_code)]
#![allow(missing_docs, reason = "the names say it; only the tests of this example use the library")]

mod bucket;
mod cli;
pub mod data;
mod error;
mod group;
pub mod models;
pub mod parallel;
mod progress;
mod report;
mod trainer;

use candle_core::Device;
use ringreduce::Communicator;

pub use cli::{Args, Settings};
pub use data::{Dataset, Generated, Source};
pub use error::{Error, Result};
pub use report::EpochReport;
pub use trainer::Trainer;

use report::Report;

/// Connects to the other ranks and trains with these arguments.
pub fn run(args: &Args) -> Result<()> {
    let comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    // The training runs on candle's threads, so no operation has to be passed to them.
    Device::Cpu.with_context(|| train(args, comm)).map_err(|source| match size {
        1 => source,
        _ => Error::OnRank { rank, size, source: Box::new(source) },
    })
}

fn train(args: &Args, comm: Communicator) -> Result<()> {
    let mut data = match &args.data {
        Some(dir) => Dataset::load(&Source::detect(dir)?, None)?,
        None => Dataset::load(&Source::Generated(Generated::default()), None)?,
    };
    if let Some(count) = args.limit {
        data.limit(count);
    }
    let (rank, size) = (comm.rank(), comm.size());
    let mut report = Report::new(rank, args.json.clone())?;
    let mut trainer = Trainer::new(comm, &data, args.settings.clone())?;
    trainer.lose_at(args.lose);
    report.begin(&data, &args.settings, size, trainer.parameters().len())?;
    while trainer.epochs().len() < args.settings.epochs {
        let number = trainer.epochs().len() + 1;
        let bar = report.bar(number, &args.settings, trainer.steps_per_epoch());
        let epoch = trainer.epoch(&data, || bar.inc(1))?;
        bar.finish_and_clear();
        report.lead(trainer.rank())?;
        report.epoch(&epoch)?;
    }
    let weights = format!("{:016x}", trainer.digest()?);
    report.lead(trainer.rank())?;
    report.end(&args.settings, trainer.size(), trainer.epochs(), &weights)
}
