//! ringbench as its user meets it: one rank alone, threads, and processes that it launches itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail as the test does")]

mod command;
mod files;
#[cfg(feature = "cuda")]
mod gpu_run;
#[cfg(feature = "cuda")]
mod on_devices;
mod peers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const RINGBENCH: &str = env!("CARGO_BIN_EXE_ringbench");

fn ringbench(line: &str) -> Command {
    clean(Command::new(RINGBENCH), line)
}

/// The launcher. It is of another package, so cargo builds it beside ours only if it is told to.
fn ringrun() -> PathBuf {
    let path = Path::new(RINGBENCH).with_file_name("ringrun");
    assert!(path.exists(), "{} is not built: cargo build -p ringrun", path.display());
    path
}

/// Removes the variables of the launcher that may run these tests, and sets a timeout for ranks.
fn clean(mut command: Command, line: &str) -> Command {
    let is_own = |name: &str| ["RINGREDUCE_", "SLURM_"].iter().any(|own| name.starts_with(own));
    for (name, _) in std::env::vars().filter(|(name, _)| is_own(name)) {
        command.env_remove(name);
    }
    command.env("RINGREDUCE_TIMEOUT", "60").args(line.split_whitespace());
    command
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// The lines of the table with their cells.
    fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.out.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }
}

fn run(mut command: Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// The rows of a run without any error.
fn rows(command: Command) -> Vec<Vec<String>> {
    let name = format!("{command:?}");
    let ended = run(command);
    let Ended { code, out, err } = &ended;
    assert_eq!(*code, Some(0), "{name}\n{out}{err}");
    assert_eq!(out.matches("# Collective test starting").count(), 1, "{name}\n{out}");
    assert!(out.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "{out}");
    ended.rows()
}

/// A folder for the files of a run.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command with flags for both files.
    fn ask(&self, mut command: Command) -> Command {
        command.arg("--json").arg(self.path("out.json")).arg("--html").arg(self.path("out.html"));
        command
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("out.json")).unwrap()).unwrap()
    }

    fn page(&self) -> String {
        fs::read_to_string(self.path("out.html")).unwrap()
    }
}

#[test]
fn one_rank_alone_prints_the_table() {
    let rows = rows(ringbench("all_reduce --ranks 1 -b 8 -e 1K -f 2 -n 3 -w 1"));
    assert_eq!(rows.len(), 8);
    for (i, row) in rows.iter().enumerate() {
        let size = 8 << i;
        assert_eq!(row[..2], [size.to_string(), (size / 4).to_string()]);
        assert_eq!(row[2..5], ["float", "sum", "-1"]);
        assert_eq!(row.len(), 19);
        assert_eq!([&row[8], &row[12]], ["0", "0"]);
        let times: Vec<f64> = row[13..17].iter().map(|cell| cell.parse().unwrap()).collect();
        let [min, median, mean, p99] = times[..] else { panic!("{times:?}") };
        assert!(min <= median && median <= p99 && min <= mean, "{times:?}");
        assert_eq!(row[9], row[15], "time is the mean of the same calls");
    }
}

#[test]
fn unchecked_results_are_not_counted_as_right_or_wrong() {
    let rows = rows(ringbench("broadcast_perf -b 8 -e 8 -n 1 -c 0 --ranks 1"));
    assert_eq!([&rows[0][8], &rows[0][12]], ["N/A", "N/A"]);
    assert_eq!(rows[0][3..5], ["none", "0"]);
}

#[test]
fn threads_get_every_collective_right() {
    if !harness::share::makes_test(3) {
        return;
    }
    for (ranks, line) in [
        (2, "all_reduce -b 1 -e 40K -f 9 -d all -o all"),
        (4, "reduce_scatter -b 1 -e 40K -f 9 -d all -o all"),
        (3, "reduce_scatter -b 1 -e 40K -f 9 -d all -u 1"),
        (4, "all_gather -b 1 -e 40K -f 9 -d all"),
        (3, "broadcast -b 1 -e 40K -f 9 -d all -r 2"),
        (4, "reduce -b 1 -e 40K -f 9 -d all -o all -r 3"),
        (3, "all_to_all -b 1 -e 40K -f 9 -d all"),
        (3, "scan -b 1 -e 40K -f 9 -d all -o all"),
        (3, "exscan -b 1 -e 40K -f 9 -d all -o all"),
        (2, "scan -b 1 -e 40K -f 9 -u 1"),
        (4, "all_reduce --algorithm recursive_doubling -b 1 -e 40K -f 9 -d all"),
        (4, "all_reduce -b 4M -e 4M --refill -d bfloat16 -o avg"),
        (2, "all_reduce -b 1 -e 40K -f 9 -d all --memory alloc"),
        (3, "all_gather -b 1 -e 40K -f 9 -u 1 --memory register"),
    ] {
        let all = rows(ringbench(&format!("{line} -n 2 -w 1 -c 2 --threads --ranks {ranks}")));
        assert!(all.iter().all(|row| row[8] == "0" && row[12] == "0"), "{line}");
    }
    for line in ["gather -r 2", "scatter -r 1", "send_recv"] {
        let line = format!("{line} -b 1 -e 40K -f 9 -d all -n 2 -w 1 -c 2 --threads --ranks 3");
        for row in rows(ringbench(&line)) {
            assert_eq!([&row[8], &row[9], &row[12]], ["0", "N/A", "N/A"], "{line}");
            assert_ne!(row[14], "0.000", "{line}");
        }
    }
    let rows = rows(ringbench("barrier --threads --ranks 4 -n 10"));
    assert_eq!((rows.len(), rows[0][5].as_str(), rows[0][12].as_str()), (1, "N/A", "0"));
}
