//! The output of rank 0: a line for each epoch on the standard output, a bar on a terminal's
//! standard error, and the JSON file. Law: other ranks are silent, and output that fails is an
//! error.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::cli::Settings;
use crate::data::Dataset;
use crate::error::{Error, Result};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochReport {
    /// Its number, from 1.
    pub epoch: usize,
    /// The loss of each step, averaged over all ranks.
    pub losses: Vec<f32>,
    /// The share of test images that are classified right after the epoch, 0 to 1.
    pub accuracy: f64,
    /// Training images seen, by all ranks together.
    pub images: usize,
    /// Seconds that training took, testing not counted.
    pub seconds: f64,
    /// The part of these seconds in collectives, with waits for other ranks.
    pub communicating: f64,
}

/// The content of the JSON file.
#[derive(Serialize)]
struct Document<'a> {
    ranks: usize,
    data: &'a str,
    settings: &'a Settings,
    epochs: &'a [EpochReport],
    /// A digest of the weights, the same at all ranks.
    weights: &'a str,
}

/// The output of this rank.
#[derive(Debug)]
pub(crate) struct Report {
    shown: bool,
    path: Option<PathBuf>,
    json: Option<(String, File)>,
    origin: String,
}

impl Report {
    /// Opens the JSON file at once: better to fail now than after the training.
    pub(crate) fn new(rank: usize, json: Option<PathBuf>) -> Result<Self> {
        let mut report = Self { shown: false, path: json, json: None, origin: String::new() };
        report.lead(rank)?;
        Ok(report)
    }

    /// Begins the output if this rank is rank 0 now, as after the loss of rank 0.
    pub(crate) fn lead(&mut self, rank: usize) -> Result<()> {
        if self.shown || rank > 0 {
            return Ok(());
        }
        self.shown = true;
        if let Some(path) = &self.path {
            let what = path.display().to_string();
            match File::create(path) {
                Ok(file) => self.json = Some((what, file)),
                Err(source) => return Err(Error::Output { what, source }),
            }
        }
        Ok(())
    }

    /// Prints the settings and the head of the table.
    pub(crate) fn begin(
        &mut self,
        data: &Dataset,
        settings: &Settings,
        size: usize,
        parameters: usize,
    ) -> Result<()> {
        self.origin.clone_from(&data.origin);
        let Dataset { origin, train, test, shape, .. } = data;
        let (rows, columns) = (shape.rows, shape.columns);
        let share = settings.batch / size;
        let buckets = (parameters * size_of::<f32>()).div_ceil(settings.bucket_bytes);
        self.line(&format!(
            "{origin}: {} training and {} test images of {rows}x{columns}\n\
             {size} ranks, batch {} ({share} per rank), {parameters} parameters, \
             gradients in buckets: {buckets}\n\
             epoch    loss  accuracy  images/s  communicating",
            train.len(),
            test.len(),
            settings.batch,
        ))
    }

    /// A bar for one epoch, which rank 0 draws on a terminal.
    pub(crate) fn bar(&self, epoch: usize, settings: &Settings, steps: usize) -> ProgressBar {
        if !self.shown {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} steps, {eta} left");
        ProgressBar::new(steps as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_message(format!("epoch {epoch}/{}", settings.epochs))
    }

    /// One epoch is over.
    pub(crate) fn epoch(&self, epoch: &EpochReport) -> Result<()> {
        let loss = epoch.losses.iter().sum::<f32>() / epoch.losses.len() as f32;
        let line = format!(
            "{:>5}  {loss:>6.4}  {:>6.2} %  {:>8.0}  {:>11.1} %",
            epoch.epoch,
            epoch.accuracy * 100.0,
            epoch.images as f64 / epoch.seconds,
            epoch.communicating / epoch.seconds * 100.0,
        );
        self.line(&line)
    }

    /// All epochs are over.
    pub(crate) fn end(
        mut self,
        settings: &Settings,
        size: usize,
        epochs: &[EpochReport],
        weights: &str,
    ) -> Result<()> {
        let images: usize = epochs.iter().map(|epoch| epoch.images).sum();
        let seconds: f64 = epochs.iter().map(|epoch| epoch.seconds).sum();
        let communicating: f64 = epochs.iter().map(|epoch| epoch.communicating).sum();
        let accuracy = epochs.last().map_or(0.0, |epoch| epoch.accuracy);
        self.line(&format!(
            "total: {} epochs, {images} images in {seconds:.1} s, {:.0} images/s, \
             {:.1} % communicating, accuracy {:.2} %",
            epochs.len(),
            images as f64 / seconds,
            communicating / seconds * 100.0,
            accuracy * 100.0,
        ))?;
        let Some((what, mut file)) = self.json.take() else { return Ok(()) };
        let document = Document { ranks: size, data: &self.origin, settings, epochs, weights };
        serde_json::to_writer_pretty(&mut file, &document)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .map_err(|source| Error::Output { what, source })
    }

    fn line(&self, text: &str) -> Result<()> {
        if !self.shown {
            return Ok(());
        }
        writeln!(io::stdout(), "{text}")
            .map_err(|source| Error::Output { what: "standard output".into(), source })
    }
}
