//! Ranks that do not make the same call: one of them names the rank and the difference, and all
//! end.

use std::cell::Cell;

use super::failure_report::{Report, all_lead_to};
use crate::harness::{LONG, PATIENCE, PROMPT, Process, all_end};
use crate::job::Job;

/// The difference as errors may word it.
fn wordings(how: &str) -> &'static [&'static str] {
    match how {
        "count" => &["the count is 1001 there, 1000 here", "the count is 1000 there, 1001 here"],
        "much" => &["the count is 1048576 there, 1 here", "the count is 1 there, 1048576 here"],
        "nothing" => &[
            "the count is 0 there, 1000 here",
            "the count is 1000 there, 0 here",
            // An empty call sends nothing and is over, so that the rank is found in its next call.
            "the call is barrier there",
            "sequence is that of call #",
        ],
        "type" => &["the type is int32 there, float here", "the type is float there, int32 here"],
        "op" => &["the operation is max there, sum here", "the operation is sum there, max here"],
        "length" => &["the length is "],
        "root" | "reduced" => &[
            "the root is 1 there, 0 here",
            "the root is 0 there, 1 here",
            // A root that waits for no rank goes on to the next call.
            "sequence is that of call #",
        ],
        "verb" => &["all_gather of float, by "],
        _ => &["barrier", "sequence is that of call #"],
    }
}

fn check_mismatch(how: &str, size: usize, odd: usize, transport: &str) {
    let job = Job::new();
    check_ranks(job.world(size, transport, &format!("differs {how} {odd}")), how, odd);
    job.left_nothing();
}

/// Checks how ranks end of which `odd` makes another call.
pub(super) fn check_ranks(ranks: Vec<Process>, how: &str, odd: usize) {
    let pids: Vec<_> = ranks.iter().map(|rank| rank.pid()).collect();
    let ended = all_end(ranks, LONG - PROMPT);
    let reports: Vec<_> = ended.iter().map(Report::of).collect();
    let (saw, lost): (Vec<_>, Vec<_>) =
        reports.iter().partition(|report| report.what.contains("does not make the same call"));
    assert!(!saw.is_empty(), "{how}: no rank saw it: {reports:#?}");
    for report in &saw {
        // The other side is this rank, or a third one.
        let other = report.what.rsplit_once(" at rank ").map(|(said, _)| format!("{said} here"));
        let what = other.as_ref().unwrap_or(&report.what);
        assert!(wordings(how).iter().any(|wording| what.contains(wording)), "{how}: {report:?}");
        let is_named = report.what.contains(&format!("rank {odd} (host "));
        assert!(report.rank == odd || is_named, "{how}: {report:?}");
        assert!(what.contains(" there, ") && what.contains(" here"), "{report:?}");
    }
    for report in &reports {
        assert_eq!(report.peer_pid, pids[report.peer], "{how}: {report:?}");
    }
    assert!(lost.iter().all(|report| report.what.starts_with("lost rank ")), "{lost:#?}");
    // The ranks that saw the mismatch are the causes for the others.
    let saw = saw.iter().map(|report| report.rank).chain([odd]);
    all_lead_to(&reports, &saw.collect::<Vec<_>>());
}

fn check_all(transport: &str) {
    for how in
        ["count", "much", "nothing", "type", "op", "root", "verb", "fewer", "reduced", "length"]
    {
        check_mismatch(how, 2, 1, transport);
        check_mismatch(how, 4, 2, transport);
    }
}

#[test]
fn over_shared_memory() {
    check_all("shm");
}

#[test]
fn over_tcp() {
    check_all("tcp");
}

/// Settings that must agree are compared when ranks meet, by name and value.
#[test]
fn differing_settings_are_named() {
    for (name, ours, theirs) in [
        ("RINGREDUCE_ALGO", "ring", "auto"),
        ("RINGREDUCE_DETERMINISTIC", "1", "0"),
        ("RINGREDUCE_WIDE", "1", "0"),
        ("RINGREDUCE_WIRE", "bfloat16", "off"),
        ("RINGREDUCE_UNIFORM", "1", "0"),
        ("RINGREDUCE_RETRY_SAFE", "1", "0"),
        ("RINGREDUCE_ALL_PAIRS", "3", "4"),
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
            assert!(says("it must be the same for all ranks"), "{ended:?}");
        }
        job.left_nothing();
    }
}
