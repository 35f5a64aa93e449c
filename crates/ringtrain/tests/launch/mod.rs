//! Trainings whose ranks are processes of ringrun.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, of which each uses some")]

pub(crate) mod running;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The options of ringrun for a job on this host alone, even within a job of Slurm.
pub(crate) const HERE: [&str; 2] = ["-H", "localhost"];

/// The program ringrun, if it is built.
pub(crate) fn ringrun(test: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_ringtrain")).with_file_name("ringrun");
    if !path.exists() {
        skip(test, "ringrun is not built: cargo build --bin ringrun");
        return None;
    }
    Some(path)
}

/// The folder of Fashion-MNIST, if it is there.
pub(crate) fn fashion_mnist(test: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fashion-mnist");
    let dir = std::env::var_os("FASHION_MNIST").map_or(dir, PathBuf::from);
    if !dir.is_dir() {
        skip(test, "there is no ../shared/fashion-mnist; FASHION_MNIST names another folder");
        return None;
    }
    Some(dir)
}

/// Says that a test is not run, in one piece, or the harness's own lines come between.
pub(crate) fn skip(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIP {test}: {why}\n").as_bytes());
}

/// Whether all cases are wanted.
pub(crate) fn wants_all() -> bool {
    std::env::var("TEST_SHARE").is_ok_and(|share| share == "all")
}

/// All of these if all cases are wanted, else the first one and one that the seed chooses.
pub(crate) fn share_of<'a>(all: &[&'a str]) -> Vec<&'a str> {
    if wants_all() {
        return all.to_vec();
    }
    let seed = std::env::var("TEST_SEED").ok().and_then(|it| it.parse().ok());
    let other = 1 + seed.unwrap_or(0_usize) % (all.len() - 1);
    vec![all[0], all[other]]
}

/// The JSON result of a training.
pub(crate) fn train(ringrun: &Path, launch: &str, settings: &str) -> Value {
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("result.json");
    let mut command = Command::new(ringrun);
    command.args(HERE);
    command
        .args(launch.split(' '))
        .arg(env!("CARGO_BIN_EXE_ringtrain"))
        .args(settings.split(' '))
        .arg("--json")
        .arg(&json);
    let ran = command.env("RINGREDUCE_TIMEOUT", "120").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{launch} {settings}: {}\n{said}", ran.status);
    let _ = write!(std::io::stderr(), "{said}");
    serde_json::from_slice(&fs::read(json).unwrap()).unwrap()
}

pub(crate) fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap();
    let all = epochs.iter().flat_map(|epoch| epoch["losses"].as_array().unwrap());
    all.map(|loss| loss.as_f64().unwrap()).collect()
}

pub(crate) fn accuracy(result: &Value) -> f64 {
    result["epochs"].as_array().unwrap().last().unwrap()["accuracy"].as_f64().unwrap()
}

/// The process of a rank of the training that writes to `json`.
pub(crate) fn process_of(rank: usize, json: &str) -> Option<u32> {
    let is_rank = |pid: &u32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let has = |text: Vec<u8>, word: &str| {
            text.split(|byte| *byte == 0).any(|it| it == word.as_bytes())
        };
        has(read("environ"), &format!("RINGREDUCE_RANK={rank}")) && has(read("cmdline"), json)
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.find(is_rank)
}
