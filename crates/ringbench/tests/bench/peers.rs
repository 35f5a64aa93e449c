//! The race with other libraries, benches/peers/run, without any of them: its command line, and its
//! report of a stored race. `ringbench limits`, which it asks about the machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Ended, Files, ringbench, rows, run};

fn has_python(test: &str) -> bool {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        let _ = writeln!(std::io::stderr(), "SKIP peers::{test}: there is no python3");
    }
    has_python
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/run")
}

/// None if there is no Python.
fn race(test: &str, files: &Files, line: &str) -> Option<Ended> {
    if !has_python(test) {
        return None;
    }
    let mut command = Command::new(script());
    command.args(line.split_whitespace()).arg("--folder").arg(files.path("peers"));
    Some(run(command))
}

#[test]
fn a_stored_race_is_reported() {
    let files = Files::new();
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/race.json");
    let (html, svg) = (files.path("race.html"), files.path("race.svg"));
    let flags = [("--from", &earlier), ("--html", &html), ("--svg", &svg), ("--beside", &earlier)];
    let line = flags.map(|(flag, path)| format!("{flag} {}", path.display())).join(" ");
    let Some(Ended { code, out, err }) = race("a_stored_race_is_reported", &files, &line) else {
        return;
    };
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    for part in [
        "all_reduce, 2 ranks, shared memory, CPUs near (50 ns)\n",
        "all_reduce, 2 ranks, shared memory, CPUs far (195 ns)\n",
        "  17.7        5.64      20.0     42.4   intelmpi   1.13  3.55  14.8   37 %",
        "\nmissing: gloo: ERROR: No matching distribution found",
        "\nfailed: oneccl: all_reduce, shm, 2 ranks: no end after 120 s (1 times)\n",
        "\nall_reduce, 2 ranks, shared memory: ratio by machine\n",
        "\n 256K  1.13  1.13\n",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    let page = std::fs::read_to_string(html).unwrap();
    let picture = std::fs::read_to_string(svg).unwrap();
    // Time, bandwidth, ratio and limit, near and far; ratios of two sizes on two kinds of memory.
    assert_eq!((page.matches("<svg").count(), picture.matches("<circle").count()), (8, 4));
    assert!(page.contains("<title>registered, 256K: 5.64</title>"), "{page}");
    for outside in ["http:", "https:", "src=", "@import", "<script", "<link", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for tag in ["div", "svg", "table", "tr", "td", "span", "main"] {
        let open = [format!("<{tag}>"), format!("<{tag} ")].map(|it| page.matches(&it).count());
        assert_eq!(open[0] + open[1], page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

/// A cell is lost if the interval of the rounds' ratios lies below 1, and not if they scatter.
#[test]
fn cells_that_are_lost_in_all_likelihood_are_named() {
    let test = "cells_that_are_lost_in_all_likelihood_are_named";
    let files = Files::new();
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/race.json");
    let mut stored: serde_json::Value =
        serde_json::from_slice(&std::fs::read(earlier).unwrap()).unwrap();
    // Three rounds, in which the larger call takes ten times as long, and the shorter one also 0.1.
    let first = stored["samples"].as_array().unwrap()[..8].to_vec();
    let factors = [[10.0, 10.0], [0.1, 10.0], [10.0, 10.5]];
    let rounds = factors.iter().enumerate().flat_map(|(round, factors)| {
        first.iter().cloned().map(move |mut sample| {
            sample["round"] = round.into();
            if sample["program"] == "ringreduce" {
                let factor = factors[usize::from(sample["bytes"] == 262_144)];
                sample["us"] = vec![sample["us"][0].as_f64().unwrap() * factor].into();
            }
            sample
        })
    });
    stored["samples"] = rounds.collect();
    let changed = files.path("race.json");
    std::fs::write(&changed, stored.to_string()).unwrap();
    let line = format!("--from {}", changed.display());
    let Some(Ended { code, out, err }) = race(test, &files, &line) else { return };
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    let lost: Vec<_> = out.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert_eq!(lost, ["lost: all_reduce, shm, 2 ranks, 256K: 0.11 (0.10 to 0.12)"], "{out}");
}

/// The documents' chart and tables are made of the races that lie beside them.
#[test]
fn the_documents_show_the_figures_of_their_races() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("benchmarks.md")).unwrap();
    let shown: Vec<_> = page.lines().collect();
    for name in ["race", "others"] {
        let files = Files::new();
        let samples = docs.join(format!("races/{name}.json"));
        let (svg, tables) = (files.path("race.svg"), files.path("race.md"));
        let flags = [("--from", &samples), ("--svg", &svg), ("--markdown", &tables)];
        let line = flags.map(|(flag, path)| format!("{flag} {}", path.display())).join(" ");
        let test = "the_documents_show_the_figures_of_their_races";
        let Some(Ended { code, err, .. }) = race(test, &files, &line) else { return };
        assert_eq!((code, &*err), (Some(0), ""));
        for row in std::fs::read_to_string(tables).unwrap().lines() {
            let is_row = row.starts_with('|') && !row.starts_with("| Bytes");
            assert!(!is_row || shown.contains(&row), "{name}: docs/benchmarks.md lacks {row}");
        }
        if name == "race" {
            let drawn = std::fs::read(docs.join("images/speed.svg")).unwrap();
            assert!(std::fs::read(svg).unwrap() == drawn, "docs/images/speed.svg is not of {name}");
        }
    }
}

#[test]
fn a_wrong_command_line_names_the_mistake() {
    let files = Files::new();
    for (line, status, named) in [
        ("--fast", 2, "--fast"),
        ("--shor", 2, "--shor"),
        ("--sizes 8,1X", 2, "'1X' is no size"),
        ("--ranks 2,0", 2, "0 is not above 0"),
        ("--rounds two", 2, "two"),
        ("--programs mvapich", 2, "'mvapich' is none of ringreduce, "),
        ("--transports ib", 2, "'ib' is none of shm, tcp"),
        ("--html /nowhere/race.html", 2, "/nowhere/race.html"),
        ("--from /nowhere.json", 1, "/nowhere.json"),
        ("--from /dev/null", 1, "/dev/null was not written by --json"),
        ("--beside /nowhere.json", 1, "/nowhere.json"),
    ] {
        let Some(seen) = race("a_wrong_command_line_names_the_mistake", &files, line) else {
            return;
        };
        assert_eq!(seen.code, Some(status), "{line}: {}", seen.err);
        assert!(seen.err.contains(named) && seen.out.is_empty(), "{line}: {}", seen.err);
    }
}

/// Of three programs the second one can't be installed: the third one is built all the same. `true`
/// is in the place of cargo, and a script that fails as pip does in that of Python.
const PREPARE: &str = r##"
import pathlib, sys
script, folder = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
run = {"__name__": "run"}
exec(pathlib.Path(script).read_text(), run)
run["programs"].ALL["ringreduce"] = run["programs"].Program(None, build="true")
sys.executable = folder + "/python3"
pathlib.Path(folder).mkdir()
python = pathlib.Path(sys.executable)
python.write_text("#!/bin/sh\necho ERROR: $0 finds no torch; echo bye; exit 1")
python.chmod(0o755)
words = ["--programs", "gloo,yardstick", "--folder", folder, f"--json={folder}.json", "--refill"]
print(run["command"](words))
print(run["prepare"](run["arguments"](words)))
"##;

#[test]
fn a_peer_that_cannot_be_installed_is_missing_and_no_path_is_told() {
    if !has_python("a_peer_that_cannot_be_installed_is_missing_and_no_path_is_told") {
        return;
    }
    let files = Files::new();
    let folder = files.path("peers");
    let mut command = Command::new("python3");
    command.args(["-c", PREPARE]).args([&script(), &folder]);
    let seen = run(command);
    assert_eq!((seen.code, &*seen.err), (Some(0), ""), "{}", seen.out);
    let lines = [
        "benches/peers/run --programs gloo,yardstick --refill",
        "{'gloo': 'ERROR: python3 finds no torch (all of it is in gloo.log)'}",
    ];
    assert_eq!(seen.out.lines().collect::<Vec<_>>(), lines);
    assert!(folder.join("bin/yardstick").exists());
}

#[test]
fn limits_are_measured_as_asked() {
    if !harness::share::makes_test(3) {
        return;
    }
    let files = Files::new();
    let mut command = ringbench("limits wake tcp --json");
    command.arg(files.path("out.json"));
    let seen = run(command);
    assert_eq!(seen.code, Some(0), "{}", seen.err);
    assert!(seen.out.contains(" CPUs\n") && seen.out.contains("loopback TCP"), "{}", seen.out);
    let limits = files.report();
    assert!(limits["tcp"][0]["both_ways"].as_f64().is_some_and(|rate| rate > 0.0), "{limits}");
    assert!(limits["tcp_one_way_us"].as_f64().is_some_and(|us| us > 0.0), "{limits}");
    let cpus = limits["cpus"].as_u64().unwrap();
    assert_eq!(limits["wake_us"].is_f64(), cpus > 1, "{limits}");
    assert!(limits["memory"] == serde_json::json!([]) && limits["hand_over_ns"].is_null());
    let calls = Files::new();
    rows(calls.ask(ringbench("all_reduce -b 1M -e 1M -n 3 --threads --ranks 2 --limits")));
    let row = &calls.report()["rows"][0];
    assert!(row["predicted_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    assert!(row["limit_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    let seen = run(ringbench("limits disk"));
    assert!(seen.code == Some(2) && seen.err.contains("disk"), "{}", seen.err);
    let seen = run(ringbench("limits wake --json /nowhere/x.json"));
    assert!(seen.code == Some(1) && seen.err.contains("--json /nowhere/x.json"), "{}", seen.err);
}
