//! `steps.csv` and `epochs.csv`, which grow while the training runs. The crates that write
//! TensorBoard's event files bring old versions of protobuf with known faults, so this is CSV.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::run::EpochReport;

/// A file of a table, whose rows begin with numbers that grow. A row takes the place of all rows
/// from its number on: those of the steps that a training makes again, because it has gone on from
/// a checkpoint or without a lost rank, or because it has begun anew.
#[derive(Debug)]
struct Table {
    path: PathBuf,
    file: File,
    head: &'static str,
    /// The number of the last row that was written.
    last: Option<u64>,
}

impl Table {
    /// Opens a file, whose rows stay until the first one is written. A file of another form is an
    /// error.
    fn open(path: PathBuf, head: &'static str) -> Result<Self> {
        let opened = File::options().append(true).create(true).open(&path).and_then(|file| {
            let found = fs::read(&path)?;
            // The head may be cut off by the end of a process.
            let len = head.len().min(found.len());
            if found[..len] == head.as_bytes()[..len] {
                return Ok(file);
            }
            Err(io::Error::other("it is no table of a training: give --events another folder"))
        });
        let what = || path.display().to_string();
        let file = opened.map_err(|source| Error::Output { what: what(), source })?;
        Ok(Self { path, file, head, last: None })
    }

    fn row(&mut self, number: u64, values: &str) -> Result<()> {
        if self.last.is_none_or(|last| number <= last) {
            self.remove_from(number)?;
        }
        self.last = Some(number);
        let written = self.file.write_all(format!("{number},{values}\n").as_bytes());
        written.map_err(|source| self.failed(source))
    }

    /// Removes the rows from a number on; all of them if the head is cut off.
    fn remove_from(&mut self, number: u64) -> Result<()> {
        self.cut_before(number).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Output { what: self.path.display().to_string(), source }
    }

    fn cut_before(&mut self, number: u64) -> io::Result<()> {
        let text = String::from_utf8(fs::read(&self.path)?).unwrap_or_default();
        let head = format!("{}\n", self.head);
        let Some(rows) = text.strip_prefix(&head) else {
            self.file.set_len(0)?;
            return self.file.write_all(head.as_bytes());
        };
        let number_of = |row: &str| row.split(',').next()?.parse::<u64>().ok();
        let is_before =
            |row: &&str| row.ends_with('\n') && number_of(row).is_some_and(|other| other < number);
        let kept: usize = rows.split_inclusive('\n').take_while(is_before).map(str::len).sum();
        self.file.set_len((head.len() + kept) as u64)
    }
}

#[derive(Debug)]
pub(super) struct Events {
    steps: Table,
    epochs: Table,
}

impl Events {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let what = || dir.display().to_string();
        fs::create_dir_all(dir).map_err(|source| Error::Output { what: what(), source })?;
        let head = "epoch,loss,accuracy,images_per_second,seconds,exposed_seconds,hidden_seconds";
        Ok(Self {
            steps: Table::open(dir.join("steps.csv"), "step,loss,learning_rate")?,
            epochs: Table::open(dir.join("epochs.csv"), head)?,
        })
    }

    pub(super) fn step(&mut self, step: u64, loss: f32, rate: f32) -> Result<()> {
        if step == 1 {
            // A training that begins has no epochs yet.
            self.epochs.remove_from(1)?;
        }
        self.steps.row(step, &format!("{loss},{rate}"))
    }

    pub(super) fn epoch(&mut self, it: &EpochReport) -> Result<()> {
        let values = format!(
            "{},{},{},{},{},{}",
            it.loss(),
            it.accuracy,
            it.images_per_second(),
            it.seconds,
            it.exposed,
            it.hidden
        );
        self.epochs.row(it.epoch as u64, &values)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use super::Events;

    #[test]
    fn a_row_takes_the_place_of_those_from_its_number_on() {
        let dir = tempfile::tempdir().unwrap();
        let steps = || {
            let text = fs::read_to_string(dir.path().join("steps.csv")).unwrap();
            let rows: Vec<String> = text.lines().map(str::to_owned).collect();
            assert!(text.is_empty() || rows[0] == "step,loss,learning_rate", "{text}");
            rows.into_iter().skip(1).collect::<Vec<_>>()
        };
        let write = |numbers: &[u64], loss: f32| {
            let mut events = Events::open(dir.path()).unwrap();
            numbers.iter().for_each(|step| events.step(*step, loss, 0.5).unwrap());
        };
        write(&[1, 2, 3, 4], 1.0);
        // A training that goes on after step 2, or another rank that reports from there on.
        write(&[3, 4], 2.0);
        assert_eq!(steps(), ["1,1,0.5", "2,1,0.5", "3,2,0.5", "4,2,0.5"]);
        // One that is over already.
        write(&[], 3.0);
        assert_eq!(steps().len(), 4);
        // A step is made again after the loss of a rank.
        write(&[5, 6, 6, 7], 4.0);
        assert_eq!(steps()[4..], ["5,4,0.5", "6,4,0.5", "7,4,0.5"]);
        // A row that was cut off by the death of its process.
        let cut = fs::read_to_string(dir.path().join("steps.csv")).unwrap();
        fs::write(dir.path().join("steps.csv"), &cut[..cut.len() - 3]).unwrap();
        write(&[8], 5.0);
        assert_eq!(steps().last().unwrap(), "8,5,0.5");
        assert_eq!(steps().len(), 7);
        // A new training.
        write(&[1], 6.0);
        assert_eq!(steps(), ["1,6,0.5"]);
        // A file of another form.
        fs::write(dir.path().join("steps.csv"), [0xff, 0xfe, b'x']).unwrap();
        let message = Events::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("steps.csv: it is no table of a training"), "{message}");
        // One whose head was cut off.
        fs::write(dir.path().join("steps.csv"), "step,lo").unwrap();
        write(&[2], 7.0);
        assert_eq!(steps(), ["2,7,0.5"]);
    }
}
