//! The output of rank 0: a table on the standard output, a bar on a terminal's standard error, and
//! the files that the user wants. `bar`, `chart`, `events`, `json` are these.
//! Law: other ranks are silent, and output that fails is an error.

mod bar;
pub(crate) mod chart;
mod events;
mod json;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

pub(crate) use bar::Bar;
use events::Events;
pub(crate) use json::write as write_json;

use crate::cli::{Settings, TrainArgs, name};
use crate::error::{Error, Result};
use crate::run::{EpochReport, Job};

/// The files that the user wants to have written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// The table and the bar.
    pub(crate) table: bool,
    json: Option<PathBuf>,
    chart: Option<PathBuf>,
    events: Option<PathBuf>,
}

impl Outputs {
    pub(crate) fn of(args: &TrainArgs) -> Self {
        let (json, chart, events) = (args.json.clone(), args.chart.clone(), args.events.clone());
        Self { table: true, json, chart, events }
    }
}

/// The output of this rank.
#[derive(Debug)]
pub(crate) struct Report {
    wanted: Outputs,
    is_shown: bool,
    json: Option<File>,
    events: Option<Events>,
}

impl Report {
    /// Opens the files at once: better to fail now than after the training.
    pub(crate) fn new(rank: usize, wanted: Outputs) -> Result<Self> {
        let mut report = Self { wanted, is_shown: false, json: None, events: None };
        report.lead(rank)?;
        Ok(report)
    }

    /// Begins the output if this rank is rank 0 now, as after the loss of rank 0.
    pub(crate) fn lead(&mut self, rank: usize) -> Result<()> {
        if self.is_shown || rank > 0 {
            return Ok(());
        }
        self.is_shown = true;
        self.json = self.wanted.json.as_deref().map(create).transpose()?;
        self.wanted.chart.as_deref().map(create).transpose()?;
        self.events = self.wanted.events.as_deref().map(Events::open).transpose()?;
        Ok(())
    }

    /// Prints what is trained how, and the head of the table.
    pub(crate) fn begin(&self, job: &Job, size: usize, parameters: usize) -> Result<()> {
        let (data, settings) = (&job.data, &job.settings);
        self.line(&format!(
            "{}: {} training and {} test images of {}\n\
             {} by {} on {size} rank{}, batch {}, {parameters} parameters\n\
             epoch    loss  accuracy  images/s  exposed   hidden",
            data.origin,
            data.train.len(),
            data.test.len(),
            data.shape,
            name(&settings.model),
            name(&settings.strategy),
            if size == 1 { "" } else { "s" },
            settings.batch,
        ))
    }

    /// The training goes on from a checkpoint. These epochs before it were not reported yet.
    pub(crate) fn resumed(&self, epochs: &[EpochReport], steps: u64, job: &Job) -> Result<()> {
        self.line(&format!("resumed after {steps} steps"))?;
        epochs.iter().try_for_each(|epoch| self.line(&row(epoch)))?;
        if steps < job.steps() {
            return Ok(());
        }
        let all = job.settings.epochs;
        self.line(&format!(
            "nothing is left to do: --epochs {all} are complete, give more to go on"
        ))
    }

    /// The training begins again, after a loss before its first checkpoint.
    pub(crate) fn begun_anew(&self) -> Result<()> {
        self.line("no checkpoint yet: begun anew from the first parameters")
    }

    /// A bar for one epoch, which rank 0 draws on a terminal.
    pub(crate) fn bar(&self, epoch: usize, settings: &Settings, steps: usize, done: usize) -> Bar {
        let is_shown = self.is_shown && self.wanted.table;
        Bar::new(is_shown, format!("epoch {epoch}/{}", settings.epochs), steps, done)
    }

    /// A step is over.
    pub(crate) fn step(&mut self, step: u64, loss: f32, rate: f32) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.step(step, loss, rate))
    }

    /// An epoch is over.
    pub(crate) fn epoch(&mut self, epoch: &EpochReport) -> Result<()> {
        if let Some(events) = &mut self.events {
            events.epoch(epoch)?;
        }
        self.line(&row(epoch))
    }

    /// The training is over, or the user has ended it.
    pub(crate) fn end(&mut self, job: &Job, outcome: &crate::run::Outcome) -> Result<()> {
        if !self.is_shown {
            return Ok(());
        }
        let epochs = &outcome.epochs;
        self.line(&total(outcome))?;
        outcome.notes.iter().try_for_each(|note| self.line(note))?;
        if let (Some(file), Some(path)) = (self.json.take(), &self.wanted.json) {
            json::training(file, path, job, outcome)?;
        }
        match &self.wanted.chart {
            Some(path) => chart::training(path, job, epochs),
            None => Ok(()),
        }
    }

    fn line(&self, text: &str) -> Result<()> {
        if !self.is_shown || !self.wanted.table {
            return Ok(());
        }
        print(text)
    }
}

/// A line on the standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}")
        .map_err(|source| Error::Output { what: "standard output".into(), source })
}

/// The last line of the table.
fn total(outcome: &crate::run::Outcome) -> String {
    let epochs = &outcome.epochs;
    let images: usize = epochs.iter().map(|epoch| epoch.images).sum();
    if images == 0 {
        return format!("total: {} steps, and no whole epoch at this rank", outcome.steps);
    }
    let seconds: f64 = epochs.iter().map(|epoch| epoch.seconds).sum();
    // Another worker may have made the last tests.
    let accuracy = epochs.iter().rev().map(|epoch| epoch.accuracy).find(|it| !it.is_nan());
    format!(
        "total: {} epochs, {images} images in {seconds:.1} s, {:.0} images/s, accuracy {:.2} %",
        epochs.len(),
        images as f64 / seconds.max(1e-9),
        accuracy.unwrap_or(f64::NAN) * 100.0,
    )
}

/// The row of an epoch.
fn row(epoch: &EpochReport) -> String {
    let share = |seconds: f64| seconds / epoch.seconds.max(1e-9) * 100.0;
    format!(
        "{:>5}  {:>6.4}  {:>6.2} %  {:>8.0}  {:>5.1} %  {:>5.1} %",
        epoch.epoch,
        epoch.loss(),
        epoch.accuracy * 100.0,
        epoch.images_per_second(),
        share(epoch.exposed),
        share(epoch.hidden),
    )
}

/// A file to write. What an earlier training has written stays until this one has its results.
pub(crate) fn create(path: &std::path::Path) -> Result<File> {
    let what = || path.display().to_string();
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map_err(|source| Error::Output { what: what(), source })
}

/// Writes a text to a file that is open, in place of what it has.
pub(crate) fn write_text(mut file: File, path: &std::path::Path, text: &str) -> Result<()> {
    let what = || path.display().to_string();
    // A pipe or terminal has no length.
    let is_file = file.metadata().is_ok_and(|it| it.is_file());
    let emptied = if is_file { file.set_len(0) } else { Ok(()) };
    let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(|source| Error::Output { what: what(), source })
}
