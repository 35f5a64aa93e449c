//! ringbench as its user meets it: one rank alone, threads, and processes that it launches itself.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail as the test does")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

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
    let rows = rows(ringbench("all_reduce -b 8 -e 1K -f 2 -n 3 -w 1"));
    assert_eq!(rows.len(), 8);
    for (i, row) in rows.iter().enumerate() {
        let size = 8 << i;
        let head = [size.to_string(), (size / 4).to_string()];
        assert_eq!(row[..2], head);
        assert_eq!(row[2..5], ["float", "sum", "-1"]);
        assert_eq!(row.len(), 16);
        assert_eq!([&row[8], &row[12]], ["0", "0"]);
        let times: Vec<f64> = row[13..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert!(times[0] <= times[1] && times[1] <= times[2], "{times:?}");
    }
}

#[test]
fn one_rank_alone_hints_at_more() {
    let seen = run(ringbench("barrier -n 1"));
    assert_eq!((seen.code, seen.err.contains("--ranks N")), (Some(0), true), "{}", seen.err);
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    for line in ["all_reduce -e 64 -n 1", "all_reduce -e 64 -n 1 --ranks 2", "--help", "all_sum"] {
        for (out, err) in [(true, true), (true, false), (false, true)] {
            let closed = || std::process::Stdio::from(std::io::pipe().unwrap().1);
            let mut command = ringbench(line);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            if out {
                command.stdout(closed());
            }
            if err {
                command.stderr(closed());
            }
            let Output { status, stderr, .. } = command.output().unwrap();
            let said = String::from_utf8_lossy(&stderr);
            assert!(![None, Some(101)].contains(&status.code()), "{line}: {status} {said}");
            assert!(!said.contains("panicked"), "{line}: {said}");
            if out && line.ends_with("-n 1") {
                assert_eq!(status.code(), Some(141), "{line}");
                assert!(!said.contains("standard output"), "{line}: {said}");
            }
        }
    }
}

#[test]
fn unchecked_is_not_right_or_wrong() {
    let rows = rows(ringbench("broadcast_perf -b 8 -e 8 -n 1 -c 0"));
    assert_eq!([&rows[0][8], &rows[0][12]], ["N/A", "N/A"]);
    assert_eq!(rows[0][3..5], ["none", "0"]);
}

#[test]
fn iterations_are_found_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(dir.path(), "all_gather -b 64 -e 64");
    assert!(report["rows"][0]["iterations"].as_u64().unwrap() >= 5);
}

/// Runs with both files asked for; the page must be whole, the JSON comes back.
fn report(dir: &Path, line: &str) -> Value {
    let (json, html) = (dir.join("out.json"), dir.join("out.html"));
    let mut command = ringbench(line);
    command.arg("--json").arg(&json).arg("--html").arg(&html);
    rows(command);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for outside in ["http:", "https:", "src=", "<script", "<link", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

fn holds_all_figures(report: &Value, ranks: usize) {
    assert_eq!(report["ranks"], ranks);
    assert_eq!(report["seats"].as_array().unwrap().len(), ranks);
    assert!(report["command"].as_str().unwrap().starts_with("ringbench "));
    assert!(report["machine"]["cpus"].as_u64().unwrap() > 0);
    for probe in ["before", "after"] {
        let probe = &report["probe"][probe];
        assert!(probe.is_null() || probe["hand_over_ns"].as_f64().unwrap() > 0.0, "{probe}");
    }
    for row in report["rows"].as_array().unwrap() {
        for half in ["out_of_place", "in_place"] {
            assert!(row[half]["time_us"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row[half]["busbw"].is_f64() && row[half]["algbw"].is_f64());
            assert_eq!(row[half]["wrong"], 0);
        }
        for figure in ["min_us", "p50_us", "p99_us"] {
            assert!(row["in_place"][figure].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn reports_hold_all_figures() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(dir.path(), "all_reduce -b 8 -e 64 -n 2 -d half -o max --refill");
    holds_all_figures(&report, 1);
    assert_eq!(report["rows"][3]["count"], 32);
    assert_eq!(
        (&report["rows"][0]["type"], &report["rows"][0]["redop"]),
        (&"half".into(), &"max".into())
    );
    assert_eq!(report["refill"], true);
}

#[test]
fn nonsense_is_status_2_and_says_why() {
    for (line, named) in [
        ("all_sum", "gather, scatter, send_recv"),
        ("all_reduce -b 12Q", "12Q"),
        ("all_reduce -b 2M -e 1M", "-e/--maxbytes (1048576)"),
        ("all_reduce -f 1", "--stepfactor"),
        ("all_reduce -d float128", "float128"),
        ("all_reduce -o xor", "xor"),
        ("all_reduce -G 1", "-G/--cudagraph 1: only 0 works"),
        ("broadcast -r 1", "--root 1"),
        ("all_reduce --algorithm rings", "unknown algorithm `rings`: one of ring, all_pairs"),
        ("all_reduce --regret", "--regret: one rank alone"),
        ("all_reduce --json /nowhere/x.json", "--json /nowhere/x.json"),
        ("all_reduce --ranks 2 --html /nowhere/x.html", "--html /nowhere/x.html"),
        ("all_reduce --json /", "--json /"),
    ] {
        let seen = run(ringbench(line));
        assert_eq!(seen.code, Some(2), "{line}: {}{}", seen.out, seen.err);
        assert!(seen.err.contains(named), "{line}: {}", seen.err);
        assert_eq!(seen.out, "", "{line}");
    }
}

#[test]
fn buffers_larger_than_memory_are_refused() {
    let seen = run(ringbench("all_reduce -b 8000000000G -e 8000000000G"));
    assert_eq!(seen.code, Some(1));
    assert!(seen.err.contains("lower -e"), "{}", seen.err);
}

#[test]
fn threads_get_everything_right() {
    for (ranks, line) in [
        (2, "all_reduce -b 1 -e 40K -f 9 -d all -o all"),
        (4, "reduce_scatter -b 1 -e 40K -f 9 -d all -o all"),
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

#[test]
fn launches_itself_as_processes() {
    for (ranks, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let dir = tempfile::tempdir().unwrap();
        let memory = if ranks == 2 { "plain" } else { "alloc" };
        let line = format!("all_reduce -b 8 -e 1M -f 16 -n 3 --ranks {ranks} --memory {memory}");
        let report = report(dir.path(), &format!("{line} --transport {transport}"));
        assert_eq!(report["memory"], memory);
        holds_all_figures(&report, ranks);
        assert_eq!(report["transport"], transport);
        let mut pids: Vec<u64> = Vec::new();
        for seat in report["seats"].as_array().unwrap() {
            pids.push(seat["pid"].as_u64().unwrap());
        }
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len(), ranks);
    }
}

#[test]
fn every_collective_runs_among_processes() {
    for (line, busbw) in [
        ("reduce_scatter", 0.75),
        ("all_gather", 0.75),
        ("broadcast -r 1", 1.0),
        ("reduce -r 2", 1.0),
        ("gather_perf -r 3", 0.75),
        ("scatter -r 3", 0.75),
        ("alltoall_perf", 0.75),
        ("scan -o min", 1.0),
        ("exscan -o max", 1.0),
        ("sendrecv_perf", 1.0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let report = report(dir.path(), &format!("{line} -b 4K -e 64K -f 16 -n 2 -c 1 --ranks 4"));
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "{line}");
        let rooted = line.split_once("-r ").map_or(-1, |(_, root)| root.parse().unwrap());
        for row in rows {
            assert_eq!(row["root"], rooted, "{line}");
            for half in
                [&row["out_of_place"], &row["in_place"]].into_iter().filter(|h| !h.is_null())
            {
                assert_eq!(half["wrong"], 0, "{line}");
                let [alg, bus] = ["algbw", "busbw"].map(|name| half[name].as_f64().unwrap());
                assert!((alg * busbw - bus).abs() <= 1e-9 * alg, "{line}: {half}");
            }
        }
    }
}

#[test]
fn algorithms_are_asked_for_by_name() {
    for (line, runs) in [
        ("all_reduce --algorithm all_pairs", true),
        ("all_reduce --algorithm two_shot", true),
        ("barrier --algorithm ring", true),
        ("all_gather --algorithm bruck", true),
        ("scan --algorithm two_shot", false),
    ] {
        let seen = run(ringbench(&format!("{line} -e 64 -n 2 --threads --ranks 4")));
        assert_eq!(seen.code, Some(i32::from(!runs)), "{line}: {}{}", seen.out, seen.err);
        let name = line.split(' ').next_back().unwrap();
        assert!(seen.out.contains(&format!(" algorithm: {name}\n")), "{line}: {}", seen.out);
        assert!(runs || seen.err.contains("algorithm"), "{line}: {}", seen.err);
    }
}

#[test]
fn regret_compares_the_choice_with_every_algorithm() {
    for (line, least) in [
        ("all_reduce --ranks 4", 4),
        ("broadcast -r 3 --ranks 4 --threads", 2),
        ("gather --ranks 3 --threads --refill", 1),
        ("barrier --ranks 4 --threads", 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [json, html] = ["out.json", "out.html"].map(|name| dir.path().join(name));
        let mut command = ringbench(&format!("{line} --regret -b 8 -e 64K -f 8192 -n 3 -w 1"));
        command.arg("--json").arg(&json).arg("--html").arg(&html);
        let seen = run(command);
        assert_eq!(seen.code, Some(0), "{line}: {}{}", seen.out, seen.err);
        assert!(seen.out.contains("# Regret               : median "), "{line}: {}", seen.out);
        let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        let page = std::fs::read_to_string(html).unwrap();
        let rows = report["regret"]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), if line.starts_with("barrier") { 1 } else { 2 }, "{line}");
        for row in rows {
            let all = row["algorithms"].as_array().unwrap();
            assert!(all.len() >= least && all.contains(&row["best"]), "{line}: {row}");
            assert!(all.contains(&row["chosen"]), "{line}: {row}");
            let time = |of: &Value| of["time_us"].as_f64().unwrap();
            let best = all.iter().map(time).fold(f64::INFINITY, f64::min);
            assert_eq!(time(&row["best"]), best, "{line}: {row}");
            let regret = (time(&row["chosen"]) / best - 1.0) * 100.0;
            assert!((row["regret_percent"].as_f64().unwrap() - regret).abs() < 1e-6, "{row}");
            assert_eq!(row["wrong"], 0, "{line}: {row}");
            let drawn = all.iter().all(|of| page.contains(of["algorithm"].as_str().unwrap()));
            assert!(drawn || row["size"] == 0, "{line}");
        }
    }
}

#[test]
fn the_transport_is_the_one_used() {
    for (asked, used) in [
        ("--ranks 2", "shm"),
        ("--ranks 3 --transport auto", "shm"),
        ("--ranks 2 --transport tcp", "tcp"),
        ("--ranks 2 --threads", "threads"),
        ("", "none"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let report = report(dir.path(), &format!("all_reduce -b 8 -e 8 -n 1 {asked}"));
        assert_eq!(report["transport"], used, "{asked}");
        let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
        assert!(page.contains(&format!("transport {used},")), "{asked}");
    }
    let tcp = run(ringbench("barrier -n 1 --ranks 2 --transport tcp")).out;
    assert!(tcp.contains(" transport: tcp "), "{tcp}");
}

#[test]
fn is_a_rank_under_ringrun() {
    let bench = env!("CARGO_BIN_EXE_ringbench");
    let rows = rows(ringrun(&format!("-n 3 {bench} reduce_scatter -b 96 -e 96 -n 2 -d int8")));
    assert_eq!(rows[0][..5], ["96", "32", "int8", "sum", "-1"]);
    let seen = run(ringrun(&format!("-n 2 {bench} all_reduce --ranks 3")));
    assert!(seen.err.contains("the launcher started 2 ranks"), "{}", seen.err);
    assert_ne!(seen.code, Some(0));
}
