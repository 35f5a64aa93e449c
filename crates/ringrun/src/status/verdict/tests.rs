//! Each kind of cause, from records made for it.

use ringreduce::trace::{
    CommunicatorRecord, OperationCode, OperationRecord, Record, ShortName, State,
};

use harness::share::{count, random_range};

use super::super::communicators::Communicators;
use super::super::{ProcessState, RankStatus, json, wording};
use super::of;
use crate::launch::rank_end::RankEnd;

pub(in crate::status) const SECOND: u64 = 1_000_000_000;
/// The word of an all_reduce of the first type by the first operation.
const ALL_REDUCE: u64 = 0x0101_0100;
pub(in crate::status) const NOW: u64 = 100 * SECOND;

/// A rank of a job of four in this call, `seconds` after the call began.
pub(in crate::status) fn rank(rank: usize, call: u64, state: State, seconds: u64) -> RankStatus {
    let (key, size, name) = (7, 4, ShortName::default());
    let member =
        CommunicatorRecord { key, rank: rank as u64, size, created_before: 0, is_open: true, name };
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
    RankStatus {
        rank,
        host,
        pid,
        state,
        record: Some(record),
        is_read: true,
        restarts: 0,
        other_format: false,
    }
}

pub(in crate::status) fn waits(at: usize) -> RankStatus {
    rank(at, 12, State::AtStep, 30)
}

fn said(all: &[RankStatus], failed_rank: Option<usize>) -> String {
    of(all, failed_rank, NOW).map(|cause| cause.sentence).unwrap_or_default()
}

/// The ranks that are the cause, and the longest wait for them in seconds.
fn blamed(all: &[RankStatus], failed_rank: Option<usize>) -> (Vec<usize>, u64) {
    of(all, failed_rank, NOW).map(|cause| (cause.ranks, cause.waited / SECOND)).unwrap_or_default()
}

#[test]
fn a_rank_that_never_entered_is_named_and_waiting_ranks_are_not() {
    let mut all = [waits(0), waits(1), rank(2, 11, State::Done, 31), waits(3)];
    let expected =
        "rank 2 (host b, pid 72) never entered all_reduce #12; the others have waited 30.0 s";
    assert_eq!(said(&all, None), expected);
    assert_eq!(blamed(&all, None), (vec![2], 30));
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
    assert_eq!(blamed(&all, None).0, [2, 3]);
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
    assert_eq!(blamed(&all, None), (vec![2], 30));
    all[2].state = ProcessState::Ended(RankEnd::Killed { signal: 9, core: false });
    let expected = "rank 2 (host b, pid 72) was killed by SIGKILL in all_reduce #12, step 3, \
         receiving from rank 1";
    assert_eq!(said(&all, Some(2)), expected);
    assert_eq!(blamed(&all, Some(2)), (vec![2], 0));
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
    assert_eq!(blamed(&all, None), (vec![0, 1], 30));
}

#[test]
fn communicators_with_calls_are_named_and_the_others_counted() {
    let mut all = [waits(0), waits(1), rank(2, 11, State::Done, 31), waits(3)];
    for record in all.iter_mut().filter_map(|status| status.record.as_mut()) {
        let member = record.communicators[0].unwrap();
        assert!(member.name.is_empty());
        let others = (100..130).map(|key| Some(CommunicatorRecord { key, ..member }));
        // Communicators that were dropped do not count.
        let closed = CommunicatorRecord { key: 200, is_open: false, ..member };
        let name = ShortName::of("experts");
        record.communicators = vec![Some(CommunicatorRecord { name, ..member })];
        record.communicators.extend(others.chain([Some(closed)]));
    }
    let expected = "rank 2 (host b, pid 72) never entered all_reduce #12 of communicator \
         \"experts\"; the others have waited 30.0 s";
    assert_eq!(said(&all, None), expected);
    let lines = |all: &[RankStatus]| Communicators::of(all).lines(NOW);
    let first = "communicator \"experts\" (ranks 0-3): all_reduce #12 ";
    let others = "30 other communicators have no call under way";
    let under_way = format!("{first}under way at ranks 0-1,3 for 30.0 s");
    assert_eq!(lines(&all), [&*under_way, others]);
    if let Some(op) = all[0].record.as_mut().and_then(|record| record.ops.last_mut()) {
        op.state = State::Failed;
    }
    let both = format!("{first}under way at ranks 1,3 for 30.0 s, failed at rank 0");
    assert_eq!(lines(&all), [&*both, others]);
    // Of many communicators with calls, those that waited longest have a line.
    for record in all.iter_mut().filter_map(|status| status.record.as_mut()) {
        let op = *record.ops.last().unwrap();
        record.ops = vec![];
        for (at, member) in record.communicators.iter_mut().enumerate().take(20) {
            let member = member.as_mut().unwrap();
            member.name = ShortName::of(&format!("group {at}"));
            let (communicator, start) = (Some(at), op.start - at as u64 * SECOND);
            record.ops.push(OperationRecord { communicator, start, state: State::AtStep, ..op });
        }
    }
    let lines_of_many = lines(&all);
    let longest = "communicator \"group 19\" (ranks 0-3): all_reduce #";
    assert!(lines_of_many[0].starts_with(longest), "{lines_of_many:#?}");
    assert_eq!(
        lines_of_many[16..],
        [
            "4 more communicators have a call under way or failed",
            "11 other communicators have no call under way"
        ]
    );
    // The lines of ranks tell all of a job with one communicator.
    assert!(lines(&[waits(0), waits(1)]).is_empty());
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

/// A number as a rank that writes anything into its record may have it there: often one that other
/// ranks have too.
pub(in crate::status) fn any_number() -> u64 {
    match random_range(0..4) {
        0 => random_range(0..=u64::MAX),
        1 => u64::MAX,
        _ => random_range(0..4),
    }
}

/// A call with any numbers, as far as the reader lets them through.
fn any_op(number: u64, communicators: usize) -> OperationRecord {
    let start = any_number();
    OperationRecord {
        number,
        communicator: (random_range(0..4) > 0).then(|| random_range(0..communicators)),
        sequence: any_number(),
        is_message: random_range(0..4) == 0,
        code: OperationCode::from_word(any_number()),
        count: any_number(),
        bytes: any_number(),
        start,
        end: random_range(start..=u64::MAX),
        state: [State::Entered, State::AtStep, State::Done, State::Failed][random_range(0..4)],
        step: any_number(),
        waits_for: (random_range(0..2) == 0).then(|| ("sending to", any_number())),
    }
}

pub(in crate::status) fn any_rank(rank: usize) -> RankStatus {
    let member = || {
        let (key, rank, size) = (any_number(), any_number(), any_number());
        let (created_before, is_open) = (any_number(), random_range(0..2) == 0);
        let name = ShortName::of(["", "an \"expert\""][random_range(0..2)]);
        CommunicatorRecord { key, rank, size, created_before, is_open, name }
    };
    let communicators: Vec<_> = (0..random_range(1..4)).map(|_| Some(member())).collect();
    let ops = (0..random_range(0..4)).map(|number| any_op(number, communicators.len())).collect();
    let (pid, state) = (any_number(), random_range(0..4));
    let record = Record { pid, rank: any_number(), communicators, ops };
    let state = match state {
        0 => ProcessState::Stopped,
        1 => ProcessState::Ended(RankEnd::Exited(1)),
        2 => ProcessState::Ended(RankEnd::Killed { signal: 9, core: false }),
        _ => ProcessState::Running,
    };
    let record = (random_range(0..8) > 0).then_some(record);
    let host = "b".into();
    RankStatus { rank, host, pid, state, record, is_read: true, restarts: 0, other_format: false }
}

#[test]
fn any_record_has_a_status() {
    for _ in 0..count(5_000, 500_000) {
        let all: Vec<_> = (0..random_range(0..5)).map(any_rank).collect();
        let failed = (random_range(0..2) == 0).then(|| random_range(0..6));
        let now = any_number();
        let summary = of(&all, failed, now).map(|cause| cause.sentence);
        let summary = summary.unwrap_or_else(|| wording::no_wait_summary(&all));
        let of_job = Communicators::of(&all);
        let lines = all.iter().map(|rank| wording::line(&of_job, rank, now));
        let lines: Vec<_> = lines.chain(of_job.lines(now)).collect();
        let text = [summary.clone(), json::line(&summary, &all, now), lines.concat()].concat();
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
