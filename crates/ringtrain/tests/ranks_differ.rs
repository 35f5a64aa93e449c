//! Ranks that are started with other settings end, and name both ranks and the first setting that
//! differs; a rank that joins with other settings ends alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use launch::{losses, ringrun, train};
use tempfile::TempDir;

const TRAINING: &str = "--limit=120 --epochs=2 --lr=0.01 --decay=constant --seed=7";

/// Ranks of ringrun whose arguments are the words that this line of the shell prints.
fn launched(ringrun: &Path, launch: &str, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_ringtrain");
    let body = format!("exec {program} $({arguments})");
    let mut command = Command::new(ringrun);
    command.args(launch::HERE);
    command.args(launch.split(' ')).args(["bash", "-c", &body]);
    command.env("RINGREDUCE_TIMEOUT", "60").output().unwrap()
}

#[test]
fn the_first_setting_that_differs_is_named_with_both_ranks() {
    let Some(ringrun) = ringrun("the_first_setting_that_differs") else { return };
    let cases = [
        ("--strategy=mirrored", "--batch=12", "--batch 12", "--batch 24"),
        ("--strategy=sharded-optimizer", "--lr=0.5", "--lr 0.5", "--lr 0.01"),
        ("--model=lenet", "--model=dense", "--model dense", "--model lenet"),
        ("--strategy=parameter-server", "--seed=8", "--seed 8", "--seed 7"),
        ("--strategy=pipeline", "--momentum=0.5", "--momentum 0.5", "--momentum 0.9"),
        // Each of two ranks takes another way from here on.
        ("--strategy=mirrored", "--strategy=naive", "--strategy naive", "--strategy mirrored"),
        (
            "--strategy=mirrored",
            "--strategy=parameter-server",
            "--strategy parameter-server",
            "--strategy mirrored",
        ),
        (
            "--strategy=pipeline",
            "--strategy=mirrored",
            "--strategy mirrored",
            "--strategy pipeline",
        ),
        // This one does not fit its own settings either.
        ("--strategy=mirrored", "--batch=1", "--batch 1", "--batch 24"),
        ("--strategy=mirrored", "--limit=96", "the images 96", "the images 120 of 1x28x28"),
    ];
    for (all, other, given, expected) in cases {
        let flag = |setting: &str| setting.split_once('=').unwrap().0.to_owned();
        let common: Vec<&str> = TRAINING.split(' ').chain([all]).collect();
        let kept = common.iter().filter(|it| flag(it) != flag(other)).copied();
        let kept = kept.collect::<Vec<_>>().join(" ");
        let common = common.join(" ");
        let words = format!("[ $RINGREDUCE_RANK = 1 ] && echo {kept} {other} || echo {common}");
        let ran = launched(&ringrun, "-n 2", &words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success(), "{other}: {said}");
        let given = format!("the ranks have other settings: {given}");
        assert!(said.contains(&given), "{other}: {said}");
        let expected = format!("at rank 1, expected {expected}");
        assert!(said.contains(&expected) && said.contains(", as at rank 0"), "{other}: {said}");
    }
}

#[test]
fn a_rank_that_joins_with_other_settings_ends_alone() {
    let Some(ringrun) = ringrun("a_rank_that_joins_with_other_settings") else { return };
    let steady = losses(&train(&ringrun, "-n 2", TRAINING));
    for strategy in ["mirrored", "sharded-optimizer"] {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let json = path("result.json");
        // The rank that is lost comes back with another learning rate.
        let words = format!(
            "echo {} --strategy={strategy} --json={json}; [ $RINGREDUCE_RANK = 1 ] && \
             {{ mkdir {} 2>/dev/null && echo --lose=3 || echo --warmup=2; }}",
            // Long enough for a process to start again meanwhile.
            TRAINING.replace("--epochs=2", "--epochs=100"),
            path("was-here")
        );
        let ran = launched(&ringrun, "--elastic 1:2 --max-restarts 1", &words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains("--warmup 2 at rank 1, expected --warmup 0"), "{said}");
        let result = serde_json::from_slice(&fs::read(&json).unwrap_or_default());
        let result: serde_json::Value = result.unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(result["ranks"], 1, "{said}");
        for (one, other) in steady.iter().zip(losses(&result)) {
            assert!((one - other).abs() < 1e-3 * one.abs().max(1e-2), "{strategy}: {said}");
        }
    }
}

/// A worker is killed once there are some steps, and comes back with another seed.
#[test]
fn a_worker_that_joins_with_other_settings_ends_alone() {
    let Some(ringrun) = ringrun("a_worker_that_joins_with_other_settings") else { return };
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, steps, mark) = (path("result.json"), path("events/steps.csv"), path("was-here"));
    let program = env!("CARGO_BIN_EXE_ringtrain");
    let body = format!(
        "all='{program} {TRAINING} --limit=480 --epochs=30 --strategy=parameter-server --patience=60
            --json={json} --events={}'
        [ $RINGREDUCE_RANK = 2 ] || exec $all
        mkdir {mark} 2>/dev/null || exec $all --momentum=0.5
        (until [ $(cat {steps} | wc -l) -gt 5 ]; do sleep 0.01; done; kill -KILL $$) 2>/dev/null &
        exec $all",
        path("events")
    );
    let body = body.replace("--limit=120 --epochs=2", "");
    let mut command = Command::new(ringrun);
    command.args(launch::HERE);
    command.args(["--elastic", "2:3", "--max-restarts", "1", "bash", "-c", &body]);
    let ran = command.env("RINGREDUCE_TIMEOUT", "60").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    let expected = "--momentum 0.5 at rank 2, expected --momentum 0.9, as at rank 0";
    assert!(said.contains(expected), "{said}");
    let result = serde_json::from_slice(&fs::read(&json).unwrap_or_default());
    let result: serde_json::Value = result.unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(losses(&result).len(), 600, "{said}");
}
