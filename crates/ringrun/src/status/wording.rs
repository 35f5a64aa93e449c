//! The wording of a job's status: ranks, calls and ends as text.

use std::fmt::Write;

use ringreduce::trace::{OperationRecord, State};

use super::{ProcessState, RankStatus};

/// "rank 3 (host b, pid 71)".
pub(super) fn rank_label(status: &RankStatus) -> String {
    format!("rank {} (host {}, pid {})", status.rank, status.host, status.pid)
}

pub(super) fn seconds(nanos: u64) -> String {
    format!("{:.1} s", nanos as f64 / 1e9)
}

/// "all_reduce #812".
pub(super) fn call(op: &OperationRecord) -> String {
    let name = op.code.name();
    let uneven = if op.code.is_uneven() { " (uneven)" } else { "" };
    match op.is_message {
        true => format!("{name} after call #{}", op.sequence),
        false => format!("{name}{uneven} #{}", op.sequence),
    }
}

/// "all_reduce #812 (1024 x float, sum)".
pub(super) fn full_call(op: &OperationRecord) -> String {
    let mut text = call(op);
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
pub(super) fn position(all: &[RankStatus], status: &RankStatus, op: &OperationRecord) -> String {
    let at_step = matches!(op.state, State::AtStep | State::Failed) && op.waits_for.is_some();
    if !at_step {
        return String::new();
    }
    let mut text = format!(", step {}", op.step);
    if let Some((how, peer)) = op.waits_for {
        let in_job = communicator_key(status, op).and_then(|key| job_rank(all, key, peer));
        let _ = match in_job {
            Some(rank) => write!(text, ", {how} rank {rank}"),
            None => write!(text, ", {how} rank {peer} of its communicator"),
        };
    }
    text
}

/// The number of an operation's communicator.
pub(super) fn communicator_key(status: &RankStatus, op: &OperationRecord) -> Option<u64> {
    Some(status.record.as_ref()?.communicators.get(op.communicator?)?.as_ref()?.key)
}

/// The rank in the job of a communicator's rank.
fn job_rank(all: &[RankStatus], key: u64, peer: u64) -> Option<usize> {
    let is_wanted = |status: &&RankStatus| {
        let members = status.record.iter().flat_map(|record| record.communicators.iter().flatten());
        members.into_iter().any(|member| member.key == key && member.rank == peer)
    };
    all.iter().find(is_wanted).map(|status| status.rank)
}

/// Its last operation.
pub(super) fn last_op(status: &RankStatus) -> Option<&OperationRecord> {
    status.record.as_ref()?.ops.last()
}

/// True if the operation has not ended.
pub(super) fn is_running(op: &OperationRecord) -> bool {
    matches!(op.state, State::Entered | State::AtStep)
}

pub(super) fn line(all: &[RankStatus], status: &RankStatus, now: u64) -> String {
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
    let (call, place) = (full_call(op), position(all, status, op));
    text += &match op.state {
        State::Entered | State::AtStep => format!("in {call} for {}{place}", since(op.start)),
        State::Done => format!("after {call}, {} ago", since(op.end)),
        State::Failed => format!("{call} failed{place}, {} ago", since(op.end)),
    };
    text
}

/// The sentence for a job in which no rank waits.
pub(super) fn no_wait_summary(status: &[RankStatus]) -> String {
    let latest = status.iter().filter_map(last_op).max_by_key(|op| op.start);
    match latest {
        Some(op) => format!("no rank waits for another one; the last call is {}", call(op)),
        None => "no rank has made a call yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessState, RankStatus, line};

    #[test]
    fn a_record_of_another_version_is_not_taken_for_a_rank_that_has_not_joined() {
        let (host, state, record) = ("b".to_owned(), ProcessState::Running, None);
        let none = RankStatus { rank: 0, host, pid: 7, state, record, other_format: false };
        assert_eq!(line(&[], &none, 0), "rank 0 (host b, pid 7): has not joined");
        let other_format = RankStatus { other_format: true, ..none };
        assert!(
            line(&[], &other_format, 0)
                .ends_with(": records its calls in the format of another version")
        );
    }
}
