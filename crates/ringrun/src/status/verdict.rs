//! The first cause from the records of all ranks: which rank keeps the others waiting, and since
//! when, with one sentence that says so.
//! Law: the sentence names the first cause, and never a rank that waits for another one.

use ringreduce::trace::{OperationRecord, State};

use super::communicators::{Communicators, Participant, latest};
use super::wording::{call, full_call, is_running, last_op, position, rank_label, seconds};
use super::{ProcessState, RankStatus};
use crate::launch::message::{name_ranks, ranges};
use crate::launch::rank_end::RankEnd;

/// The first cause of a wait or of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FirstCause {
    pub(super) sentence: String,
    /// The ranks that are the cause. Of two that make different calls, both.
    pub(super) ranks: Vec<usize>,
    /// The longest wait for these ranks, in nanoseconds; 0 if no rank waits any more.
    pub(super) waited: u64,
}

impl FirstCause {
    /// A cause for which no rank waits.
    fn ended(status: &RankStatus, sentence: String) -> Self {
        Self { sentence, ranks: vec![status.rank], waited: 0 }
    }
}

/// Waits shorter than this, in nanoseconds, are not reported.
const MIN_REPORTED_WAIT: u64 = 100_000_000;

/// The first cause; none if no rank waits for another one. The end of `failed_rank` ended the job.
pub(super) fn of(all: &[RankStatus], failed_rank: Option<usize>, now: u64) -> Option<FirstCause> {
    let failed_rank = failed_rank.and_then(|rank| all.iter().find(|status| status.rank == rank));
    let killed = failed_rank
        .filter(|status| matches!(status.state, ProcessState::Ended(RankEnd::Killed { .. })));
    let of_job = &Communicators::of(all);
    killed
        .and_then(|status| was_killed(of_job, status))
        .or_else(|| of_job.groups().find_map(|group| mismatch(group, now)))
        .or_else(|| of_job.groups().find_map(|group| missing(of_job, group, now)))
        .or_else(|| failed_rank.and_then(|status| failed(of_job, status)))
        .or_else(|| of_job.groups().find_map(|group| behind(of_job, group, now)))
}

fn was_killed(of_job: &Communicators<'_>, status: &RankStatus) -> Option<FirstCause> {
    let ProcessState::Ended(how) = status.state else { return None };
    let who = rank_label(status);
    status.record.as_ref()?;
    let sentence = match last_op(status) {
        None => format!("{who} {how} before its first call"),
        Some(op) if op.state == State::Done => format!("{who} {how} after {}", call(status, op)),
        Some(op) => format!("{who} {how} in {}{}", call(status, op), position(of_job, status, op)),
    };
    Some(FirstCause::ended(status, sentence))
}

/// Two ranks that make different calls under one number.
fn mismatch(participants: &[Participant<'_>], now: u64) -> Option<FirstCause> {
    let number = latest(participants)?;
    let mut inside = participants.iter().filter(|participant| participant.is_in(number));
    let said = |op: &OperationRecord| {
        let even = !op.code.is_uneven();
        let (name, dtype) = (op.code.name(), op.code.dtype());
        (name, dtype, op.code.op(), op.code.root(), even, even.then_some(op.count))
    };
    let first = inside.next()?;
    let one = first.op?;
    let (second, other) = inside.find_map(|participant| {
        let other = participant.op.filter(|op| said(op) != said(one))?;
        Some((participant, other))
    })?;
    let (one, other) = (full_call(first.status, one), full_call(second.status, other));
    let sentence = format!(
        "{} called {one}, but {} {other}",
        rank_label(first.status),
        rank_label(second.status)
    );
    let ranks = vec![first.status.rank, second.status.rank];
    Some(FirstCause { sentence, ranks, waited: first.waited(now).max(second.waited(now)) })
}

/// A rank that others wait for and that waits for none.
fn missing(
    of_job: &Communicators<'_>,
    participants: &[Participant<'_>],
    now: u64,
) -> Option<FirstCause> {
    let number = latest(participants)?;
    let (inside, others): (Vec<&Participant<'_>>, Vec<_>) =
        participants.iter().partition(|participant| participant.is_in(number));
    let waiting: Vec<_> =
        inside.iter().filter(|it| it.status.state != ProcessState::Stopped).copied().collect();
    let waited = waiting.iter().map(|participant| participant.waited(now)).max()?;
    let since =
        || format!("{} waited {}", waiting_ranks(&waiting, participants.len()), seconds(waited));
    let called = waiting.first().and_then(|it| Some(call(it.status, it.op?)))?;
    let absent: Vec<_> =
        others.into_iter().filter(|participant| participant.number() < number).collect();
    let gone = absent
        .iter()
        .find(|participant| matches!(participant.status.state, ProcessState::Ended(_)));
    if let Some(Participant { status, .. }) = gone
        && let ProcessState::Ended(how) = status.state
    {
        let sentence = format!("{} {how} before {called}; {}", rank_label(status), since());
        return Some(FirstCause { sentence, ranks: vec![status.rank], waited });
    }
    if waited < MIN_REPORTED_WAIT {
        return None;
    }
    let stopped =
        |participant: &&Participant<'_>| participant.status.state == ProcessState::Stopped;
    if let Some(Participant { status, op, .. }) = participants.iter().find(stopped) {
        let at = match op.filter(|op| is_running(op)) {
            Some(op) => format!("in {}{}", call(status, op), position(of_job, status, op)),
            None => format!("and never entered {called}"),
        };
        let sentence = format!("{} is stopped {at}; {}", rank_label(status), since());
        return Some(FirstCause { sentence, ranks: vec![status.rank], waited });
    }
    // A rank in a call of another communicator waits as well.
    let idle =
        |participant: &&&Participant<'_>| !last_op(participant.status).is_some_and(is_running);
    let idle: Vec<_> = absent.iter().filter(idle).collect();
    let first = idle.first()?;
    let ranks: Vec<_> = idle.iter().map(|participant| participant.status.rank).collect();
    let more = match ranks.get(1..) {
        None | Some([]) => String::new(),
        Some(more) => format!(" and {}", name_ranks(more)),
    };
    let who = rank_label(first.status);
    let sentence = format!("{who}{more} never entered {called}; {}", since());
    Some(FirstCause { sentence, ranks, waited })
}

/// "the others have", or "rank 0 has".
fn waiting_ranks(waiting: &[&Participant<'_>], size: usize) -> String {
    match waiting {
        [one] => format!("rank {} has", one.status.rank),
        many if many.len() + 1 == size => "the others have".into(),
        many => {
            let ranks: Vec<_> = many.iter().map(|participant| participant.status.rank).collect();
            format!("{} have", name_ranks(&ranks))
        }
    }
}

/// The rank whose failure ended the job, if it was in a call.
fn failed(of_job: &Communicators<'_>, status: &RankStatus) -> Option<FirstCause> {
    let op = last_op(status).filter(|op| op.state == State::Failed)?;
    let (who, place) = (rank_label(status), position(of_job, status, op));
    Some(FirstCause::ended(status, format!("{who} failed in {}{place}", call(status, op))))
}

/// The rank that is furthest behind in a call that all ranks are in.
fn behind(
    of_job: &Communicators<'_>,
    participants: &[Participant<'_>],
    now: u64,
) -> Option<FirstCause> {
    let number = latest(participants)?;
    let inside = || participants.iter().filter(|participant| participant.is_in(number));
    let under_way = || inside().filter(|participant| participant.op.is_some_and(is_running));
    let waited = under_way()
        .map(|participant| participant.waited(now))
        .max()
        .filter(|&it| it >= MIN_REPORTED_WAIT)?;
    let slowest = under_way().min_by_key(|participant| participant.op.map(|op| op.step))?;
    let op = slowest.op?;
    let ranks: Vec<_> = under_way().map(|participant| participant.status.rank).collect();
    let (ranks, place) = (ranges(&ranks), position(of_job, slowest.status, op));
    let (call, since) = (call(slowest.status, op), seconds(waited));
    let sentence = format!(
        "rank {ranks} in {call} for {since}; the furthest behind is {}{place}",
        rank_label(slowest.status)
    );
    Some(FirstCause { sentence, ranks: vec![slowest.status.rank], waited })
}

#[cfg(test)]
pub(super) mod tests;
