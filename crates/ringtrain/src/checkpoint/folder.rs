//! The checkpoints in a folder: `step-NNNNNNNN.safetensors`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use strategy::{ParameterState, SnapshotFolder, SnapshotStore, replace_file};

use super::format::{Training, decode, encode};
use super::{Buffers, Snapshot, frozen};
use crate::cli::CheckpointArgs;
use crate::error::{Error, LastGood, Result};
use crate::run::{History, Job};

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";
/// The extension of a file whose parameters have led to a loss that is not finite.
const DIVERGED: &str = "diverged";
/// The extension of a file until it is whole.
const UNFINISHED: &str = "part";

/// The checkpoints of a training.
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    keep: usize,
    every: Option<usize>,
    resume: bool,
    /// The values of parameters that are not trained, once they are known.
    frozen: OnceLock<Buffers>,
}

impl Checkpoints {
    /// The checkpoints that the user wants, if any. The folder is made at once: better to fail now
    /// than after an epoch.
    ///
    /// # Errors
    /// If the folder can't be made, or no file can be written there.
    pub fn new(args: &CheckpointArgs) -> Result<Option<Self>> {
        let Some(dir) = args.dir.clone() else { return Ok(None) };
        fs::create_dir_all(&dir).map_err(|error| failed(&dir, &error))?;
        let probe = dir.join(format!("probe-{}.{UNFINISHED}", std::process::id()));
        let written = fs::write(&probe, []).and_then(|()| fs::remove_file(&probe));
        written.map_err(|error| failed(&dir, &error))?;
        let CheckpointArgs { keep, every, resume, .. } = *args;
        Ok(Some(Self { dir, keep, every, resume, frozen: OnceLock::new() }))
    }

    /// Where parameter servers save their part, and after how many updates.
    pub(crate) fn of_servers(&self) -> Result<(Box<dyn SnapshotStore>, u64)> {
        const UPDATES: usize = 100;
        let folder = SnapshotFolder::new(&self.dir).map_err(|error| failed(&self.dir, &error))?;
        Ok((Box::new(ServerSnapshots(folder)), self.every.unwrap_or(UPDATES) as u64))
    }

    /// When checkpoints are saved and loaded, in words.
    pub(crate) fn schedule(&self) -> String {
        let every = self.every.map_or(String::new(), |every| format!(" and every {every} steps"));
        let resume = if self.resume { ", with --resume" } else { "" };
        format!("after each epoch{every}{resume}")
    }

    /// True if a checkpoint is to be saved after so many steps.
    pub(crate) fn is_due(&self, steps: u64) -> bool {
        self.every.is_some_and(|every| steps.is_multiple_of(every as u64))
    }

    fn file(&self, steps: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{steps:08}{SUFFIX}"))
    }

    /// Whether there is a checkpoint after so many steps.
    pub(crate) fn has(&self, steps: u64) -> bool {
        self.file(steps).is_file()
    }

    /// The files and the steps in their names, the newest one last.
    fn files(&self) -> Result<Vec<(u64, PathBuf)>> {
        Self::files_in(&self.dir)
    }

    fn files_in(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(|error| failed(dir, &error))? {
            let path = entry.map_err(|error| failed(dir, &error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let digits = name.strip_prefix(PREFIX).and_then(|it| it.strip_suffix(SUFFIX));
            let digits = digits.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
            if let Some(steps) = digits.and_then(|it| it.parse().ok()) {
                files.push((steps, path));
            }
        }
        files.sort();
        Ok(files)
    }

    /// The newest file.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn newest(&self) -> Result<Option<PathBuf>> {
        Self::newest_in(&self.dir)
    }

    /// The newest file of a folder.
    pub(super) fn newest_in(dir: &Path) -> Result<Option<PathBuf>> {
        Ok(Self::files_in(dir)?.pop().map(|(_, file)| file))
    }

    /// The values of parameters that are not trained, which no update changes.
    fn frozen(&self, job: &Job) -> Result<&Buffers> {
        if let Some(frozen) = self.frozen.get() {
            return Ok(frozen);
        }
        let values = frozen(&job.network()?)?;
        Ok(self.frozen.get_or_init(|| values))
    }

    /// The content of the newest file, with which this job begins; none if there is no file.
    ///
    /// # Errors
    /// As [`Self::last`]; if there is a file although the training begins anew.
    pub fn load(&self, job: &Job) -> Result<Option<(Snapshot, History)>> {
        match self.newest()? {
            Some(file) if !self.resume => Err(Error::Unfit(format!(
                "{} is of an earlier training: give --resume, or --checkpoint another folder",
                file.display()
            ))),
            _ => self.last(job),
        }
    }

    /// The content of the newest file, of a job that has begun; none if there is no file.
    ///
    /// # Errors
    /// If the file can't be read, is damaged, or is of another training.
    pub(crate) fn last(&self, job: &Job) -> Result<Option<(Snapshot, History)>> {
        let Some(file) = self.newest()? else { return Ok(None) };
        let bytes = fs::read(&file).map_err(|error| failed(&file, &error))?;
        let decoded = decode(&bytes, job, self.frozen(job)?);
        decoded.map(Some).map_err(|problem| Error::Checkpoint { file, problem })
    }

    /// Writes a file, and then removes those that are more than the user keeps. Of the files after
    /// up to `proven` steps, whose parameters have had a finite loss, the newest one stays.
    ///
    /// # Errors
    /// If a parameter is not finite; if the file can't be written. Older ones stay as they were.
    pub(crate) fn save(
        &self,
        snapshot: &Snapshot,
        job: &Job,
        ranks: usize,
        (history, proven): (&History, u64),
    ) -> Result<()> {
        let step = snapshot.state.steps;
        let is_bad = |it: &&ParameterState| !it.values.iter().all(|value| value.is_finite());
        if let Some(bad) = snapshot.state.parameters.iter().find(is_bad) {
            let what = format!("the parameter {} is", bad.name);
            return Err(Error::Unusable { step, what, good: None });
        }
        let file = self.file(step);
        let training = Training::of(snapshot, job, ranks);
        let bytes = encode(snapshot, self.frozen(job)?, &training, history)
            .map_err(|problem| Error::Checkpoint { file: file.clone(), problem })?;
        replace_file(&file, &bytes).map_err(|error| failed(&file, &error))?;
        self.remove_unfinished()?;
        let files = self.files()?;
        let old = files.len().saturating_sub(self.keep);
        let newest_proven = files.iter().rposition(|(steps, _)| *steps <= proven);
        let removed = newest_proven.map_or(old, |at| at.min(old));
        for (_, file) in &files[..removed] {
            fs::remove_file(file).map_err(|error| failed(file, &error))?;
        }
        Ok(())
    }

    /// Removes files of processes that were killed while they wrote a checkpoint.
    fn remove_unfinished(&self) -> Result<()> {
        for entry in fs::read_dir(&self.dir).map_err(|error| failed(&self.dir, &error))? {
            let path = entry.map_err(|error| failed(&self.dir, &error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(PREFIX) && path.extension().is_some_and(|it| it == UNFINISHED) {
                // The file takes room and does no other harm.
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    /// The last good checkpoint of a training that has diverged: the newest one after up to
    /// `proven` steps. The newer ones get another name if `renames`, so that no training goes on
    /// from them.
    pub(crate) fn last_good(&self, proven: u64, history: &History, renames: bool) -> LastGood {
        let mut files = self.files().unwrap_or_default();
        let newer = files.split_off(files.partition_point(|(steps, _)| *steps <= proven));
        let rename = |(_, file): (u64, PathBuf)| {
            let renamed = file.with_extension(DIVERGED);
            fs::rename(file, &renamed).is_ok().then_some(renamed)
        };
        let renamed = newer.into_iter().filter(|_| renames).filter_map(rename).collect();
        let (steps, file) = files.pop().unzip();
        let loss = steps.and_then(|steps| history.loss_after(steps));
        LastGood { dir: self.dir.clone(), file, loss, renamed }
    }
}

/// The snapshots of parameter servers, beside the checkpoints.
struct ServerSnapshots(SnapshotFolder);

impl SnapshotStore for ServerSnapshots {
    fn save(&mut self, part: usize, snapshot: &[u8]) -> io::Result<()> {
        let explained = |error: io::Error| {
            io::Error::new(error.kind(), format!("{error}{}", remedy(error.kind())))
        };
        self.0.save(part, snapshot).map_err(explained)
    }

    fn load(&mut self, part: usize) -> io::Result<Option<Vec<u8>>> {
        self.0.load(part)
    }
}

pub(super) fn failed(file: &Path, error: &io::Error) -> Error {
    let problem = format!("{error}{}", remedy(error.kind()));
    Error::Checkpoint { file: file.into(), problem }
}

/// The remedy for a file that could not be written.
const fn remedy(error: io::ErrorKind) -> &'static str {
    match error {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room, and --resume: older checkpoints are whole"
        }
        io::ErrorKind::FileTooLarge => {
            "; raise the limit (ulimit -f), and --resume: older checkpoints are whole"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::replace_file;

    /// A reader sees what a process that is killed at that moment would leave.
    #[test]
    fn a_file_is_whole_at_any_time_while_it_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("step-00000001.safetensors");
        let bytes = vec![7; 1 << 20];
        replace_file(&file, &bytes).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..30 {
                    replace_file(&file, &bytes).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(fs::read(&file).unwrap().len(), bytes.len());
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no other file is left");
    }
}
