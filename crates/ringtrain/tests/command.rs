//! The program's exit codes, messages and JSON file.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
    ] {
        refused(&[&format!("{flag}={value}")], flag);
    }
    refused(&["--speed", "11"], "--speed");
    refused(&["data"], "data");
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let dir = TempDir::new().unwrap();
    let here = dir.path().to_str().unwrap();
    refused(&["--data", "/nowhere/at/all"], "/nowhere/at/all: No such file");
    refused(&["--data", here], "holds no images: neither files");
    refused(&["--limit", "10", "--batch", "11"], "--batch 11 is more than the 10 training images");
    refused(&["--json", here], "Is a directory");

    fs::write(dir.path().join("t10k-images-idx3-ubyte"), [0, 0, 8]).unwrap();
    fs::write(dir.path().join("t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 5]).unwrap();
    let file = Path::new(here).join("t10k-images-idx3-ubyte");
    let message = format!("{}: truncated: expected 16 bytes, found 3", file.display());
    refused(&["--data", here], &message);

    let mut narrow = vec![0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 18, 0, 0, 0, 18];
    narrow.resize(16 + 18 * 18, 7);
    fs::write(file, narrow).unwrap();
    refused(&["--data", here], "t10k has but one image");
}

#[test]
fn a_short_training_prints_and_writes_a_line_for_each_epoch() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("result.json");
    let json = file.to_str().unwrap();
    let output = train(&["--limit=100", "--epochs=2", "--batch=20", "--json", json]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stderr, b"", "no progress bar in a pipe");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert_eq!(lines[0], "generated images: 100 training and 500 test images of 28x28");
    assert!(lines[2].starts_with("epoch    loss  accuracy"), "{text}");
    assert!(lines[5].starts_with("total: 2 epochs, 200 images in "), "{text}");

    let result: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(result["ranks"], 1);
    assert_eq!(result["settings"]["batch"], 20);
    assert_eq!(result["epochs"][1]["epoch"], 2);
    assert_eq!(result["epochs"][1]["losses"].as_array().unwrap().len(), 5);
}
