//! `ringtrain compare`: all strategies on one model and several numbers of ranks. `measure` trains
//! · `table` the terminal · `bars` charts and pictures · `page` all of it as one page.

mod bars;
mod measure;
mod page;
mod table;

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::{CompareArgs, Decay, PolicyName, Settings};
use crate::data::Generated;
use crate::error::Result;
use crate::report;
use crate::run::Job;
use crate::run::world::refuse_launcher;
use crate::ways::StrategyName;
use measure::Trainings;

/// The cost of a strategy with some number of ranks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(rename = "strategy")]
    pub(crate) name: String,
    #[serde(skip)]
    pub(crate) strategy: StrategyName,
    pub(crate) ranks: usize,
    /// Milliseconds, testing not counted.
    pub(crate) step: f64,
    /// Milliseconds of a step in which rank 0 waited for communication.
    pub(crate) exposed: f64,
    /// Milliseconds of communication in a step that computation has hidden.
    pub(crate) hidden: f64,
    pub(crate) images_per_second: f64,
    /// The share of test images classified right after all epochs.
    pub(crate) accuracy: f64,
    /// Bytes that each rank has sent in a step.
    pub(crate) sent: Vec<u64>,
    /// Bytes that each rank sends in a step by formula.
    pub(crate) formula: Vec<u64>,
}

/// The name of what is compared: the strategy, and the policy of asynchronous servers.
fn row_name(settings: &Settings) -> String {
    let name = settings.strategy.way().name.to_owned();
    match settings.policy {
        PolicyName::Asynchronous if settings.strategy.has("policy") => name + "-asynchronous",
        _ => name,
    }
}

/// The figures of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) data: String,
    pub(crate) settings: Settings,
    /// The bytes of all gradients.
    pub(crate) gradient_bytes: u64,
    pub(crate) rows: Vec<Row>,
}

impl Comparison {
    /// The rows of the largest number of ranks.
    pub(crate) fn largest(&self) -> impl Iterator<Item = &Row> {
        let most = self.rows.iter().map(|row| row.ranks).max();
        self.rows.iter().filter(move |row| Some(row.ranks) == most)
    }
}

/// Compares strategies, as the command line says.
///
/// # Errors
/// The first error of a training; if a file can't be written.
pub fn compare(args: &CompareArgs) -> Result<()> {
    refuse_launcher("compare")?;
    let mut job = Job::load(&args.data, Generated::default(), args.settings.clone())?;
    // Parameter servers keep the learning rate, and all strategies shall be compared alike.
    job.settings.decay.get_or_insert(Decay::Constant);
    // At once: better to fail now than after all trainings, and before a file of an earlier
    // comparison is emptied.
    let Trainings { all, left_out } = measure::trainings(&job, &args.strategies(), &args.worlds)?;
    let open = |path: &Option<PathBuf>| {
        path.clone().map(|path| report::create(&path).map(|file| (file, path))).transpose()
    };
    let (json, svg, html) = (open(&args.json)?, open(&args.svg)?, open(&args.html)?);
    left_out.iter().try_for_each(|line| report::print(line))?;
    report::print(&table::head(&job))?;
    let mut comparison = Comparison {
        data: job.data.name().to_owned(),
        settings: job.settings.clone(),
        gradient_bytes: 0,
        rows: Vec::new(),
    };
    for (job, ranks) in all {
        let (row, bytes) = measure::row(job, ranks)?;
        report::print(&table::line(&row))?;
        comparison.gradient_bytes = comparison.gradient_bytes.max(bytes);
        comparison.rows.push(row);
    }
    if let Some((file, path)) = json {
        report::write_json(file, &path, &comparison)?;
    }
    let picture = page::svg(&comparison)?;
    if let Some((file, path)) = svg {
        report::write_text(file, &path, &picture)?;
    }
    match html {
        Some((file, path)) => report::write_text(file, &path, &page::html(&comparison, &picture)),
        None => Ok(()),
    }
}
