//! The promises on Fashion-MNIST: asynchronous servers come within 2 points of synchronous
//! ones; after a SIGKILL of a worker in mid-epoch the job goes on, and ends within 1 point; so it
//! does for mirrored ranks. A point of a few hundred images is within the noise of asynchronous
//! steps, so half of the images are for tests, and accuracies are means over epochs and seeds.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launch::{fashion_mnist, process_of, ringrun, wants_all};
use ringtrain::data::{read_images, read_labels};
use ringtrain::models::ModelKind;
use ringtrain::{DataArgs, Generated, Job, PolicyName, Settings, StrategyName, train_local};
use serde_json::Value;
use tempfile::TempDir;

const BATCH: usize = 96;
const RATE: f32 = 0.004;
const SEEDS: [u64; 3] = [1, 2, 3];

/// Images for training, as many for tests, and epochs.
fn sizes() -> (usize, usize) {
    if wants_all() { (30_000, 12) } else { (1_800, 30) }
}

/// A folder with images of another one, of which the first half is for training.
fn halved(from: &Path) -> TempDir {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for set in ["train", "t10k"] {
        let file = |what: &str| {
            let plain = from.join(format!("{set}-{what}-ubyte"));
            if plain.exists() { plain } else { plain.with_extension("gz") }
        };
        pixels.extend(read_images(&file("images-idx3")).unwrap().pixels);
        labels.extend(read_labels(&file("labels-idx1"), 10).unwrap());
    }
    let area = pixels.len() / labels.len();
    let half = (labels.len() / 2).min(sizes().0);
    let to = TempDir::new().unwrap();
    for (set, start) in [("train", 0), ("t10k", half)] {
        let write = |what: &str, sizes: &[usize], values: &[u8]| {
            let mut bytes = vec![0, 0, 8, sizes.len() as u8];
            sizes.iter().for_each(|size| bytes.extend((*size as u32).to_be_bytes()));
            bytes.extend(values);
            fs::write(to.path().join(format!("{set}-{what}-ubyte")), bytes).unwrap();
        };
        let images = &pixels[start * area..][..half * area];
        write("images-idx3", &[half, 28, 28], images);
        write("labels-idx1", &[half], &labels[start..][..half]);
    }
    to
}

/// The accuracy of a training whose rate stays the same, and whose accuracy so goes up and down:
/// the mean over the last third of its epochs.
fn settled(accuracies: &[f64]) -> f64 {
    let last = &accuracies[accuracies.len() * 2 / 3..];
    last.iter().sum::<f64>() / last.len() as f64
}

/// The mean over seeds.
fn mean(seeds: &[u64], of: impl Fn(u64) -> f64) -> f64 {
    seeds.iter().map(|seed| of(*seed)).sum::<f64>() / seeds.len() as f64
}

/// The number before these words in what a server says.
fn number_before(note: &str, words: &str) -> u64 {
    let before = note.split(words).next().unwrap();
    before.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn asynchronous_servers_come_within_two_points_of_synchronous_ones() {
    let Some(from) = fashion_mnist("asynchronous_servers") else { return };
    let folder = halved(&from);
    let data = DataArgs { data: Some(folder.path().into()), ..DataArgs::default() };
    let accuracy = |policy, bound: Option<u64>| {
        mean(&SEEDS, |seed| {
            let settings = Settings {
                strategy: StrategyName::ParameterServer,
                model: ModelKind::Dense,
                policy,
                bound,
                batch: BATCH,
                lr: Some(RATE),
                epochs: sizes().1,
                seed,
                ..Settings::default()
            };
            let job = Job::load(&data, Generated::default(), settings).unwrap();
            let outcomes = train_local(&job, 3).unwrap();
            let ahead = number_before(&outcomes[0].notes[0], "steps ahead");
            assert!(bound.is_none_or(|bound| ahead <= bound), "{:?}", outcomes[0].notes);
            let worker = outcomes.iter().find(|outcome| !outcome.epochs.is_empty()).unwrap();
            settled(&worker.epochs.iter().map(|epoch| epoch.accuracy).collect::<Vec<_>>())
        })
    };
    let synchronous = accuracy(PolicyName::Synchronous, None);
    for bound in [None, Some(2)] {
        let asynchronous = accuracy(PolicyName::Asynchronous, bound);
        let said = format!("bound {bound:?}: {asynchronous:.4}, synchronous {synchronous:.4}");
        println!("{said}");
        assert!(asynchronous > synchronous - 0.02, "{said}");
    }
}

/// The accuracy of a training under ringrun, whose last rank is killed in the second epoch if
/// `kill`.
fn train(ringrun: &Path, data: &Path, settings: &str, seed: u64, kill: bool) -> f64 {
    let (images, epochs) = sizes();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, events) = (path("result.json"), path("events"));
    let mut command = Command::new(ringrun);
    command.args(launch::HERE);
    command.args(["--elastic", "2:4", "--max-restarts", "0"]);
    command.arg(env!("CARGO_BIN_EXE_ringtrain")).args(settings.split(' ')).arg("--data").arg(data);
    command.args([&format!("--lr={RATE}"), &format!("--batch={BATCH}"), "--model=dense"]);
    command.args([&format!("--epochs={epochs}"), &format!("--seed={seed}")]);
    command.args(["--json", &json, "--events", &events]).stdout(Stdio::null());
    let mut job = command.env("RINGREDUCE_TIMEOUT", "120").spawn().unwrap();
    if kill {
        let steps = || fs::read_to_string(Path::new(&events).join("steps.csv")).unwrap_or_default();
        let begun = Instant::now();
        while steps().lines().count() < images / BATCH * 3 / 2 {
            assert!(begun.elapsed() < Duration::from_secs(300), "an epoch takes too long");
            assert!(job.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(2));
        }
        let pid = process_of(3, &json).unwrap().to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }
    assert!(job.wait().unwrap().success(), "{settings}, killed: {kill}");
    let result: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let epochs = result["epochs"].as_array().unwrap().iter();
    settled(&epochs.map(|epoch| epoch["accuracy"].as_f64().unwrap()).collect::<Vec<_>>())
}

#[test]
fn a_rank_that_is_killed_in_mid_epoch_costs_a_point_at_most() {
    let Some(from) = fashion_mnist("a_rank_that_is_killed") else { return };
    let Some(ringrun) = ringrun("a_rank_that_is_killed") else { return };
    let folder = halved(&from);
    // The steps of mirrored ranks are the same in each run, so one seed is enough.
    for (settings, seeds) in [
        ("--strategy=parameter-server --policy=asynchronous", &SEEDS[..]),
        ("--strategy=mirrored", &SEEDS[..1]),
    ] {
        let train = |seed, kill| train(&ringrun, folder.path(), settings, seed, kill);
        let accuracy = |kill| mean(seeds, |seed| train(seed, kill));
        let (steady, killed) = (accuracy(false), accuracy(true));
        println!("{settings}: steady {steady:.4}, killed {killed:.4}");
        assert!(killed > steady - 0.01, "{settings}: {killed}, not {steady}");
    }
}
