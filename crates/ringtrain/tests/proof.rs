//! What is promised on Fashion-MNIST: asynchronous servers come within 2 points of synchronous
//! ones; after a SIGKILL of a worker in mid-epoch the job goes on, and ends within 1 point; so it
//! does for mirrored ranks. In short: with all cases, the whole data set is taken.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launch::{accuracy, fashion_mnist, process_of, ringrun, wants_all};
use ringtrain::{DataArgs, Generated, Job, PolicyName, Settings, StrategyName, train_local};
use serde_json::Value;
use tempfile::TempDir;

/// Training images, test images and epochs.
fn sizes() -> (usize, usize, usize) {
    if wants_all() { (60_000, 10_000, 12) } else { (9_000, 2_000, 8) }
}

/// The number before these words in what a server says.
fn number_before(note: &str, words: &str) -> u64 {
    let before = note.split(words).next().unwrap();
    before.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn asynchronous_servers_come_within_two_points_of_synchronous_ones() {
    let Some(dir) = fashion_mnist("asynchronous_servers") else { return };
    let (images, tests, epochs) = sizes();
    let data = DataArgs { data: Some(dir), limit: Some(images), ..DataArgs::default() };
    let accuracy = |policy, bound| {
        let settings = Settings {
            strategy: StrategyName::ParameterServer,
            policy,
            bound,
            batch: 64,
            epochs,
            ..Settings::default()
        };
        let mut job = Job::load(&data, Generated::default(), settings).unwrap();
        job.limit_tests(tests);
        let outcomes = train_local(&job, 3).unwrap();
        let worker = outcomes.iter().find(|outcome| !outcome.epochs.is_empty()).unwrap();
        (worker.epochs.last().unwrap().accuracy, outcomes[0].notes.clone())
    };
    let (synchronous, _) = accuracy(PolicyName::Synchronous, None);
    for bound in [None, Some(2)] {
        let (asynchronous, notes) = accuracy(PolicyName::Asynchronous, bound);
        let said = format!("{asynchronous}, synchronous {synchronous}: {notes:?}");
        let ahead = number_before(&notes[0], "steps ahead");
        assert!(bound.is_none_or(|bound| ahead <= bound), "{said}");
        assert!(asynchronous > synchronous - 0.02, "{said}");
    }
}

/// The result of a training under ringrun, whose last rank is killed after some steps if `kill`.
fn train(ringrun: &Path, data: &Path, settings: &str, kill: bool) -> Value {
    let (images, _, epochs) = sizes();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, events) = (path("result.json"), path("events"));
    let mut command = Command::new(ringrun);
    command.args(["--elastic", "2:4", "--max-restarts", "0"]);
    command.arg(env!("CARGO_BIN_EXE_ringtrain")).args(settings.split(' ')).arg("--data").arg(data);
    command.args([&format!("--limit={images}"), &format!("--epochs={epochs}"), "--batch=96"]);
    command.args(["--json", &json, "--events", &events]).stdout(Stdio::null());
    let mut job = command.env("RINGREDUCE_TIMEOUT", "120").spawn().unwrap();
    if kill {
        let steps = || fs::read_to_string(Path::new(&events).join("steps.csv")).unwrap_or_default();
        let begun = Instant::now();
        while steps().lines().count() < images / 96 / 2 {
            assert!(begun.elapsed() < Duration::from_secs(300), "half an epoch takes too long");
            assert!(job.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = process_of(3, &json).unwrap().to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }
    assert!(job.wait().unwrap().success(), "{settings}, killed: {kill}");
    serde_json::from_slice(&fs::read(json).unwrap()).unwrap()
}

#[test]
fn a_rank_that_is_killed_in_mid_epoch_costs_a_point_at_most() {
    let Some(data) = fashion_mnist("a_rank_that_is_killed") else { return };
    let Some(ringrun) = ringrun("a_rank_that_is_killed") else { return };
    for settings in ["--strategy=parameter-server --policy=asynchronous", "--strategy=mirrored"] {
        let steady = accuracy(&train(&ringrun, &data, settings, false));
        let killed = accuracy(&train(&ringrun, &data, settings, true));
        assert!(killed > steady - 0.01, "{settings}: {killed}, not {steady}");
    }
}
