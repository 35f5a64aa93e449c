//! The script tests/gpu/run for machines with a GPU, here on the stand-in for the driver, without a
//! driver, with parts that fail or hang, and ended in the middle.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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

/// A folder with the script, ringbench, ringrun, and `tests` for the program of tests.
fn programs(tests: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    symlink(script(), dir.path().join("run")).unwrap();
    symlink(RINGBENCH, dir.path().join("ringbench")).unwrap();
    symlink(ringrun(), dir.path().join("ringrun")).unwrap();
    put(&dir, "test-process", tests);
    put(&dir, "cuda_facts", "echo '  a fact of' $1");
    put(&dir, "bench_cuda", "echo 'f32_sum  2  1  66  1.5  2900.1  98.5%'");
    dir
}

/// The script with these words, and its folder `out`.
fn command(libraries: &Path, dir: &TempDir, words: &[&str]) -> Command {
    let mut command = clean(Command::new(dir.path().join("run")), "");
    command.env_remove("RINGREDUCE_TIMEOUT").env("LD_LIBRARY_PATH", libraries);
    command.args(words).arg(dir.path().join("out"));
    command
}

fn report(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join("out/report.txt")).unwrap_or_default()
}

/// Runs the script, and gives its exit status and output, which is the report too.
fn gpu_run(libraries: &Path, dir: &TempDir, words: &[&str]) -> (Option<i32>, String) {
    let Ended { code, out, err } = run(command(libraries, dir, words));
    assert_eq!(err, "", "{out}");
    assert!(report(dir).ends_with(&out), "{out}");
    (code, out)
}

/// The result of a part: the rest of its line.
fn result<'a>(said: &'a str, part: &str) -> &'a str {
    let rest = said.lines().find_map(|line| line.strip_prefix(part));
    let rest = rest.filter(|rest| rest.starts_with(' '));
    rest.unwrap_or_else(|| panic!("no {part}: {said}")).trim()
}

fn is_ok(said: &str, part: &str) -> bool {
    result(said, part).starts_with("ok ")
}

/// The names of the files of an archive.
fn archived(dir: &TempDir, archive: &str) -> String {
    let mut command = Command::new("tar");
    command.arg("-tf").arg(dir.path().join("out").join(archive));
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    ended.out
}

/// Waits until the report has this line.
fn reports(dir: &TempDir, line: &str) {
    let end = Instant::now() + Duration::from_secs(100);
    while !report(dir).contains(line) {
        assert!(Instant::now() < end, "no {line}: {}", report(dir));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program of tests with these functions.
const TESTS: &str = "
    if [ $# = 0 ]; then
        printf 'device::%s\\n' a::b late::body::last body::threads graphs::body::replay \
            faults::body::skipped
        exit
    fi
    [ $CUDA_DEVICE_MAX_CONNECTIONS = 32 ] && [ $TEST_OWN_DRIVER = 1 ] || exit 7
    [ $1 != device::faults::body::skipped ] || echo 'SKIP faults: needs two devices'";

#[test]
fn facts_come_with_kernels_and_bandwidth() {
    if !harness::share::makes_test(3) {
        return;
    }
    let dir = programs(TESTS);
    let (code, said) = gpu_run(&standin(), &dir, &["--quick", "facts"]);
    assert_eq!(code, Some(0), "{said}");
    let kinds = ["threads", "alloc", "processes", "staged"];
    let bandwidth = kinds.map(|kind| format!("bandwidth {kind} n=2 float short"));
    let others = ["device", "cuda_kernels::body::on_this_machine", "driver queue", "kernels"];
    for part in bandwidth.iter().map(String::as_str).chain(others) {
        assert!(is_ok(&said, part), "{part}: {said}");
    }
    let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text}: {said}"));
    assert!(place("a fact of attrs") < place("\ncuda_kernels::body"), "{said}");
    assert!(place("\ncuda_kernels::body") < place("a fact of flags"), "{said}");
    assert!(said.contains("f32_sum            2 -> 1: 2900.1 GB/s, 98.5% of a copy"), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("busbw")).count(), 8, "{said}");
    let files = archived(&dir, "facts.tar");
    for file in ["device.log", "kernels.log", "bandwidth-alloc-2-float-short.json"] {
        assert!(files.contains(file), "{files}");
    }
    // Another run into the same folder adds to the report, and overwrites no archive.
    gpu_run(&standin(), &dir, &["--quick", "--only", "attrs", "facts"]);
    assert!(report(&dir).starts_with(&said), "{}", report(&dir));
    assert_eq!(archived(&dir, "facts.tar"), files);
    let mut left: Vec<_> = fs::read_dir(dir.path().join("out")).unwrap().collect();
    left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
    let left: Vec<_> = left.into_iter().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["facts.2.tar", "facts.tar", "report.txt"]);
}

#[test]
fn tests_run_in_processes_of_their_own() {
    let dir = programs(TESTS);
    let (code, said) = gpu_run(&standin(), &dir, &["--quick", "--only", "device|hosts", "tests"]);
    assert_eq!(code, Some(0), "{said}");
    let [first, then, last] =
        ["device::body::threads", "device::graphs::body::replay", "device::late::body::last"];
    for part in [first, then, last] {
        assert!(is_ok(&said, part), "{said}");
    }
    // The basic tests come first.
    assert!(said.find(first) < said.find(last) && said.find(then) < said.find(last), "{said}");
    let skipped = "device::faults::body::skipped";
    assert!(result(&said, skipped).starts_with("SKIP: needs two devices"), "{said}");
    assert!(said.contains(&format!("not run: {skipped}: needs two devices\n")), "{said}");
    assert!(!said.contains("device::a::b"), "{said}");
    let hosts = result(&said, "two hosts");
    assert!(hosts.starts_with("ok ") || hosts.starts_with("SKIP: needs root, setpriv"), "{said}");
}

#[test]
fn bandwidth_is_measured_for_several_numbers_of_ranks() {
    let dir = programs(TESTS);
    let words = ["--quick", "--only", "n=1 bfloat|alloc n=4 float|devices|ncu", "bandwidth"];
    let (code, said) = gpu_run(&standin(), &dir, &words);
    assert_eq!(code, Some(0), "{said}");
    for part in ["bandwidth threads n=1 bfloat16 short", "bandwidth alloc n=4 float short"] {
        assert!(is_ok(&said, part), "{said}");
    }
    for part in ["bandwidth of several devices", "ncu"] {
        assert!(result(&said, part).starts_with("SKIP: "), "{said}");
    }
}

#[test]
fn without_a_driver_everything_is_skipped() {
    let (libraries, dir) = (no_driver(), programs(TESTS));
    for stage in ["facts", "tests", "bandwidth"] {
        let (code, said) = gpu_run(libraries.path(), &dir, &["--quick", stage]);
        assert_eq!(code, Some(0), "{said}");
        assert!(result(&said, "device").starts_with("SKIP: there is no CUDA driver"), "{said}");
        assert!(said.contains(" s: 0 ok, 0 failed, "), "{said}");
    }
}

/// The other parts tell most about a machine on which calls fail.
#[test]
fn a_part_that_fails_keeps_no_other_from_running() {
    let dir = programs("[ $# = 0 ] && echo device::body::a || { echo it is wrong; exit 3; }");
    put(&dir, "ringbench", "echo a wrong result; exit 5");
    let (code, said) = gpu_run(&standin(), &dir, &["--quick", "--only", "attrs|body", "facts"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(result(&said, "device").starts_with("FAILED: status 5"), "{said}");
    assert!(
        said.contains("\n    a wrong result\n") && said.contains("\n    it is wrong\n"),
        "{said}"
    );
    assert!(is_ok(&said, "driver attrs"), "{said}");
    assert!(said.contains("\nfailed: cuda_kernels::body::on_this_machine: FAILED: status 3\n"));
}

/// A part that hangs ends with all its processes; parts for which there is no time are named.
#[test]
fn a_part_that_hangs_is_ended_with_its_processes() {
    let dir = programs(
        "[ $# != 0 ] || { echo device::body::a; echo device::late::body::b; exit; }
        trap '' TERM; sleep 1000 & echo $! >$0.pid; wait",
    );
    put(&dir, "ringbench", "");
    let (_, said) = gpu_run(&standin(), &dir, &["--quick", "--seconds", "10", "tests"]);
    assert!(result(&said, "device::body::a").starts_with("SKIP: out of time, after"), "{said}");
    assert!(said.contains("not run: device::late::body::b: out of time\n"), "{said}");
    let pid = fs::read_to_string(dir.path().join("test-process.pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap());
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

/// The report has all that was known, whatever ends the run; SIGTERM leaves time for the archive.
#[test]
fn a_run_that_is_ended_loses_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let dir = programs(TESTS);
        put(&dir, "cuda_facts", "echo \"  a fact of $1\"; [ $1 = attrs ] || exec sleep 20");
        let mut command = command(&standin(), &dir, &["--quick", "facts"]);
        let mut run = command.stdout(Stdio::null()).spawn().unwrap();
        reports(&dir, "a fact of flags");
        kill(Pid::from_raw(run.id() as i32), signal).unwrap();
        let status = run.wait().unwrap();
        let said = report(&dir);
        assert!(said.contains("a fact of attrs") && is_ok(&said, "driver attrs"), "{said}");
        assert!(archived(&dir, "facts.tar").contains("driver_attrs.log"), "{said}");
        if signal == Signal::SIGTERM {
            assert_eq!(status.code(), Some(143), "{said}");
            assert!(said.contains("\nfailed: driver flags: FAILED: ended by SIGTERM\n"), "{said}");
            assert!(archived(&dir, "facts.tar").contains("driver_flags.log"), "{said}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_status_2() {
    for words in [&["--fast", "facts", "out"][..], &["facts"], &["all", "out"], &["--only"]] {
        let mut command = Command::new("bash");
        command.arg(script()).args(words);
        let ended = run(command);
        assert!(ended.code == Some(2) && ended.err.starts_with("usage: "), "{words:?}");
    }
}
