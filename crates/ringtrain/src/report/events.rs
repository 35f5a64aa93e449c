//! `steps.csv` and `epochs.csv`, which grow while the training runs. The crates that write
//! TensorBoard's event files bring old versions of protobuf with known faults, so this is CSV.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::run::EpochReport;

/// A file of a table.
#[derive(Debug)]
struct Table {
    path: PathBuf,
    file: File,
}

impl Table {
    fn create(path: PathBuf, head: &str) -> Result<Self> {
        let mut table = Self { file: super::create(&path)?, path };
        table.line(head)?;
        Ok(table)
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let written: io::Result<()> = self.file.write_all(format!("{line}\n").as_bytes());
        let what = || self.path.display().to_string();
        written.map_err(|source| Error::Output { what: what(), source })
    }
}

#[derive(Debug)]
pub(super) struct Events {
    steps: Table,
    epochs: Table,
}

impl Events {
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let what = || dir.display().to_string();
        fs::create_dir_all(dir).map_err(|source| Error::Output { what: what(), source })?;
        let head = "epoch,loss,accuracy,images_per_second,seconds,exposed_seconds,hidden_seconds";
        Ok(Self {
            steps: Table::create(dir.join("steps.csv"), "step,loss,learning_rate")?,
            epochs: Table::create(dir.join("epochs.csv"), head)?,
        })
    }

    pub(super) fn step(&mut self, step: u64, loss: f32, rate: f32) -> Result<()> {
        self.steps.line(&format!("{step},{loss},{rate}"))
    }

    pub(super) fn epoch(&mut self, it: &EpochReport) -> Result<()> {
        self.epochs.line(&format!(
            "{},{},{},{},{},{},{}",
            it.epoch,
            it.loss(),
            it.accuracy,
            it.images_per_second(),
            it.seconds,
            it.exposed,
            it.hidden
        ))
    }
}
