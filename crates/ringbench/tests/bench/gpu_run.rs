//! The script tests/gpu/run for machines with a GPU, here on the stand-in for the driver, without a
//! driver, and with a part that fails.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::on_devices::{no_driver, standin};
use crate::{Ended, RINGBENCH, clean, ringrun, run};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/run")
}

/// Writes a program that is a shell script.
fn put(dir: &TempDir, name: &str, script: &str) {
    let program = dir.path().join(name);
    let _ = fs::remove_file(&program);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder with ringbench, ringrun, and `script` for the program of tests.
fn programs(script: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    symlink(RINGBENCH, dir.path().join("ringbench")).unwrap();
    symlink(ringrun(), dir.path().join("ringrun")).unwrap();
    put(&dir, "test-process", script);
    dir
}

/// Runs tests/gpu/run, and gives its exit status and output.
fn gpu_run(libraries: &Path, dir: &TempDir, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = clean(Command::new("bash"), "");
    command.env_remove("RINGREDUCE_TIMEOUT").env("LD_LIBRARY_PATH", libraries);
    command.arg(script()).args(flags).arg(dir.path()).arg(dir.path().join("out"));
    let Ended { code, out, err } = run(command);
    assert_eq!(err, "", "{out}");
    (code, out)
}

/// The table at the end: each part with its result.
fn summary(said: &str) -> Vec<(&str, &str)> {
    let (_, table) = said.split_once("\n== summary: ").unwrap();
    let lines = table.lines().skip(1);
    lines
        .map(|line| (line[..44].trim_end(), line[45..].rsplit_once(' ').unwrap().0.trim()))
        .collect()
}

fn result<'a>(summary: &[(&str, &'a str)], part: &str) -> &'a str {
    let found = summary.iter().find(|(name, _)| *name == part);
    found.unwrap_or_else(|| panic!("no {part}: {summary:?}")).1
}

/// A program of tests with these bodies.
const BODIES: &str = "
    if [ $# = 0 ]; then
        printf 'device::%s\\n' a::b body::threads graphs::body::replay body::killed_rank \
            body::skipped body::without_memory
        exit
    fi
    [ $CUDA_DEVICE_MAX_CONNECTIONS = 32 ] || exit 7
    [ $1 != device::body::skipped ] || echo 'SKIP body::skipped: needs two devices'
    [ $1 != device::body::without_memory ]";

#[test]
fn all_parts_run_on_the_stand_in() {
    let dir = programs(BODIES);
    let (code, said) = gpu_run(&standin(), &dir, &["--quick", "--only", "facts|device|band|ncu"]);
    assert_eq!(code, Some(0), "{said}");
    let all = summary(&said);
    let tables = ["threads n=1", "threads n=2", "alloc n=2", "processes n=2", "staged n=2"];
    let tables = tables.map(|kind| format!("bandwidth {kind} float short"));
    let named = ["body::threads", "graphs::body::replay", "body::killed_rank"];
    let bodies = named.map(|body| format!("device {body}"));
    let others = ["facts".into(), "bandwidth alloc n=2 bfloat16 short".into()];
    for part in tables.into_iter().chain(bodies).chain(others) {
        assert_eq!(result(&all, &part), "ok", "{said}");
    }
    assert!(result(&all, "device body::skipped").ends_with("needs two devices"), "{said}");
    let trouble = result(&all, "device body::without_memory");
    assert_eq!(trouble, "SKIP: needs settings of the stand-in");
    assert_eq!(result(&all, "kernels"), "SKIP: not asked for");
    assert!(all.iter().all(|(name, _)| *name != "device a::b"), "{said}");
    let rows = said.lines().filter(|line| line.starts_with("processes n=2 float "));
    let figures: Vec<_> = rows.flat_map(|row| row.split_whitespace().skip(3)).collect();
    assert_eq!(figures.len(), 6, "{said}");
    for figure in figures {
        assert!(figure.parse::<f64>().is_ok_and(|figure| figure >= 0.0), "{figure}: {said}");
    }
    for file in ["bandwidth-threads-2-float-short.json", "facts.log"] {
        assert!(dir.path().join("out").join(file).is_file(), "{file}");
    }
}

#[test]
fn without_a_driver_everything_is_skipped() {
    let libraries = no_driver();
    let (code, said) = gpu_run(libraries.path(), &programs(BODIES), &[]);
    assert_eq!(code, Some(0), "{said}");
    let all = summary(&said);
    assert!(all.len() > 30 && all.iter().all(|(_, result)| result.starts_with("SKIP: ")), "{said}");
    assert!(result(&all, "facts").starts_with("SKIP: there is no CUDA driver"), "{said}");
    assert_eq!(result(&all, "ncu"), "SKIP: no device");
}

/// The other parts tell most about a machine on which calls fail.
#[test]
fn a_call_that_fails_keeps_no_part_from_running() {
    let dir = programs("[ $# != 0 ] || echo device::body::a");
    put(&dir, "cuda_facts", "echo 2 facts, 0 failed");
    put(&dir, "ringbench", "echo a wrong result; exit 5");
    let (code, said) = gpu_run(&standin(), &dir, &["--only", "driver|facts|body"]);
    assert_eq!(code, Some(1), "{said}");
    let all = summary(&said);
    let first = [("driver", "ok"), ("facts", "FAILED: status 5"), ("device body::a", "ok")];
    assert_eq!(all[..3], first, "{said}");
}

#[test]
fn a_part_that_fails_is_shown_with_its_log() {
    let script = "[ $# = 0 ] && echo device::body::a || { echo it is wrong; exit 3; }";
    let (code, said) = gpu_run(&standin(), &programs(script), &["--only", "facts|body"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\n    it is wrong\n"), "{said}");
    let all = summary(&said);
    assert_eq!(result(&all, "device body::a"), "FAILED: status 3");
}

#[test]
fn a_wrong_command_line_is_status_2() {
    for flags in [&["--fast"][..], &["a", "b", "c"]] {
        let mut command = Command::new("bash");
        command.arg(script()).args(flags);
        let ended = run(command);
        assert!(ended.code == Some(2) && ended.err.starts_with("usage: "), "{flags:?}");
    }
}
