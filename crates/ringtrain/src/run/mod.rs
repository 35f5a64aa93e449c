//! Trainings. `world` the ranks · `job` what is trained, and what does not fit · `epochs` the loop,
//! and `engine` what it needs of a way of training · `rejoin` how lost parts of a model come back ·
//! `config` what ranks must agree on · `batches` a rank's samples · `history` what was done ·
//! `stop` Ctrl-C.

mod batches;
pub(crate) mod config;
mod engine;
mod epochs;
mod history;
mod job;
mod rejoin;
mod stop;
pub(crate) mod world;

use std::time::Instant;

use ringreduce::{Algorithm, Builder, Communicator, launched};
use serde::Serialize;

pub use engine::PipelineOutcome;
pub(crate) use engine::{Division, Done, Engine, test};
pub use history::{EpochReport, History};
pub use job::Job;
pub(crate) use job::unfit;
pub(crate) use rejoin::Rejoin;
pub use stop::STOPPED;
pub(crate) use stop::Stop;
pub use world::THREADS;
pub(crate) use world::sent_bytes;

use crate::checkpoint::Checkpoints;
use crate::cli::TrainArgs;
use crate::error::{Error, Result};
use crate::report::{Outputs, Report};
use epochs::Training;

/// How a training has ended, at one rank.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The ranks that were left at the end.
    pub ranks: usize,
    /// True if the user has ended it.
    pub is_stopped: bool,
    /// Completed steps.
    pub steps: u64,
    /// The trained elements at this rank.
    pub parameters: usize,
    /// The completed epochs; none at a parameter server.
    pub epochs: Vec<EpochReport>,
    /// A digest of the weights, the same at all ranks that have all of them.
    pub weights: String,
    /// Bytes that this rank has sent over links during the steps, if they were counted.
    pub sent_bytes: Option<u64>,
    /// The report of a pipeline; none for others.
    pub pipeline: Option<PipelineOutcome>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Outcome {
    /// The share of test images that are classified right at the end; 0 without an epoch.
    pub(crate) fn accuracy(&self) -> f64 {
        self.epochs.last().map_or(0.0, |epoch| epoch.accuracy)
    }
}

/// The work of one rank besides training.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras<'a> {
    pub(crate) outputs: Outputs,
    pub(crate) checkpoints: Option<&'a Checkpoints>,
    pub(crate) stop: Option<&'a Stop>,
    pub(crate) lose: Option<usize>,
    /// The ranks are processes, of which some may be lost.
    pub(crate) are_processes: bool,
    /// Count the bytes that steps send over links.
    pub(crate) counts_bytes: bool,
}

impl Extras<'_> {
    /// Whether lost ranks are started again.
    pub(crate) fn is_elastic(&self) -> bool {
        self.are_processes && launched().is_ok_and(|it| it.is_elastic)
    }
}

/// Trains as the command line says. Returns the outcomes of the ranks of this process.
///
/// # Errors
/// The first error of a rank.
pub fn train(args: &TrainArgs) -> Result<Vec<Outcome>> {
    if args.lose.is_some() && args.ranks.is_some() {
        return Err(Error::Unfit(
            "--lose ends a process, and --ranks makes all ranks in one: start processes with \
             ringrun --elastic MIN:MAX"
                .into(),
        ));
    }
    if args.settings.patience.is_some() && args.ranks.is_some() {
        return Err(Error::Unfit(
            "--patience waits for processes that are started again, and --ranks makes all ranks in \
             one: leave it out, or start processes with ringrun --elastic MIN:MAX"
                .into(),
        ));
    }
    if args.json.is_some() && args.json == args.chart {
        return Err(Error::Unfit("--json and --chart name the same file: give two".into()));
    }
    let job = Job::load(&args.data, crate::data::Generated::default(), args.settings.clone())?;
    args.ranks.map_or(Ok(()), |ranks| job.check(ranks))?;
    let checkpoints = Checkpoints::new(&args.checkpoints)?;
    // Until the ranks have met there is nothing to save, so Ctrl-C ends the program as usual; and
    // always without checkpoints.
    let comms = world::meet(&Builder::default(), args.ranks)?;
    let stop = checkpoints.as_ref().map(|_| Stop::catch()).transpose()?;
    let extras = Extras {
        outputs: Outputs::of(args),
        checkpoints: checkpoints.as_ref(),
        stop: stop.as_ref(),
        lose: args.lose,
        are_processes: args.ranks.is_none(),
        counts_bytes: false,
    };
    world::run_all(comms, &|comm| rank(comm, &job, &extras))
}

/// How the ranks of a process exchange what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// In whichever way is fastest: through memory that they share.
    Fastest,
    /// Over links, where each collective is a ring, whose bytes are counted.
    CountedRings,
}

/// Trains on threads of this process, without output. Returns the outcomes of all ranks.
pub(crate) fn in_threads(job: &Job, ranks: usize, links: Links) -> Result<Vec<Outcome>> {
    let (builder, counts_bytes) = match links {
        Links::Fastest => (Builder::default(), false),
        Links::CountedRings => (Builder::default().algorithm(Algorithm::Ring), true),
    };
    let extras = Extras { counts_bytes, ..Extras::default() };
    world::run(&builder, ranks, &|comm| rank(comm, job, &extras))
}

/// Trains on threads of this process, without output. Returns the outcomes of all ranks.
///
/// # Errors
/// The first error of a rank.
pub fn train_local(job: &Job, ranks: usize) -> Result<Vec<Outcome>> {
    in_threads(job, ranks, Links::Fastest)
}

/// Trains as one rank.
pub(crate) fn rank(comm: Communicator, job: &Job, extras: &Extras<'_>) -> Result<Outcome> {
    let (mut comm, config) = (comm, config::of(job, extras.checkpoints));
    // A rank that joins a running job comes to one whose settings were checked.
    if comm.epoch() == 0
        && let Err(unfit) = job.check(comm.size())
    {
        // The others may have settings that fit: then all learn which ones differ.
        config.agree(&mut comm, false)?;
        return Err(unfit);
    }
    (job.settings.strategy.way().start)(comm, job, config, extras)
}

/// Trains by an engine.
pub(crate) fn train_by<E: Engine>(
    job: &Job,
    extras: &Extras<'_>,
    (rank, size): (usize, usize),
    make: impl FnOnce(&mut History) -> Result<E>,
) -> Result<Outcome> {
    let mut report = Report::new(rank, extras.outputs.clone())?;
    let mut history = History::default();
    let mut engine = make(&mut history)?;
    // Rank 0 may be lost meanwhile.
    report.lead(engine.place().0)?;
    report.begin(job, engine.ranks(), engine.parameters())?;
    if !history.is_new() {
        report.resumed(&history.epochs, engine.steps(), job)?;
    }
    let training = Training {
        job,
        engine,
        history,
        report: &mut report,
        checkpoints: extras.checkpoints,
        stop: extras.stop,
        lose: extras.lose,
        may_grow: extras.are_processes && size > 1,
        has_begun: false,
        sent: extras.counts_bytes.then_some(0),
        counted: Instant::now(),
    };
    training.run()
}

#[cfg(test)]
mod tests;
