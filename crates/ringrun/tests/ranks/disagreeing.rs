//! Ranks that do not make the same call: one of them sees it and says who differs in what, all end.

use std::cell::Cell;

use crate::harness::{Job, LONG, PATIENCE, PROMPT, all_end};
use crate::report::{Report, all_lead_to};

/// In what they differ, as the error has it.
fn told(how: &str) -> &'static [&'static str] {
    match how {
        "count" => &["the count is 1001 there, 1000 here", "the count is 1000 there, 1001 here"],
        "much" => &["the count is 1048576 there, 1 here", "the count is 1 there, 1048576 here"],
        "nothing" => &[
            "the count is 0 there, 1000 here",
            "the count is 1000 there, 0 here",
            // A call of nothing sends nothing: it is over, its count is forgotten, and the next one
            // is there.
            "a digest of the count and the order of ranks is",
            "the call is barrier there",
            "sequence is that of call #",
        ],
        "type" => &["the type is int32 there, float here", "the type is float there, int32 here"],
        "op" => &["the operation is max there, sum here", "the operation is sum there, max here"],
        "root" => &[
            "the root is 1 there, 0 here",
            "the root is 0 there, 1 here",
            // A root that waits for nobody goes on.
            "sequence is that of call #",
        ],
        "verb" => &["all_gather of float, by "],
        _ => &["barrier", "sequence is that of call #"],
    }
}

fn differ(how: &str, size: usize, odd: usize, transport: &str) {
    let job = Job::new();
    let ranks = job.world(size, transport, &format!("differs {how} {odd}"));
    let pids: Vec<_> = ranks.iter().map(|rank| rank.pid()).collect();
    let ended = all_end(ranks, LONG - PROMPT);
    let reports: Vec<_> = ended.iter().map(Report::of).collect();
    let (saw, lost): (Vec<_>, Vec<_>) =
        reports.iter().partition(|report| report.what.contains("does not make the same call"));
    assert!(!saw.is_empty(), "{how}: nobody saw it: {reports:#?}");
    for report in &saw {
        // One of the two is this rank, or both are others.
        let other = report.what.rsplit_once(" at rank ").map(|(said, _)| format!("{said} here"));
        let what = other.as_ref().unwrap_or(&report.what);
        assert!(told(how).iter().any(|told| what.contains(told)), "{how}: {report:?}");
        let is_named = report.what.contains(&format!("rank {odd} (host "));
        assert!(report.rank == odd || is_named, "{how}: {report:?}");
        assert!(what.contains(" there, ") && what.contains(" here"), "{report:?}");
    }
    for report in &reports {
        assert_eq!(report.peer_pid, pids[report.peer], "{how}: {report:?}");
    }
    assert!(lost.iter().all(|report| report.what.starts_with("lost rank ")), "{lost:#?}");
    // Who saw it tells the others which rank it was.
    let saw = saw.iter().map(|report| report.rank).chain([odd]);
    all_lead_to(&reports, &saw.collect::<Vec<_>>());
    job.left_nothing();
}

fn all_ways(transport: &str) {
    for how in ["count", "much", "nothing", "type", "op", "root", "verb", "fewer"] {
        differ(how, 2, 1, transport);
        differ(how, 4, 2, transport);
    }
}

#[test]
fn over_shared_memory() {
    all_ways("shm");
}

#[test]
fn over_tcp() {
    all_ways("tcp");
}

/// Settings that must agree are compared when ranks meet, by name and value.
#[test]
fn settings_differ() {
    for (name, ours, theirs) in [
        ("RINGREDUCE_ALGO", "ring", "auto"),
        ("RINGREDUCE_DETERMINISTIC", "1", "0"),
        ("RINGREDUCE_WIDE", "1", "0"),
        ("RINGREDUCE_WIRE", "bfloat16", "off"),
        ("RINGREDUCE_UNIFORM", "1", "0"),
        ("RINGREDUCE_RETRY_SAFE", "1", "0"),
    ] {
        let (job, rank) = (Job::new(), Cell::new(0));
        let ranks = job.world_with(2, "shm", "explains", |command| {
            let odd = rank.replace(1) == 1;
            command.env(name, if odd { ours } else { theirs });
        });
        for ended in all_end(ranks, PATIENCE) {
            let says = |what: &str| ended.err.contains(what);
            let values = says(&format!("has {ours}")) && says(&format!("has {theirs}"));
            let ranks = says("rank 0 (") && says("rank 1 (");
            assert!(ended.code != 0 && says(name) && values && ranks, "{ended:?}");
        }
        job.left_nothing();
    }
}
