//! Commands, and what the report says of records made for it.

use std::time::Duration;

use harness::share::{count, random_range};
use ringreduce::trace::{CommunicatorRecord, State};
use serde_json::Value;

use super::super::tcp::{Reply, Session};
use super::super::verdict::tests::{NOW, any_number, any_rank, rank, waits};
use super::super::{JobStatus, ProcessState, RankStatus, Snapshots};
use super::report::Report;
use super::{Command, Format, MAX_COMMAND_BYTES, RasSession, json, text};
use crate::launch::rank_end::RankEnd;

/// The status as text and JSON.
fn said(all: &[RankStatus], is_verbose: bool) -> (String, Value) {
    let report = Report::of(all, NOW, Duration::from_millis(20));
    let text = text::text(&report, is_verbose);
    (text, serde_json::from_str(&json::document(&report)).unwrap())
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|said| said == *line), "{line:?} is not in:\n{text}");
    }
}

/// A job without ranks.
fn no_job() -> Snapshots {
    Snapshots::new(JobStatus::new(&mut [], vec![]))
}

#[test]
fn commands_are_read_as_nccl_reads_them() {
    let refused = |why: &str| Command::Refused(why.into());
    for (line, expected) in [
        ("CLIENT PROTOCOL 2", Command::ClientProtocol),
        ("client protocol x", Command::ClientProtocol),
        ("CLIENT PROTOCOL", refused("Unknown command CLIENT PROTOCOL")),
        ("TIMEOUT 0", Command::Timeout),
        ("Timeout  30", Command::Timeout),
        ("TIMEOUT -1", refused("Invalid timeout value -1")),
        ("TIMEOUT 5s", refused("Invalid timeout value 5s")),
        ("TIMEOUT 99999999999", refused("Invalid timeout value 99999999999")),
        ("SET FORMAT Json", Command::SetFormat(Format::Json)),
        ("set format text", Command::SetFormat(Format::Text)),
        ("SET FORMAT xml", refused("Invalid format xml")),
        ("status", Command::Status { is_verbose: false }),
        ("Verbose STATUS", Command::Status { is_verbose: true }),
        ("STATUS ", refused("Unknown command STATUS ")),
        ("", refused("Unknown command ")),
        ("a\u{1b}[2Jb", refused("Unknown command a?[2Jb")),
        ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", refused("Unknown command ééééééé")),
    ] {
        assert_eq!(Command::of_line(line.as_bytes()), expected, "{line:?}");
    }
    for line in ["monitor", "MONITOR trace,all"] {
        let Command::Refused(why) = Command::of_line(line.as_bytes()) else { panic!("{line}") };
        assert!(why.starts_with("MONITOR is not supported"), "{why}");
    }
    assert_eq!(Command::of_line(b"\xff\0"), refused("Unknown command \u{fffd}?"));
}

#[test]
fn a_session_answers_lines_until_the_status() {
    let (mut session, mut job) = (RasSession::default(), no_job());
    let next = |len, answer: &[u8]| Reply::Next { request_bytes: len, answer: answer.into() };
    assert_eq!(session.reply(b"STAT", &mut job), Reply::Incomplete);
    assert_eq!(session.reply(b"SET FORMAT json\r\nSTATUS\n", &mut job), next(17, b"OK\n"));
    assert_eq!(session.reply(b"x\n", &mut job), next(2, b"ERROR: Unknown command x\n"));
    let Reply::Last(document) = session.reply(b"STATUS\n", &mut job) else { panic!() };
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["communicators_count"], 0);
    let mut session = RasSession::default();
    let Reply::Last(text) = session.reply(b"STATUS\n", &mut job) else { panic!() };
    let text = String::from_utf8(text).unwrap();
    assert_lines(&text, &["Job summary", "No communicator data collected!", "Errors", "Warnings"]);
    let long = [b'a'; MAX_COMMAND_BYTES];
    assert_eq!(session.reply(&long[1..], &mut job), Reply::Incomplete);
    let Reply::Last(refusal) = session.reply(&long, &mut job) else { panic!() };
    assert!(refusal.starts_with(b"ERROR: "));
}

#[test]
fn a_late_rank_is_a_mismatch_and_is_named() {
    let all = [waits(0), waits(1), rank(2, 11, State::Done, 31), waits(3)];
    let (text, document) = said(&all, false);
    assert_lines(
        &text,
        &[
            "      1          4          4",
            "Communicators... (0.02s)",
            "    0         1         1         4         4         4   RUNNING  MISMATCH",
            "WAIT",
            "  rank 2 (host b, pid 72) never entered all_reduce #12; the others have waited 30.0 s",
            "#0-0 (0000000000000007) MISMATCH",
            "  Communicator ranks have different collective operation counts",
            "  3 ranks have launched up to operation 12",
            "  1 rank has launched up to operation 11",
            "  Rank 2 -- process 72 on node b (rank 2 of the job)",
        ],
    );
    assert!(!text.contains("Rank 0 -- ") && !text.contains("\nRanks\n"), "{text}");
    let (verbose, _) = said(&all, true);
    assert!(verbose.contains("\nrank 2 (host b, pid 72): after all_reduce #11 "), "{verbose}");
    assert_eq!(document["communicators_count"], 1);
    let one = &document["communicators"][0];
    assert_eq!((&one["hash"], &one["size"]), (&"0x7".into(), &4.into()));
    assert_eq!((&one["ranks_count"], &one["missing_ranks_count"]), (&4.into(), &0.into()));
    for (at, calls) in [12, 12, 11, 12].into_iter().enumerate() {
        let rank = &one["ranks"][at];
        assert_eq!((&rank["rank"], &rank["host"]), (&at.into(), &"b".into()));
        assert_eq!(rank["pid"], 70 + at);
        assert_eq!(rank["collective_counts"]["Collective"], calls);
        assert_eq!(rank["status"]["state"], "RUNNING");
        assert_eq!(rank["status"]["async_error"], 0);
        assert_eq!(rank["call"]["state"], if calls == 12 { "at_step" } else { "done" });
    }
    assert_eq!(document["ringreduce"]["awaited_ranks"], Value::from(vec![2]));
    assert_eq!(document["ringreduce"]["awaited_sec"], 30.0);
    assert_eq!(document["ras"]["collection_time_sec"], 0.02);
}

#[test]
fn ranks_without_data_are_missing() {
    let mut all = [waits(0), waits(1), waits(2), waits(3), waits(4)];
    for status in &mut all {
        let record = status.record.as_mut().unwrap();
        record.communicators[0].as_mut().unwrap().size = 5;
    }
    all[0].state = ProcessState::Ended(RankEnd::Killed { signal: 9, core: false });
    all[1].state = ProcessState::Stopped;
    // The host of rank 3 does not answer, and rank 4 has left.
    (all[3].record, all[3].is_read, all[3].host) = (None, false, "c".into());
    all[4].record.as_mut().unwrap().communicators[0].as_mut().unwrap().is_open = false;
    let (text, document) = said(&all, false);
    assert_lines(
        &text,
        &[
            "      2        1-4          5",
            concat!(
                "    0         1         2       1-4         5         1   RUNNING",
                "  INCOMPLETE,MISMATCH"
            ),
            "INCOMPLETE",
            "  Missing data from 2 job processes",
            "  process 71 on node b (rank 1 of the job) is stopped",
            "  process 73 on node c (rank 3 of the job) is on a host without answer",
            "DEAD",
            "  process 70 on node b (rank 0 of the job) was killed by SIGKILL",
            "#0-0 (0000000000000007) INCOMPLETE",
            "  Missing communicator data from 3 ranks",
            "  Rank 0 -- process 70 on node b (rank 0 of the job)",
            "  Rank 1 -- process 71 on node b (rank 1 of the job)",
            "  Rank 3 -- process 73 on node c (rank 3 of the job)",
            "TIMEOUT",
            "  No member (NOCOMM): 1 rank",
            "  Rank 4 -- process 74 on node b (rank 4 of the job)",
        ],
    );
    let one = &document["communicators"][0];
    assert_eq!((&one["ranks_count"], &one["missing_ranks_count"]), (&1.into(), &4.into()));
    let missing = one["missing_ranks"].as_array().unwrap();
    let states: Vec<_> = missing.iter().map(|rank| &rank["status"]).collect();
    for (at, (unresponsive, dead, state)) in [
        (true, true, "ENDED"),
        (true, false, "STOPPED"),
        (true, false, "RUNNING"),
        (false, false, "RUNNING"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(states[at]["unresponsive"], unresponsive, "{missing:#?}");
        assert_eq!(states[at]["considered_dead"], dead, "{missing:#?}");
        assert_eq!(states[at]["state"], state, "{missing:#?}");
    }
    assert_eq!(document["ras"]["timeouts_count"], 1);
}

#[test]
fn failed_calls_are_errors_and_ranks_that_have_not_joined_are_warnings() {
    let mut all = [rank(0, 12, State::Failed, 31), waits(1), waits(2), waits(3)];
    for status in &mut all[..3] {
        let record = status.record.as_mut().unwrap();
        record.communicators[0].as_mut().unwrap().size = 3;
    }
    all[3].record = None;
    let (text, document) = said(&all, false);
    let failed = "  Rank 0 failed in all_reduce #12 -- process 70 on node b (rank 0 of the job)";
    assert_lines(
        &text,
        &[
            "    0         1         1         3         3         3   RUNNING   ERROR",
            "#0-0 (0000000000000007) ERROR",
            failed,
            "INIT",
            "  Not joined yet: 1 job process",
            "  process 73 on node b (rank 3 of the job)",
        ],
    );
    let ranks = &document["communicators"][0]["ranks"];
    assert_eq!(ranks[0]["status"]["async_error"], 6);
    assert_eq!(ranks[1]["status"]["async_error"], 0);
}

#[test]
fn a_report_is_no_larger_than_the_job() {
    let mut all = [waits(0), waits(1)];
    for status in &mut all {
        let record = status.record.as_mut().unwrap();
        let member = record.communicators[0].unwrap();
        let many = (1..=60_000).map(|key| {
            Some(CommunicatorRecord { key, size: u64::MAX, name: member.name, ..member })
        });
        record.communicators = many.collect();
    }
    let (text, document) = said(&all, true);
    let listed = document["communicators"].as_array().unwrap().len();
    assert_eq!(document["communicators_count"], listed);
    assert_eq!(document["ringreduce"]["communicators_left_out"], 60_000 - listed);
    assert!((1_000..10_000).contains(&listed), "{listed}");
    let one = &document["communicators"][0];
    assert_eq!(one["missing_ranks"].as_array().unwrap().len(), 2);
    assert_eq!(one["missing_ranks_count"], u64::MAX - 2);
    assert!(text.contains("more communicators are left out"));
    println!("{} bytes of text, {} of JSON", text.len(), document.to_string().len());
}

#[test]
fn any_record_has_a_report() {
    for _ in 0..count(2_000, 200_000) {
        let all: Vec<_> = (0..random_range(0..5)).map(any_rank).collect();
        let report = Report::of(&all, any_number(), Duration::from_nanos(any_number()));
        let text = text::text(&report, random_range(0..2) == 0);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        let document: Value = serde_json::from_str(&json::document(&report)).unwrap();
        assert!(document["communicators"].is_array());
    }
}
