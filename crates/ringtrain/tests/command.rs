//! The program's exit codes, messages and files.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn train(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
    command.args(arguments).output().unwrap()
}

#[track_caller]
fn refused(arguments: &[&str], expected: &str) {
    let output = train(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} should fail");
    assert!(message.contains(expected), "{arguments:?}: {message}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
}

#[test]
fn invalid_settings_are_refused() {
    for (flag, value) in [
        ("--epochs", "0"),
        ("--epochs", "-1"),
        ("--batch", "0"),
        ("--batch", "many"),
        ("--limit", "0"),
        ("--lr", "NaN"),
        ("--lr", "inf"),
        ("--lr", "0"),
        ("--lr", "-0.1"),
        ("--momentum", "1"),
        ("--momentum", "NaN"),
        ("--seed", "-1"),
        ("--bucket-bytes", "0"),
        ("--bucket-bytes", "6"),
        ("--strategy", "telepathy"),
        ("--model", "gpt"),
        ("--ranks", "0"),
    ] {
        refused(&[&format!("{flag}={value}")], flag);
    }
    refused(&["--speed", "11"], "--speed");
    refused(&["--lr", "-1"], "must be above 0");
    refused(&["--momentum", "-1"], "must be from 0 to below 1");
    refused(&["data"], "data");
    refused(&["--resume"], "--checkpoint");
    refused(&["lesson", "patience"], "patience");
    refused(&["lesson", "ring", "--data", "/"], "--data is not for lesson ring");
    refused(&["lesson", "scaling", "--data", "/nowhere/at/all"], "/nowhere/at/all: No such file");
}

#[test]
fn settings_that_do_not_fit_together_are_refused_with_a_remedy() {
    for (arguments, expected) in [
        ("--limit 10 --batch 11", "--batch 11 is more than the 10 training images"),
        ("--ranks 3 --batch 2", "--batch 2 is less than the 3 ranks"),
        ("--ranks 2 --batch 8 --accumulate 5", "--accumulate 5 is more than the 4 images"),
        ("--strategy sharded-optimizer --optimizer lars", "take sgd or adam, or --strategy mirr"),
        ("--strategy parameter-server", "--servers 1 of 1 ranks leave no worker: start at least 2"),
        ("--strategy parameter-server --ranks 3 --bound 1", "--bound is for --policy asynchronous"),
        ("--strategy parameter-server --ranks 3 --backups 2", "--backups 2 of 2 workers"),
        (
            "--strategy parameter-server --ranks 3 --clip-norm 1",
            "--clip-norm is not for --strategy",
        ),
        ("--micro-batches 4", "--micro-batches is not for --strategy mirrored, but for pipeline"),
        ("train --policy synchronous --strategy naive", "--policy is not for --strategy naive"),
        ("--strategy tensor-parallel --optimizer lamb", "take sgd or adam, or --strategy mirrored"),
        (
            "--strategy tensor-parallel --ranks 11 --batch 11",
            "11 ranks can't share a layer of 10 units: use fewer ranks",
        ),
        ("--strategy parameter-server --lose 2", "--lose is not for --strategy parameter-server"),
        ("compare --only naive,mirrored --servers 2", "compare --only such strategies"),
        ("compare --strategy pipeline", "--strategy is not for compare, which trains by all"),
        ("compare --policy asynchronous", "--policy is not for compare, which has a row for each"),
        (
            "compare --worlds 8 --only pipeline",
            "nothing is left to compare: pipeline needs at most 7 ranks: left out on 8",
        ),
        (
            "compare --optimizer lamb --only sharded-optimizer",
            "sharded-optimizer splits parameters, which --optimizer lamb needs whole",
        ),
        ("--strategy pipeline --ranks 2 --batch 8 --micro-batches 9", "--micro-batches 9 is more"),
        (
            "--strategy parameter-server --ranks 3 --groups 3",
            "--groups 3 of 2 workers leave groups without one",
        ),
        ("--limit 48 --epochs 2 --warmup 5", "--warmup 5 is more than the 4 steps of the training"),
        ("--ranks 2 --lose 3", "start processes with ringrun --elastic"),
        ("--ranks 2 --strategy pipeline --patience 3", "--patience waits for processes that are"),
        ("--freeze convolution", "--freeze convolution is the beginning of no parameter's name"),
        ("--freeze conv --freeze dense", "--freeze conv --freeze dense leaves nothing to train"),
    ] {
        refused(&arguments.split(' ').collect::<Vec<_>>(), expected);
    }
}

#[test]
fn commands_that_make_ranks_are_refused_under_a_launcher() {
    for words in [&["lesson", "lenet", "--quick"][..], &["compare"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
        command.args(words);
        for launcher in ["RINGREDUCE_", "OMPI_COMM_WORLD_"] {
            for (name, value) in [("RANK", "0"), ("SIZE", "2")] {
                command.env(format!("{launcher}{name}"), value);
            }
            let output = command.output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr);
            let expected = format!("ringtrain {} makes its ranks itself, and a launcher", words[0]);
            assert!(message.contains(&expected), "{launcher}: {message}");
            command.env_remove("RINGREDUCE_RANK").env_remove("RINGREDUCE_SIZE");
        }
    }
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let dir = TempDir::new().unwrap();
    let here = dir.path().to_str().unwrap();
    refused(&["--data", "/nowhere/at/all"], "/nowhere/at/all: No such file");
    refused(&["--data", here], here);
    refused(&["--json", here], "Is a directory");
    refused(&["--chart", here], "Is a directory");
    refused(&["--events", "/proc/none"], "/proc/none");
    refused(&["compare", "--limit", "96", "--json", here], "Is a directory");
    refused(&["compare", "--limit", "96", "--svg", here], "Is a directory");
    refused(&["compare", "--limit", "96", "--html", here], "Is a directory");
    refused(&["--checkpoint", "/proc/none"], "/proc/none");

    fs::write(dir.path().join("t10k-images-idx3-ubyte"), [0, 0, 8]).unwrap();
    fs::write(dir.path().join("t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 5]).unwrap();
    let file = Path::new(here).join("t10k-images-idx3-ubyte");
    let message = format!("{}: truncated: expected 16 bytes, found 3", file.display());
    refused(&["--data", here], &message);
}

#[test]
fn a_loss_that_is_not_finite_names_the_rank_the_layer_and_the_step() {
    for strategy in ["mirrored", "tensor-parallel"] {
        let strategy = format!("--strategy={strategy}");
        let output = train(&["--ranks=2", "--limit=96", "--lr=1e30", "--epochs=1", &strategy]);
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("the loss of step 2 is"), "{message}");
        assert!(message.contains("rank 0 has such a"), "{message}");
        assert!(message.contains("try a smaller --lr"), "{message}");
    }
}

/// The signal comes while rank 0 waits for the other one, in which only the default action ends it.
#[test]
fn an_interrupt_before_the_ranks_have_met_ends_the_program() {
    let Some(ringrun) = launch::ringrun("an_interrupt_before_the_ranks") else { return };
    let dir = TempDir::new().unwrap();
    let mark = dir.path().join("result.json");
    let body = format!(
        "[ $RINGREDUCE_RANK = 1 ] && exec sleep 100
         exec {} --limit=96 --epochs=1 --checkpoint={} --json={}",
        env!("CARGO_BIN_EXE_ringtrain"),
        dir.path().join("checkpoints").display(),
        mark.display()
    );
    let mut job = Command::new(ringrun);
    job.args(launch::HERE);
    let mut job = job.args(["-n", "2", "sh", "-c", &body]).spawn().unwrap();
    let begun = Instant::now();
    // The folder is made before the ranks meet.
    while !dir.path().join("checkpoints").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let rank = launch::process_of(0, &format!("--json={}", mark.display())).unwrap();
    launch::running::kill("INT", rank);
    let ended = job.wait().unwrap();
    assert_eq!(ended.code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(60), "it has not waited for the other rank");
}

#[test]
fn a_short_training_prints_and_writes_a_line_for_each_epoch() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, chart, events) = (path("result.json"), path("chart.svg"), path("events"));
    let output = train(&[
        "--limit=110",
        "--epochs=2",
        "--batch=20",
        "--ranks=2",
        "--json",
        &json,
        "--chart",
        &chart,
        "--events",
        &events,
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stderr, b"", "no progress bar in a pipe");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert_eq!(lines[0], "generated images: 110 training and 500 test images of 1x28x28");
    assert!(lines[1].starts_with("lenet by mirrored on 2 ranks, batch 20, 44426 par"), "{text}");
    assert!(lines[2].starts_with("epoch    loss  accuracy"), "{text}");
    assert!(lines[5].starts_with("total: 2 epochs, 220 images in "), "{text}");

    let result: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(result["ranks"], 2);
    assert_eq!(result["settings"]["batch"], 20);
    assert_eq!(result["settings"]["strategy"], "mirrored");
    assert_eq!(result["epochs"][1]["epoch"], 2);
    // The last batch has ten images.
    assert_eq!(result["epochs"][1]["losses"].as_array().unwrap().len(), 6);
    let svg = fs::read_to_string(chart).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("loss"), "{svg}");
    let rows = |name: &str| fs::read_to_string(Path::new(&events).join(name)).unwrap();
    assert_eq!(rows("steps.csv").lines().count(), 13);
    assert_eq!(rows("epochs.csv").lines().count(), 3);
}

#[test]
fn layers_that_are_split_show_the_time_of_their_communication() {
    let dir = TempDir::new().unwrap();
    let json = dir.path().join("result.json").to_str().unwrap().to_owned();
    let words = "--strategy=tensor-parallel --model=dense --ranks=2 --limit=48 --epochs=1 --json";
    let output = train(&words.split(' ').chain([&*json]).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let epoch = &result["epochs"][0];
    let [exposed, seconds] = ["exposed", "seconds"].map(|it| epoch[it].as_f64().unwrap());
    assert!(exposed > 0.0 && exposed < seconds, "{epoch}");
}
