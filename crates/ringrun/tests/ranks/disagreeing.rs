//! Ranks that do not make the same call: one of them sees it and says who differs in what, all end.

use crate::harness::{Job, PATIENCE, PROMPT, all_end};
use crate::report::{Report, all_lead_to};

fn differ(how: &str, size: usize, odd: usize, transport: &str) {
    let job = Job::new();
    let ranks = job.world(size, transport, &format!("differs {how} {odd}"));
    let pids: Vec<_> = ranks.iter().map(|rank| rank.pid()).collect();
    let ended = all_end(ranks, PATIENCE - PROMPT);
    let reports: Vec<_> = ended.iter().map(Report::of).collect();
    let (saw, lost): (Vec<_>, Vec<_>) =
        reports.iter().partition(|report| report.what.contains("does not make the same call"));
    assert!(!saw.is_empty(), "{how}: nobody saw it: {reports:#?}");
    for report in &saw {
        assert!([report.rank, report.peer].contains(&odd), "{how}: {report:?}");
        assert!(report.what.contains(" there, ") && report.what.contains(" here"), "{report:?}");
    }
    for report in &reports {
        assert_eq!(report.peer_pid, pids[report.peer], "{how}: {report:?}");
    }
    assert!(lost.iter().all(|report| report.what.starts_with("lost rank ")), "{lost:#?}");
    let saw: Vec<_> = saw.iter().map(|report| report.rank).collect();
    all_lead_to(&reports, &saw);
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
