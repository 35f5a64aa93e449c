//! Parameter servers whose ranks are processes of ringrun that are stopped, killed and interrupted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod launch;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use launch::running::{Running, kill};
use launch::{accuracy, losses, ringrun, train};
use serde_json::Value;
use tempfile::TempDir;

const TRAINING: &str =
    "--strategy=parameter-server --limit=240 --batch=24 --lr=0.01 --seed=7 --side=12 --model=dense";

/// Such a training under ringrun.
fn start(ringrun: &Path, launch: &str, settings: &str) -> Running {
    Running::start(ringrun, launch, &format!("{TRAINING} {settings}"))
}

/// Whether the kernel has stopped a process.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The state is behind the name, which is in brackets.
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

/// Whether a process has opened a file.
fn has_open(pid: u32, file: &Path) -> bool {
    let opened = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    opened.filter_map(|it| fs::read_link(it.path()).ok()).any(|it| it == file)
}

const LONG: &str = "--epochs=100000 --worker-timeout=5";

#[test]
fn a_stopped_worker_is_given_up_and_refused_when_it_goes_on() {
    let Some(ringrun) = ringrun("a_stopped_worker") else { return };
    for policy in ["synchronous", "asynchronous --bound=1"] {
        let settings = format!("{LONG} --policy={policy}");
        let mut job = start(&ringrun, "--elastic 2:4 --max-restarts 0", &settings);
        job.until("five steps", |job| job.steps() > 5);
        let stopped = job.send("STOP", 3);
        job.until("the server goes on", |job| {
            job.said().contains("goes on after lost workers [3]")
        });
        let steps = job.steps();
        job.until("further steps", |job| job.steps() > steps + 20);
        kill("CONT", stopped);
        job.until("it is refused", |job| {
            job.said().contains("the server at rank 0 went on without")
        });
        let steps = job.steps();
        job.until("steps after that", |job| job.steps() > steps + 20);
        let (_, out, said) = job.interrupt();
        assert!(out.contains("0 gradients dropped"), "{policy}: {out}");
        assert!(out.contains("lost workers [3]"), "{policy}: {out}");
        assert!(said.contains("rank 3 of 4"), "{policy}: {said}");
    }
}

#[test]
fn a_worker_that_was_stopped_for_long_joins_again() {
    let Some(ringrun) = ringrun("a_worker_that_was_stopped") else { return };
    let settings = format!("{LONG} --patience=60");
    let mut job = start(&ringrun, "--elastic 2:4", &settings);
    job.until("five steps", |job| job.steps() > 5);
    let stopped = job.send("STOP", 2);
    job.until("the server goes on", |job| job.said().contains("goes on after lost workers [2]"));
    kill("CONT", stopped);
    job.until("it joins", |job| job.said().contains("lost workers [2], 1 changes"));
    let steps = job.steps();
    job.until("steps with it", |job| job.steps() > steps + 20);
    let (code, out, said) = job.interrupt();
    assert_eq!(code, Some(130), "{said}");
    assert!(out.contains("1 changes of the membership"), "{out}");
}

/// A stop that is shorter than the limit costs nobody its place.
#[test]
fn a_worker_that_was_stopped_for_short_goes_on() {
    let Some(ringrun) = ringrun("a_worker_that_was_stopped_for_short") else { return };
    let settings = "--epochs=100000 --worker-timeout=60";
    let mut job = start(&ringrun, "--elastic 2:4 --max-restarts 0", settings);
    job.until("five steps", |job| job.steps() > 5);
    let stopped = job.send("STOP", 3);
    // From here on all wait for it, after the step whose gradient it has pushed.
    job.until("it is stopped", |_| is_stopped(stopped));
    // The time that it is stopped: servers look at their workers every 20 ms.
    std::thread::sleep(Duration::from_millis(500));
    let steps = job.steps();
    kill("CONT", stopped);
    job.until("steps with it", |job| job.steps() > steps + 20);
    let (code, out, said) = job.interrupt();
    assert_eq!(code, Some(130), "{said}");
    assert!(out.contains("lost workers []"), "{out}");
}

#[test]
fn a_killed_worker_joins_again_and_a_killed_server_comes_back_from_its_snapshot() {
    let Some(ringrun) = ringrun("a_killed_worker_joins_again") else { return };
    let settings = format!("{TRAINING} --epochs=8");
    let steady = train(&ringrun, "-n 3", &settings);
    for (victim, elastic) in [(2, "--elastic 2:3"), (0, "--elastic 1:3")] {
        // With a snapshot after each update nothing is lost.
        let settings = "--epochs=8 --patience=60 --checkpoint-every=1";
        let mut job = start(&ringrun, elastic, settings);
        job.until("thirty steps", |job| job.steps() > 30);
        let killed = job.send("KILL", victim);
        job.until("it is started again", |job| job.pid(victim).is_some_and(|pid| pid != killed));
        let result = job.result();
        assert_eq!(losses(&result).len(), losses(&steady).len(), "{victim}");
        assert!((accuracy(&result) - accuracy(&steady)).abs() < 0.03, "{victim}");
        let last = |result: &Value| losses(result).last().copied().unwrap();
        if victim == 0 {
            let distance = (last(&result) - last(&steady)).abs();
            assert!(distance < 1e-3 * last(&steady).abs().max(1e-2), "{distance}");
        }
    }
}

/// Parts of the model that are longer than what a link takes at once.
#[test]
fn servers_that_do_not_wait_for_all_workers_give_checkpoints() {
    let Some(ringrun) = ringrun("servers_that_do_not_wait") else { return };
    let settings = "--strategy=parameter-server --servers=2 --limit=480 --batch=24 --lr=0.01 \
                    --epochs=1 --checkpoint-every=1 --worker-timeout=60";
    for (ranks, policy) in [(4, "--policy=asynchronous"), (5, "--backups=1")] {
        let settings = settings.split_whitespace().collect::<Vec<_>>().join(" ");
        let launch = format!("-n {ranks}");
        let mut job = Running::start(&ringrun, &launch, &format!("{settings} {policy}"));
        job.result();
        assert!(!job.said().contains("goes on after lost"), "{policy}: {}", job.said());
    }
}

/// The next worker reports and saves, whether the first one comes back or not.
#[test]
fn another_worker_has_the_results_if_the_first_one_is_lost() {
    let Some(ringrun) = ringrun("another_worker_has_the_results") else { return };
    for (most, patience) in [(0, " --patience=20"), (3, "")] {
        let settings = format!("--epochs=40 --checkpoint-every=7{patience}");
        let launch = format!("--elastic 1:4 --max-restarts {most}");
        let mut job = start(&ringrun, &launch, &settings);
        job.until("twenty steps", |job| job.steps() > 20);
        job.send("KILL", 1);
        let result = job.result();
        assert_eq!(result["steps"], 400, "{most} restarts: {}", job.said());
        assert!(job.path("checkpoints/step-00000400.safetensors").exists(), "{most}");
    }
}

#[test]
fn the_waits_of_workers_are_shown() {
    let Some(ringrun) = ringrun("the_waits_of_workers") else { return };
    let result = train(&ringrun, "-n 3", &format!("{TRAINING} --epochs=2"));
    for epoch in result["epochs"].as_array().unwrap() {
        let seconds = |name: &str| epoch[name].as_f64().unwrap();
        assert!(seconds("exposed") > 0.0 && seconds("exposed") < seconds("seconds"), "{epoch}");
        assert_eq!(seconds("hidden"), 0.0, "a worker computes nothing while it waits");
    }
}

/// The signal of one rank ends the training of all, and the first worker saves.
#[test]
fn an_interrupt_of_one_worker_ends_the_job_with_a_checkpoint() {
    let Some(ringrun) = ringrun("an_interrupt_of_one_worker") else { return };
    for policy in ["synchronous", "asynchronous"] {
        for rank in [2, 3] {
            let settings = format!("{LONG} --servers=2 --policy={policy}");
            let mut job = start(&ringrun, "-n 4", &settings);
            job.until("five steps", |job| job.steps() > 5);
            job.send("INT", rank);
            let code = job.ended().code();
            assert_eq!(code, Some(130), "{policy}, {rank}: {}", job.said());
            let result: Value =
                serde_json::from_slice(&fs::read(job.path("result.json")).unwrap()).unwrap();
            assert_eq!(result["is_stopped"], true, "{policy}, {rank}");
            let file = format!("step-{:08}.safetensors", result["steps"].as_u64().unwrap());
            assert!(job.path("checkpoints").join(&file).exists(), "{policy}, {rank}: {file}");
        }
    }
}

/// The first worker waits for a reader of its chart, a FIFO. Another one is interrupted meanwhile,
/// before the last step of the training.
#[test]
fn an_interrupt_in_the_last_step_ends_all_ranks_alike() {
    let Some(ringrun) = ringrun("an_interrupt_in_the_last_step") else { return };
    let folder = TempDir::new().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let saved = format!("--checkpoint-every=8 --checkpoint {}", checkpoints.display());
    train(&ringrun, "-n 3", &format!("{TRAINING} --epochs=1 {saved}"));
    fs::remove_file(checkpoints.join("step-00000010.safetensors")).unwrap();
    let chart = folder.path().join("chart");
    assert!(Command::new("mkfifo").arg(&chart).status().unwrap().success());
    let settings = format!("{TRAINING} --epochs=1 --resume --chart {}", chart.display());
    let mut job = Running::start_in(folder, &ringrun, "-n 4", &settings);
    // The file that it opens before; the others are in the step before the last one.
    job.until("the first worker opens files", |job| job.path("result.json").exists());
    job.send("INT", 3);
    let _reader = File::options().read(true).write(true).open(&chart).unwrap();
    assert_eq!(job.ended().code(), Some(130), "{}", job.said());
    assert_eq!(job.said().matches("ringtrain: stopped;").count(), 4, "{}", job.said());
    let result: Value =
        serde_json::from_slice(&fs::read(job.path("result.json")).unwrap()).unwrap();
    assert_eq!(result["is_stopped"], true);
}

/// The servers have what all workers have learnt.
#[test]
fn the_only_worker_is_killed_and_joins_again() {
    let Some(ringrun) = ringrun("the_only_worker_is_killed") else { return };
    let settings = "--epochs=3 --patience=60";
    let mut job = start(&ringrun, "--elastic 1:2", settings);
    let saved = job.path("checkpoints").join("step-00000010.safetensors");
    job.until("a checkpoint", |_| saved.exists());
    let killed = job.send("KILL", 1);
    job.until("it is started again", |job| job.pid(1).is_some_and(|pid| pid != killed));
    assert!(job.ended().success(), "{}", job.said());
    let out = job.out();
    let updates = out.split("server 0: ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(updates.parse::<usize>().unwrap() >= 10 + 30, "{out}");
}

/// The first worker is killed while it reads the checkpoint, from a FIFO: nobody begins anew, also
/// where no other worker is there.
#[test]
fn a_checkpoint_whose_reader_is_lost_is_not_forgotten() {
    let Some(ringrun) = ringrun("a_checkpoint_whose_reader_is_lost") else { return };
    let cases = [
        ("--elastic 1:3 --max-restarts 0", "start the training again with --resume"),
        ("--elastic 1:2", "the worker that had it is lost; start the training again from it"),
    ];
    for (launch, expected) in cases {
        let folder = TempDir::new().unwrap();
        let checkpoints = folder.path().join("checkpoints");
        let settings = format!("{TRAINING} --epochs=1 --checkpoint {}", checkpoints.display());
        train(&ringrun, "-n 3", &settings);
        let file = checkpoints.join("step-00000010.safetensors");
        let kept = folder.path().join("kept");
        fs::rename(&file, &kept).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        // Open on both sides, so that only a read waits.
        let fifo = File::options().read(true).write(true).open(&file).unwrap();
        let settings = format!("{TRAINING} --epochs=2 --patience=10 --resume");
        let mut job = Running::start_in(folder, &ringrun, launch, &settings);
        let is_reading = |job: &Running| job.pid(1).is_some_and(|pid| has_open(pid, &file));
        job.until("the first worker reads", is_reading);
        fs::rename(&kept, &file).unwrap();
        job.send("KILL", 1);
        drop(fifo);
        let ended = job.ended();
        assert!(!ended.success() && job.said().contains(expected), "{launch}: {}", job.said());
    }
}
