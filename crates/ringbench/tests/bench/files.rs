//! The files of a run, and the comparison with an earlier run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Files, RINGBENCH, clean, ringbench, rows, run};

#[test]
fn a_benchmark_that_is_killed_leaves_what_it_has_measured() {
    let files = Files::new();
    let mut command = ringbench("all_reduce -b 8 -e 64K -i 8 -n 3 --ranks 1 --json");
    let mut running = command.arg(files.path("out.json")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    let measured: Vec<_> = lines.by_ref().filter(|line| !line.starts_with('#')).take(4).collect();
    running.kill().unwrap();
    running.wait().unwrap();
    let report = files.report();
    let rows = report["rows"].as_array().unwrap();
    // The row that was printed last may not be in the file yet.
    assert!(rows.len() + 1 >= measured.len(), "{} {}", rows.len(), measured.len());
    assert_eq!((&report["complete"], &rows[2]["size"]), (&false.into(), &24.into()));
}

/// A limit on the size of files stands for a full disk: of the last write a part succeeds.
#[test]
fn a_full_disk_leaves_the_rows_before_and_the_table_goes_on() {
    let files = Files::new();
    let words = "all_reduce -b 8 -e 256 -i 8 -n 1 --ranks 1 --json";
    let script = format!("trap '' XFSZ; ulimit -f 8; exec \"$0\" {words} \"$1\"");
    let mut command = clean(Command::new("bash"), "");
    command.arg("-c").arg(script).arg(RINGBENCH).arg(files.path("out.json"));
    let seen = run(command);
    assert_eq!(seen.code, Some(1), "{}{}", seen.out, seen.err);
    assert_eq!(seen.rows().len(), 32, "{}", seen.out);
    let said = seen.err;
    assert!(said.lines().count() == 1 && said.contains("keeps the rows before"), "{said}");
    let report = files.report();
    let written = report["rows"].as_array().unwrap().len();
    assert!((1..32).contains(&written) && report["complete"] == false, "{written}");
}

#[test]
fn a_run_is_compared_with_an_earlier_one() {
    let files = Files::new();
    let line = "all_reduce -b 8 -e 64 -n 5 --threads --ranks 2";
    let report = report(&files, line);
    let old = files.path("out.json");
    let compare = |line: &str| {
        let mut command = ringbench(line);
        command.arg("--compare").arg(&old).env("RINGREDUCE_DETERMINISTIC", "1");
        run(command)
    };
    let seen = compare(line);
    assert_eq!(seen.code, Some(0), "{}{}", seen.out, seen.err);
    let (_, table) = seen.out.split_once("# Compared with ").unwrap();
    let ratios = table.lines().filter(|line| line.contains(" B ")).count();
    assert_eq!(ratios, report["rows"].as_array().unwrap().len(), "{table}");
    assert!(table.contains(" within noise; old/new ") && !table.contains("differs: ranks"));
    assert!(table.contains("# differs: settings: none then, RINGREDUCE_DETERMINISTIC=1 now\n"));
    let other_format = std::fs::read_to_string(&old).unwrap().replace("format\": 2", "format\": 1");
    std::fs::write(&old, other_format).unwrap();
    for line in [line, "all_reduce -e 8 -n 1 --ranks 2"] {
        let seen = compare(line);
        assert_eq!((seen.code, seen.out.as_str()), (Some(2), ""), "{}", seen.err);
        assert_eq!(seen.err.lines().count(), 1, "{}", seen.err);
        assert!(seen.err.contains("its format is 1, this ringbench compares format 2"));
    }
}

/// Runs ringbench with both files, checks the page, and gives the report.
fn report(files: &Files, line: &str) -> Value {
    rows(files.ask(ringbench(line)));
    let page = files.page();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    files.report()
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
        for half in [&row["out_of_place"], &row["in_place"]] {
            assert!(half["time_us"].as_f64().unwrap() > 0.0, "{row}");
            assert!(half["busbw"].is_f64() && half["algbw"].is_f64());
            assert_eq!(half["wrong"], 0);
            let figure = |name: &str| half[name].as_f64().unwrap();
            assert!(figure("min_us") > 0.0 && figure("min_us") <= figure("p50_us"), "{row}");
            assert!(figure("min_us") <= figure("mean_us"), "{row}");
            assert!(figure("p50_us") <= figure("p99_us"), "{row}");
            assert_eq!(half["mean_us"], half["time_us"], "{row}");
        }
    }
}

#[test]
fn launches_itself_as_processes() {
    for (ranks, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        let memory = if ranks == 2 { "plain" } else { "alloc" };
        let line = format!("all_reduce -b 8 -e 1M -f 16 -n 3 --ranks {ranks} --memory {memory}");
        let report = report(&Files::new(), &format!("{line} --transport {transport}"));
        assert_eq!(report["memory"], memory);
        holds_all_figures(&report, ranks);
        assert_eq!(report["transport"], transport);
        let infos = report["seats"].as_array().unwrap().iter();
        let pids: BTreeSet<_> = infos.map(|info| info["pid"].as_u64().unwrap()).collect();
        assert_eq!(pids.len(), ranks);
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
        let files = Files::new();
        let line = format!("{line} --regret -b 8 -e 64K -f 8192 -n 3 -w 1");
        let seen = run(files.ask(ringbench(&line)));
        assert_eq!(seen.code, Some(0), "{line}: {}{}", seen.out, seen.err);
        assert!(seen.out.contains("# Regret               : median "), "{line}: {}", seen.out);
        let report = files.report();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), if line.starts_with("barrier") { 1 } else { 2 }, "{line}");
        for row in rows {
            let all = row["algorithms"].as_array().unwrap();
            assert!(all.len() >= least && all.contains(&row["best"]), "{line}: {row}");
            assert!(all.contains(&row["chosen"]), "{line}: {row}");
            assert_eq!(row["wrong"], 0, "{line}: {row}");
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
        ("--ranks 1", "none"),
    ] {
        let files = Files::new();
        let report = report(&files, &format!("all_reduce -b 8 -e 8 -n 1 {asked}"));
        assert_eq!(report["transport"], used, "{asked}");
        assert!(files.page().contains(&format!("transport {used},")), "{asked}");
    }
    let tcp = run(ringbench("barrier -n 1 --ranks 2 --transport tcp")).out;
    assert!(tcp.contains(" transport: tcp "), "{tcp}");
}
