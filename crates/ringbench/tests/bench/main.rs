//! ringbench as its user meets it: one rank alone, threads, and processes that it launches itself.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail as the test does")]

mod command;
mod files;

use std::path::Path;
use std::process::{Command, Output};

fn ringbench(line: &str) -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_ringbench")), line)
}

/// The launcher. It is of another package, so cargo builds it beside ours only if it is told to.
fn ringrun(line: &str) -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_ringbench")).with_file_name("ringrun");
    assert!(path.exists(), "{} is not built: cargo build -p ringrun", path.display());
    clean(Command::new(path), line)
}

/// Nothing of the launcher that may run these tests, and no wait that outlasts them.
fn clean(mut command: Command, line: &str) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RINGREDUCE_")) {
        command.env_remove(name);
    }
    command.env("RINGREDUCE_TIMEOUT", "60").args(line.split_whitespace());
    command
}

struct Seen {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(mut command: Command) -> Seen {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Seen { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// The cells of every row; all is right with the run.
fn rows(command: Command) -> Vec<Vec<String>> {
    let name = format!("{command:?}");
    let Seen { code, out, err } = run(command);
    assert_eq!(code, Some(0), "{name}\n{out}{err}");
    assert_eq!(out.matches("# Collective test starting").count(), 1, "{name}\n{out}");
    assert!(out.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "{out}");
    let rows = out.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn one_rank_alone_prints_the_table() {
    let rows = rows(ringbench("all_reduce --ranks 1 -b 8 -e 1K -f 2 -n 3 -w 1"));
    assert_eq!(rows.len(), 8);
    for (i, row) in rows.iter().enumerate() {
        let size = 8 << i;
        let head = [size.to_string(), (size / 4).to_string()];
        assert_eq!(row[..2], head);
        assert_eq!(row[2..5], ["float", "sum", "-1"]);
        assert_eq!(row.len(), 17);
        assert_eq!([&row[8], &row[12]], ["0", "0"]);
        let times: Vec<f64> = row[13..].iter().map(|cell| cell.parse().unwrap()).collect();
        let [min, median, mean, p99] = times[..] else { panic!("{times:?}") };
        assert!(min <= median && median <= p99 && min <= mean, "{times:?}");
        assert_eq!(row[9], row[15], "time is the mean of the same calls");
    }
}

#[test]
fn unchecked_is_not_right_or_wrong() {
    let rows = rows(ringbench("broadcast_perf -b 8 -e 8 -n 1 -c 0 --ranks 1"));
    assert_eq!([&rows[0][8], &rows[0][12]], ["N/A", "N/A"]);
    assert_eq!(rows[0][3..5], ["none", "0"]);
}

#[test]
fn threads_get_everything_right() {
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
