//! A rank is lost during a training: the others go on from their state, let it join again, and the
//! training ends with the same result, by every strategy whose ranks make the same steps. Where a
//! rank had a part of the model, all wait for it and go back to the last checkpoint.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod launch;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use launch::running::Running;
use launch::{accuracy, losses, ringrun, train};
use serde_json::Value;
use tempfile::TempDir;

/// Compares two loss curves, which a lost or repeated update would change.
fn assert_same(steady: &Value, other: &Value, what: &str) {
    let (steady_losses, other_losses) = (losses(steady), losses(other));
    assert_eq!(steady_losses.len(), other_losses.len(), "{what}");
    for (step, (one, two)) in steady_losses.iter().zip(&other_losses).enumerate() {
        let error = (one - two).abs() / one.abs().max(1e-2);
        assert!(error < 1e-3, "{what}, step {step}: {two}, not {one}");
    }
    let difference = (accuracy(steady) - accuracy(other)).abs();
    assert!(difference <= 2.0 / 500.0, "{what}: {} and {}", accuracy(steady), accuracy(other));
}

#[test]
fn a_rank_is_lost_and_the_training_ends_the_same() {
    let Some(ringrun) = ringrun("elastic") else { return };
    let settings = "--limit=443 --epochs=3 --batch=24 --lr=0.01 --seed=7";
    let steady = train(&ringrun, "-n 4", settings);
    assert_eq!(losses(&steady).len(), 57);
    // The last rank is lost in the first epoch, and joins again.
    for strategy in launch::share_of(&["mirrored", "sharded-optimizer", "central-storage", "naive"])
    {
        let lose = format!("{settings} --strategy={strategy} --lose=5");
        assert_same(&steady, &train(&ringrun, "--elastic 2:4", &lose), strategy);
    }
    // The last rank is lost and never restarted.
    let lose = format!("{settings} --lose=5");
    let alone = train(&ringrun, "--elastic 2:4 --max-restarts 0", &lose);
    assert_eq!(alone["ranks"], 3);
    assert_same(&steady, &alone, "without it");
}

const SHARDED: &str = "--batch=24 --seed=7 --optimizer=adam --strategy=sharded-optimizer";

/// Ranks 1 and 2 of a job are lost after so many steps, and never restarted. They are stopped
/// before they are killed, so that the others lose both at a time: the optimizer's state of rank 1,
/// whose copy rank 2 had.
fn without_two_neighbors(ringrun: &Path, settings: &str, steps: usize) -> Running {
    let mut job = Running::start(ringrun, "--elastic 2:4 --max-restarts 0", settings);
    job.until("some steps", |job| job.steps() > steps);
    let victims = [1, 2].map(|rank| job.send("STOP", rank).to_string());
    let sent = Command::new("kill").arg("-KILL").args(&victims).status().unwrap();
    assert!(sent.success());
    job
}

#[test]
fn a_lost_state_of_the_optimizer_comes_from_the_last_checkpoint() {
    let Some(ringrun) = ringrun("a_lost_state_of_the_optimizer") else { return };
    let settings = format!("{SHARDED} --model=dense --side=12 --limit=240 --epochs=40");
    let steady = train(&ringrun, "-n 4", &settings);
    let mut job = without_two_neighbors(&ringrun, &format!("{settings} --checkpoint-every=7"), 20);
    let result = job.result();
    assert_same(&steady, &result, "two neighbors");
    assert_eq!(result["ranks"], 2);
    assert_eq!(job.out().matches("resumed after").count(), 1, "{}", job.out());
}

/// The first epoch, after which the first checkpoint is written, is much longer than the test.
#[test]
fn a_lost_state_of_the_optimizer_without_a_checkpoint_ends_the_training() {
    let Some(ringrun) = ringrun("a_lost_state_without_a_checkpoint") else { return };
    let settings = format!("{SHARDED} --model=mobilenet --epochs=1");
    let mut job = without_two_neighbors(&ringrun, &settings, 1);
    assert!(!job.ended().success());
    let said = job.said();
    assert!(said.contains("no checkpoint is there to go back to: give --checkpoint"), "{said}");
}

/// ringrun starts ranks again whose programs will end with the same error, and then ends them.
#[test]
fn a_wrong_setting_under_elastic_is_the_error_of_a_rank_that_has_it() {
    let Some(ringrun) = ringrun("a_wrong_setting_under_elastic") else { return };
    let mut job = Running::start(&ringrun, "--elastic 1:4", "--limit=96 --epochs=1 --batch=3");
    assert_eq!(job.ended().code(), Some(1), "{}", job.said());
    let (said, expected) = (job.said(), "--batch 3 is less than the 4 ranks");
    assert!(said.contains(expected) && said.contains("exited with status 1\n"), "{said}");
}

const PARTS: &str = "--model=dense --side=12 --limit=240 --batch=24 --lr=0.01 --seed=7";

/// The numbers in the first column of a table that a training has written.
fn rows(job: &Running, table: &str) -> Vec<usize> {
    let text = fs::read_to_string(job.path("events").join(table)).unwrap();
    let number = |row: &str| row.split(',').next().unwrap().parse().unwrap();
    text.lines().skip(1).map(number).collect()
}

/// The training of a job must end as this one, which was never disturbed, to the bit.
fn assert_ends_as(steady: &mut Running, job: &mut Running, what: &str) {
    let (expected, result) = (steady.result(), job.result());
    assert_eq!(losses(&result), losses(&expected), "{what}");
    assert_eq!(accuracy(&result), accuracy(&expected), "{what}");
    assert_eq!(result["ranks"], expected["ranks"], "{what}");
    assert!(steady.tensors() == job.tensors(), "{what}: other parameters or moments");
    for table in ["steps.csv", "epochs.csv"] {
        assert_eq!(rows(job, table), rows(steady, table), "{what}: {table}");
    }
}

/// A script that starts a rank, unless this line of it does something else.
fn script(folder: &TempDir, line: &str) -> String {
    let path = folder.path().join("script");
    fs::write(&path, format!("{line}\nexec \"$@\"\n")).unwrap();
    format!("bash {}", path.display())
}

#[test]
fn a_killed_rank_comes_back_for_its_part_of_the_model() {
    let Some(ringrun) = ringrun("a_killed_rank_comes_back") else { return };
    let cases = [
        ("pipeline --order=1f1b", 2, 1),
        ("tensor-parallel", 2, 1),
        // Rank 0 hears of the loss by rank 1 alone.
        ("pipeline --order=gpipe", 3, 2),
        ("pipeline --order=1f1b", 3, 1),
        ("model-parallel", 2, 0),
        ("tensor-parallel", 2, 0),
    ];
    let count = if launch::wants_all() { cases.len() } else { 3 };
    for (strategy, ranks, victim) in cases.into_iter().take(count) {
        let what = format!("{strategy}, rank {victim} of {ranks}");
        let settings =
            format!("{PARTS} --strategy={strategy} --epochs=30 --checkpoint-every=7 --keep=2");
        let mut steady = Running::start(&ringrun, &format!("-n {ranks}"), &settings);
        steady.result();
        let launch = format!("--elastic 1:{ranks} --max-restarts 3");
        let mut job = Running::start(&ringrun, &launch, &settings);
        job.until("twenty steps", |job| job.steps() > 20);
        job.send("KILL", victim);
        assert_ends_as(&mut steady, &mut job, &what);
        let (out, said) = (job.out(), job.said());
        assert!(said.contains("it is started again (1 of 3 times)"), "{what}: {said}");
        let waits = format!("{} of {ranks} ranks wait up to 120s", ranks - 1);
        assert!(said.contains(&waits) && said.contains("ranks go on"), "{what}: {said}");
        assert_eq!(out.matches("resumed after").count(), 1, "{what}: {out}");
    }
}

/// The last rank ends itself in a step, so it is known to which checkpoint all go back.
#[test]
fn all_go_back_to_the_last_checkpoint_or_begin_anew() {
    let Some(ringrun) = ringrun("all_go_back_to_the_last_checkpoint") else { return };
    for strategy in ["pipeline", "tensor-parallel"] {
        let settings =
            format!("{PARTS} --strategy={strategy} --epochs=2 --checkpoint-every=4 --momentum=0.5");
        let mut steady = Running::start(&ringrun, "-n 2", &settings);
        steady.result();
        for (step, expected) in [
            (1, "no checkpoint yet: begun anew from the first parameters"),
            (4, "no checkpoint yet: begun anew from the first parameters"),
            (5, "resumed after 4 steps"),
            (11, "resumed after 10 steps"),
            (16, "resumed after 12 steps"),
        ] {
            let lose = format!("{settings} --lose={step}");
            let mut job = Running::start(&ringrun, "--elastic 1:2", &lose);
            assert_ends_as(&mut steady, &mut job, &format!("{strategy}, step {step}"));
            let out = job.out();
            assert_eq!(out.matches(expected).count(), 1, "{strategy}, step {step}: {out}");
            // The head of the table, then a row for each epoch.
            let rows = out.lines().filter(|line| line.contains(" %  ")).count();
            assert_eq!(rows, 2, "{strategy}, step {step}: {out}");
        }
    }
}

/// The rank that comes back first has another seed and ends, so that the others lose it again.
#[test]
fn a_rank_that_is_lost_again_while_it_joins_comes_back_once_more() {
    let Some(ringrun) = ringrun("a_rank_that_is_lost_again") else { return };
    let settings = format!("{PARTS} --strategy=pipeline --epochs=2 --checkpoint-every=4");
    let mut steady = Running::start(&ringrun, "-n 3", &settings);
    steady.result();
    let folder = TempDir::new().unwrap();
    let mark = folder.path().join("was-here");
    let line = format!(
        "[ \"$RINGREDUCE_JOIN\" = 1 ] && mkdir {} && exec \"$@\" --momentum=0.5",
        mark.display()
    );
    let launch = format!("--elastic 1:3 {}", script(&folder, &line));
    let mut job = Running::start(&ringrun, &launch, &format!("{settings} --lose=7"));
    assert_ends_as(&mut steady, &mut job, "lost again");
    let said = job.said();
    assert!(said.contains("--momentum 0.5 at rank 2, expected --momentum 0.9"), "{said}");
    assert!(said.contains("it is started again (2 of 3 times)"), "{said}");
    assert!(job.out().contains("resumed after 4 steps"), "{}", job.out());
}

#[test]
fn a_rank_that_does_not_come_back_is_named() {
    let Some(ringrun) = ringrun("a_rank_that_does_not_come_back") else { return };
    let folder = TempDir::new().unwrap();
    let never = script(&folder, "[ \"$RINGREDUCE_JOIN\" = 1 ] && exec sleep 1000");
    for (strategy, ranks, launch, patience) in [
        // Rank 0 of three stages has no link to the last one in a pass.
        ("pipeline", 3, format!("--elastic 1:3 {never}"), Some(2)),
        ("tensor-parallel", 2, format!("--elastic 1:2 {never}"), Some(2)),
        // Here the others do not wait, because nobody starts it again.
        ("pipeline", 2, "--elastic 1:2 --max-restarts 0".into(), None),
        ("tensor-parallel", 2, "-n 2".into(), None),
    ] {
        let what = format!("{strategy}, {launch}");
        let settings = format!("{PARTS} --strategy={strategy} --epochs=100000");
        let settings = format!("{settings} --patience={}", patience.unwrap_or(1000));
        let mut job = Running::start(&ringrun, &launch, &settings);
        job.until("ten steps", |job| job.steps() > 10);
        let (begun, killed) = (Instant::now(), job.send("KILL", ranks - 1));
        assert!(!job.ended().success(), "{what}");
        let (said, victim) = (job.said(), format!("rank {} (host ", ranks - 1));
        let begins = format!("ringtrain: rank 0 of {ranks}: ");
        let error = said.lines().find(|line| line.starts_with(&begins));
        let error = error.unwrap_or_else(|| panic!("{what}: {said}"));
        let is_named = error.contains(&victim) && error.contains(&format!("pid {killed})"));
        assert!(is_named, "{what}: {error}");
        let waits = Duration::from_secs(patience.unwrap_or_default());
        assert!(begun.elapsed() >= waits, "{what}: {said}");
        assert_eq!(error.contains("no rank has come back"), patience.is_some(), "{what}: {error}");
        assert_eq!(said.contains("ranks wait up to 2s"), patience.is_some(), "{what}: {said}");
        assert!(!said.contains("ranks go on"), "{what}: {said}");
    }
}

/// The lost rank does not come back: the others do not need it.
#[test]
fn a_loss_while_the_last_checkpoint_is_saved_ends_the_training_well() {
    let Some(ringrun) = ringrun("a_loss_while_the_last_checkpoint_is_saved") else { return };
    let folder = TempDir::new().unwrap();
    let never = script(&folder, "[ \"$RINGREDUCE_JOIN\" = 1 ] && exec sleep 1000");
    for strategy in ["pipeline", "tensor-parallel"] {
        let settings = format!("{PARTS} --strategy={strategy} --epochs=2 --patience=1000");
        let mut whole = Running::start(&ringrun, "-n 3", &settings);
        assert!(whole.ended().success(), "{}", whole.said());
        let last = whole.steps() + 1;
        let settings = format!("{settings} --lose={last}");
        let mut job = Running::start(&ringrun, &format!("--elastic 1:3 {never}"), &settings);
        assert!(job.ended().success(), "{strategy}: {}", job.said());
        assert!(job.said().contains("signal 6"), "{strategy}: {}", job.said());
        let saved = format!("step-{:08}.safetensors", last - 1);
        assert!(job.path("checkpoints").join(saved).exists(), "{strategy}: {}", job.said());
    }
}

#[test]
fn the_user_ends_the_wait_for_a_rank_at_any_rank() {
    let Some(ringrun) = ringrun("the_user_ends_the_wait") else { return };
    let folder = TempDir::new().unwrap();
    let never = script(&folder, "[ \"$RINGREDUCE_JOIN\" = 1 ] && exec sleep 1000");
    let settings = format!("{PARTS} --strategy=pipeline --epochs=100000 --patience=1000");
    let mut job = Running::start(&ringrun, &format!("--elastic 1:3 {never}"), &settings);
    job.until("ten steps", |job| job.steps() > 10);
    job.send("KILL", 2);
    job.until("the others wait", |job| job.said().contains("ranks wait up to 1000s"));
    job.send("INT", 1);
    assert!(!job.ended().success());
    let said = job.said();
    assert_eq!(said.matches("stopped while it waited for rank 2").count(), 2, "{said}");
    // A rank that was started to join may be what ringrun's own code is of.
    assert!(said.contains("exited with status 130"), "{said}");
}

/// Without `--resume` a folder of an earlier training is refused, also where a rank is lost first.
#[test]
fn checkpoints_of_an_earlier_training_are_not_taken_for_those_of_the_job() {
    let Some(ringrun) = ringrun("checkpoints_of_an_earlier_training") else { return };
    let folder = TempDir::new().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let settings = format!("{PARTS} --strategy=pipeline --epochs=1");
    train(&ringrun, "-n 2", &format!("{settings} --checkpoint={}", checkpoints.display()));
    let mut job = Running::start_in(folder, &ringrun, "--elastic 1:2", &settings);
    assert!(!job.ended().success());
    assert!(job.said().contains("of an earlier training: give --resume"), "{}", job.said());
}
