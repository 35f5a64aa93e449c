//! A rank is lost during a training: the others go on from their state, let it join again, and the
//! training ends with the same result.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The program ringrun, if it is built.
fn ringrun() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_ringtrain")).with_file_name("ringrun");
    path.exists().then_some(path)
}

/// The JSON result of a training of four ranks.
fn train(ringrun: &Path, launch: &[&str], settings: &[&str]) -> Value {
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("result.json");
    let mut command = Command::new(ringrun);
    command
        .args(launch)
        .arg(env!("CARGO_BIN_EXE_ringtrain"))
        .args(settings)
        .arg("--json")
        .arg(&json);
    let ran = command.env("RINGREDUCE_TIMEOUT", "120").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{launch:?} {settings:?}: {}\n{said}", ran.status);
    let _ = write!(std::io::stderr(), "{said}");
    serde_json::from_slice(&fs::read(json).unwrap()).unwrap()
}

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap();
    let all = epochs.iter().flat_map(|epoch| epoch["losses"].as_array().unwrap());
    all.map(|loss| loss.as_f64().unwrap()).collect()
}

fn accuracy(result: &Value) -> f64 {
    result["epochs"].as_array().unwrap().last().unwrap()["accuracy"].as_f64().unwrap()
}

/// Compares two loss curves, which a lost or repeated update would change.
fn assert_same(steady: &Value, other: &Value, tolerance: f64) {
    let (steady_losses, other_losses) = (losses(steady), losses(other));
    assert_eq!(steady_losses.len(), other_losses.len());
    for (step, (one, two)) in steady_losses.iter().zip(&other_losses).enumerate() {
        assert!(
            (one - two).abs() / one.abs().max(1e-2) < tolerance,
            "step {step}: {two}, not {one}"
        );
    }
    let difference = (accuracy(steady) - accuracy(other)).abs();
    assert!(difference <= 2.0 / 500.0, "accuracy {} and {}", accuracy(steady), accuracy(other));
}

#[test]
fn a_rank_is_lost_and_the_training_ends_the_same() {
    let Some(ringrun) = ringrun() else {
        let _ = std::io::stderr().write_all(b"SKIP elastic: ringrun is not built\n");
        return;
    };
    let settings = ["--limit=443", "--epochs=4", "--batch=24", "--lr=0.01", "--seed=7"];
    let steady = train(&ringrun, &["-n", "4"], &settings);
    assert_eq!(losses(&steady).len(), 72);
    // The last rank is lost in the first epoch, and joins again.
    let lose = [&settings[..], &["--lose=5"]].concat();
    let elastic = train(&ringrun, &["--elastic", "2:4"], &lose);
    assert_same(&steady, &elastic, 1e-3);
    // The last rank is lost and never restarted.
    let alone = train(&ringrun, &["--elastic", "2:4", "--max-restarts", "0"], &lose);
    assert_eq!(alone["ranks"], 3);
    assert_same(&steady, &alone, 1e-3);
}
