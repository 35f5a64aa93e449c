//! Each kind of cause, from records made for it.

use ringreduce::trace::{CommunicatorRecord, OperationCode, OperationRecord, Record, State};

use super::super::{ProcessState, RankStatus};
use super::of;
use crate::launch::job::RankEnd;

const SECOND: u64 = 1_000_000_000;
/// The word of an all_reduce of the first type by the first operation.
const ALL_REDUCE: u64 = 0x0101_0100;
const NOW: u64 = 100 * SECOND;

/// A rank of a job of four in this call, `seconds` after the call began.
fn rank(rank: usize, call: u64, state: State, seconds: u64) -> RankStatus {
    let (key, size) = (7, 4);
    let member =
        CommunicatorRecord { key, rank: rank as u64, size, created_before: 0, is_open: true };
    let op = |sequence, state, start| OperationRecord {
        number: sequence,
        communicator: Some(0),
        sequence,
        is_message: false,
        code: OperationCode::from_word(ALL_REDUCE),
        count: 100,
        bytes: 400,
        start,
        end: NOW - SECOND,
        state,
        step: 3,
        waits_for: Some(("receiving from", (rank as u64 + 3) % 4)),
    };
    let before = (1..call).map(|call| op(call, State::Done, 0));
    let ops = before.chain([op(call, state, NOW - seconds * SECOND)]).collect();
    let record =
        Record { pid: 70 + rank as u64, rank: rank as u64, communicators: vec![Some(member)], ops };
    let pid = record.pid;
    let (host, state) = ("b".into(), ProcessState::Running);
    RankStatus { rank, host, pid, state, record: Some(record), other_format: false }
}

fn waits(at: usize) -> RankStatus {
    rank(at, 12, State::AtStep, 30)
}

fn said(all: &[RankStatus], failed_rank: Option<usize>) -> String {
    of(all, failed_rank, NOW).unwrap_or_default()
}

#[test]
fn a_rank_that_never_entered_is_named_and_waiting_ranks_are_not() {
    let mut all = [waits(0), waits(1), rank(2, 11, State::Done, 31), waits(3)];
    let expected =
        "rank 2 (host b, pid 72) never entered all_reduce #12; the others have waited 30.0 s";
    assert_eq!(said(&all, None), expected);
    // The others gave up, and the first of them ended the job.
    for one in [0, 1, 3] {
        all[one] = rank(one, 12, State::Failed, 31);
    }
    all[0].state = ProcessState::Ended(RankEnd::Exited(1));
    assert_eq!(said(&all, Some(0)), expected);
    all[3] = rank(3, 11, State::Done, 31);
    let expected = "rank 2 (host b, pid 72) and rank 3 never entered all_reduce #12; \
         ranks 0-1 have waited 30.0 s";
    assert_eq!(said(&all, Some(0)), expected);
    all[2].state = ProcessState::Ended(RankEnd::Exited(3));
    let expected = "rank 2 (host b, pid 72) exited with status 3 before all_reduce #12; \
         ranks 0-1 have waited 30.0 s";
    assert_eq!(said(&all, Some(2)), expected);
}

#[test]
fn killed_and_stopped_ranks_are_named() {
    let mut all = [waits(0), waits(1), waits(2), waits(3)];
    all[2].state = ProcessState::Stopped;
    let expected = "rank 2 (host b, pid 72) is stopped in all_reduce #12, step 3, receiving from \
         rank 1; the others have waited 30.0 s";
    assert_eq!(said(&all, None), expected);
    all[2].state = ProcessState::Ended(RankEnd::Killed { signal: 9, core: false });
    let expected = "rank 2 (host b, pid 72) was killed by SIGKILL in all_reduce #12, step 3, \
         receiving from rank 1";
    assert_eq!(said(&all, Some(2)), expected);
    all[2].record = None;
    assert!(!said(&all, Some(2)).contains("killed"));
}

#[test]
fn both_of_two_different_calls_are_named() {
    let mut all = [waits(0), waits(1), waits(2), waits(3)];
    if let Some(op) = all[1].record.as_mut().and_then(|record| record.ops.last_mut()) {
        op.count = 101;
    }
    let text = said(&all, None);
    assert!(text.starts_with("rank 0 (host b, pid 70) called all_reduce #12 (100 x "), "{text}");
    assert!(text.contains(", but rank 1 (host b, pid 71) all_reduce #12 (101 x "), "{text}");
}

#[test]
fn no_rank_is_blamed_if_none_waits_for_long() {
    let fresh = |at| rank(at, 12, State::AtStep, 0);
    let all = [fresh(0), rank(1, 11, State::Done, 1), fresh(2), fresh(3)];
    assert_eq!(of(&all, None, NOW), None);
    let all = [waits(0), waits(1), waits(2), waits(3)];
    assert!(said(&all, None).starts_with("rank 0-3 in all_reduce #12 for 30.0 s; "));
    let done = |at| rank(at, 12, State::Done, 30);
    assert_eq!(of(&[done(0), done(1), done(2), done(3)], None, NOW), None);
    assert_eq!(of(&[], None, NOW), None);
}
