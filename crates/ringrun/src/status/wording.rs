//! The wording of a job's status: ranks, calls and ends as text.

use std::fmt::Write;

use ringreduce::trace::{CommunicatorRecord, OperationRecord, State};

use super::communicators::Communicators;
use super::{ProcessState, RankStatus};

/// "rank 3 (host b, pid 71)".
pub(super) fn rank_label(status: &RankStatus) -> String {
    format!("rank {} (host {}, pid {})", status.rank, status.host, status.pid)
}

pub(super) fn seconds(nanos: u64) -> String {
    format!("{:.1} s", nanos as f64 / 1e9)
}

/// "all_reduce #812", or "all_reduce #812 of communicator \"experts\"".
pub(super) fn call(status: &RankStatus, op: &OperationRecord) -> String {
    let name = op.code.name();
    let uneven = if op.code.is_uneven() { " (uneven)" } else { "" };
    let call = match op.is_message {
        true => format!("{name} after call #{}", op.sequence),
        false => format!("{name}{uneven} #{}", op.sequence),
    };
    match communicator_name(status, op) {
        Some(name) => format!("{call} of communicator {name:?}"),
        None => call,
    }
}

/// The name of an operation's communicator, if it has one.
pub(super) fn communicator_name(status: &RankStatus, op: &OperationRecord) -> Option<String> {
    let name = communicator(status, op)?.name;
    (!name.is_empty()).then(|| name.to_string())
}

/// "all_reduce #812 (1024 x float, sum)".
pub(super) fn full_call(status: &RankStatus, op: &OperationRecord) -> String {
    let mut text = call(status, op);
    let mut details = vec![];
    if let Some(dtype) = op.code.dtype().filter(|_| op.code.name() != "barrier") {
        details.push(format!("{} x {dtype}", op.count));
        details.extend(op.code.op().map(str::to_owned));
    }
    details.extend(op.code.root().map(|root| format!("root {root}")));
    if !details.is_empty() {
        let _ = write!(text, " ({})", details.join(", "));
    }
    text
}

/// ", step 3, receiving from rank 1"; ranks are those of the job.
pub(super) fn position(
    of_job: &Communicators<'_>,
    status: &RankStatus,
    op: &OperationRecord,
) -> String {
    let at_step = matches!(op.state, State::AtStep | State::Failed) && op.waits_for.is_some();
    if !at_step {
        return String::new();
    }
    let mut text = format!(", step {}", op.step);
    if let Some((how, peer)) = op.waits_for {
        let in_job = communicator(status, op).and_then(|member| of_job.job_rank(member.key, peer));
        let _ = match in_job {
            Some(rank) => write!(text, ", {how} rank {rank}"),
            None => write!(text, ", {how} rank {peer} of its communicator"),
        };
    }
    text
}

/// An operation's communicator.
fn communicator<'a>(
    status: &'a RankStatus,
    op: &OperationRecord,
) -> Option<&'a CommunicatorRecord> {
    status.record.as_ref()?.communicators.get(op.communicator?)?.as_ref()
}

/// Its last operation.
pub(super) fn last_op(status: &RankStatus) -> Option<&OperationRecord> {
    status.record.as_ref()?.ops.last()
}

/// True if the operation has not ended.
pub(super) fn is_running(op: &OperationRecord) -> bool {
    matches!(op.state, State::Entered | State::AtStep)
}

pub(super) fn line(of_job: &Communicators<'_>, status: &RankStatus, now: u64) -> String {
    let mut text = format!("{}: ", rank_label(status));
    match status.state {
        ProcessState::Ended(how) => text += &format!("{how}, "),
        ProcessState::Stopped => text += "stopped, ",
        ProcessState::Running => {}
    }
    let since = |then: u64| seconds(now.saturating_sub(then));
    let Some(op) = last_op(status) else {
        return text
            + match (&status.record, status.other_format) {
                (Some(_), _) => "no call yet",
                (None, false) => "has not joined",
                (None, true) => "records its calls in the format of another version",
            };
    };
    let (call, place) = (full_call(status, op), position(of_job, status, op));
    text += &match op.state {
        State::Entered | State::AtStep => format!("in {call} for {}{place}", since(op.start)),
        State::Done => format!("after {call}, {} ago", since(op.end)),
        State::Failed => format!("{call} failed{place}, {} ago", since(op.end)),
    };
    text
}

/// The sentence for a job in which no rank waits.
pub(super) fn no_wait_summary(status: &[RankStatus]) -> String {
    let calls = status.iter().filter_map(|rank| Some((rank, last_op(rank)?)));
    match calls.max_by_key(|(_, op)| op.start) {
        Some((rank, op)) => {
            format!("no rank waits for another one; the last call is {}", call(rank, op))
        }
        None => "no rank has made a call yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Communicators, ProcessState, RankStatus, line};

    #[test]
    fn a_record_of_another_version_is_not_taken_for_a_rank_that_has_not_joined() {
        let (host, state, record) = ("b".to_owned(), ProcessState::Running, None);
        let (is_read, restarts) = (true, 0);
        let none = RankStatus {
            rank: 0,
            host,
            pid: 7,
            state,
            record,
            is_read,
            restarts,
            other_format: false,
        };
        let of_job = &Communicators::of(&[]);
        assert_eq!(line(of_job, &none, 0), "rank 0 (host b, pid 7): has not joined");
        let other_format = RankStatus { other_format: true, ..none };
        assert!(
            line(of_job, &other_format, 0)
                .ends_with(": records its calls in the format of another version")
        );
    }
}
