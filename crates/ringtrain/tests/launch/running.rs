//! A training that goes on while a test looks at it, and sends signals to its ranks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::process_of;

/// A training under ringrun.
pub(crate) struct Running {
    folder: TempDir,
    job: Child,
}

impl Running {
    pub(crate) fn start(ringrun: &Path, launch: &str, settings: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), ringrun, launch, settings)
    }

    pub(crate) fn start_in(folder: TempDir, ringrun: &Path, launch: &str, settings: &str) -> Self {
        let path = |name: &str| folder.path().join(name);
        let mut command = Command::new(ringrun);
        command.args(super::HERE);
        command.args(launch.split(' ')).arg(env!("CARGO_BIN_EXE_ringtrain"));
        command.args(settings.split(' '));
        command.arg("--json").arg(path("result.json")).arg("--events").arg(path("events"));
        command.arg("--checkpoint").arg(path("checkpoints"));
        command.stdout(File::create(path("out")).unwrap());
        command.stderr(File::create(path("err")).unwrap());
        let job = command.env("RINGREDUCE_TIMEOUT", "120").stdin(Stdio::null()).spawn().unwrap();
        Self { folder, job }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.path("err")).unwrap_or_default()
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap_or_default()
    }

    /// The bytes of each tensor of the last checkpoint.
    pub(crate) fn tensors(&self) -> BTreeMap<String, Vec<u8>> {
        let files = fs::read_dir(self.path("checkpoints")).unwrap();
        let last = files.map(|file| file.unwrap().path()).max().unwrap();
        let bytes = fs::read(last).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors.iter().map(|(name, it)| (name.to_owned(), it.data().to_vec())).collect()
    }

    /// The steps of the first rank or worker.
    pub(crate) fn steps(&self) -> usize {
        let steps = fs::read_to_string(self.path("events").join("steps.csv")).unwrap_or_default();
        steps.lines().count().saturating_sub(1)
    }

    /// Waits for an event of the job.
    pub(crate) fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is(self) {
            let ended = self.job.try_wait().unwrap();
            assert!(ended.is_none(), "{what}: it has ended: {}", self.said());
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self, rank: usize) -> Option<u32> {
        process_of(rank, self.path("result.json").to_str().unwrap())
    }

    pub(crate) fn send(&self, signal: &str, rank: usize) -> u32 {
        let pid = self.pid(rank).unwrap();
        kill(signal, pid);
        pid
    }

    /// How the job ends.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(ended) = self.job.try_wait().unwrap() {
                return ended;
            }
            assert!(begun.elapsed() < Duration::from_secs(100), "it goes on: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the training by Ctrl-C.
    pub(crate) fn interrupt(mut self) -> (Option<i32>, String, String) {
        kill("INT", self.job.id());
        let code = self.ended().code();
        (code, self.out(), self.said())
    }

    pub(crate) fn result(&mut self) -> Value {
        let ended = self.ended();
        assert!(ended.success(), "{}", self.said());
        serde_json::from_slice(&fs::read(self.path("result.json")).unwrap()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where a test fails, no process shall stay.
        (0..4).filter_map(|rank| self.pid(rank)).for_each(|pid| kill("KILL", pid));
        let _ = self.job.kill();
        let _ = self.job.wait();
    }
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "kill -{signal} {pid}");
}
