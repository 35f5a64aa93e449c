//! One sentence from the records of all ranks: which rank keeps the others waiting, and since when.
//! Law: the sentence names the first cause, and never a rank that waits for another one.

use std::collections::BTreeSet;

use ringreduce::trace::{OperationRecord, State};

use super::wording::{
    call, communicator_key, full_call, is_running, last_op, position, rank_label, seconds,
};
use super::{ProcessState, RankStatus};
use crate::launch::job::RankEnd;
use crate::launch::message::{name_ranks, ranges};

/// Waits shorter than this, in nanoseconds, are not reported.
const MIN_REPORTED_WAIT: u64 = 100_000_000;

/// A rank of a communicator, with its latest collective there.
#[derive(Clone, Copy)]
struct Participant<'a> {
    status: &'a RankStatus,
    op: Option<&'a OperationRecord>,
}

impl Participant<'_> {
    fn number(&self) -> u64 {
        self.op.map_or(0, |op| op.sequence)
    }

    /// True if the rank is in the call with this number, or was in it when the call failed.
    fn is_in(&self, number: u64) -> bool {
        self.op.is_some_and(|op| op.sequence == number && op.state != State::Done)
    }

    fn waited(&self, now: u64) -> u64 {
        self.op.map_or(0, |op| {
            let until = if op.state == State::Failed { op.end } else { now };
            until.saturating_sub(op.start)
        })
    }
}

/// The first cause; none if no rank waits for another one. The end of `failed_rank` ended the job.
pub(super) fn of(all: &[RankStatus], failed_rank: Option<usize>, now: u64) -> Option<String> {
    let failed_rank = failed_rank.and_then(|rank| all.iter().find(|status| status.rank == rank));
    let killed = failed_rank
        .filter(|status| matches!(status.state, ProcessState::Ended(RankEnd::Killed { .. })));
    let groups: Vec<_> = keys(all).into_iter().map(|key| participants(all, key)).collect();
    killed
        .and_then(|status| was_killed(all, status))
        .or_else(|| groups.iter().find_map(|group| mismatch(group)))
        .or_else(|| groups.iter().find_map(|group| missing(all, group, now)))
        .or_else(|| failed_rank.and_then(|status| failed(all, status)))
        .or_else(|| groups.iter().find_map(|group| behind(all, group, now)))
}

/// The keys of all communicators.
fn keys(all: &[RankStatus]) -> BTreeSet<u64> {
    let records = all.iter().filter_map(|status| status.record.as_ref());
    records
        .flat_map(|record| record.communicators.iter().flatten().map(|member| member.key))
        .collect()
}

/// The ranks that belong to a communicator, or did.
fn participants(all: &[RankStatus], wanted: u64) -> Vec<Participant<'_>> {
    let participant = |status| participant(status, wanted);
    all.iter().filter_map(participant).collect()
}

fn participant(status: &RankStatus, wanted: u64) -> Option<Participant<'_>> {
    let record = status.record.as_ref()?;
    record.communicators.iter().flatten().find(|member| member.key == wanted)?;
    let own =
        |op: &&OperationRecord| !op.is_message && communicator_key(status, op) == Some(wanted);
    Some(Participant { status, op: record.ops.iter().filter(own).max_by_key(|op| op.sequence) })
}

fn was_killed(all: &[RankStatus], status: &RankStatus) -> Option<String> {
    let ProcessState::Ended(how) = status.state else { return None };
    let who = rank_label(status);
    status.record.as_ref()?;
    Some(match last_op(status) {
        None => format!("{who} {how} before its first call"),
        Some(op) if op.state == State::Done => format!("{who} {how} after {}", call(op)),
        Some(op) => format!("{who} {how} in {}{}", call(op), position(all, status, op)),
    })
}

/// Two ranks that make different calls under one number.
fn mismatch(participants: &[Participant<'_>]) -> Option<String> {
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
    let (one, other) = (full_call(one), full_call(other));
    Some(format!(
        "{} called {one}, but {} {other}",
        rank_label(first.status),
        rank_label(second.status)
    ))
}

/// The number of the latest call that a rank is in.
fn latest(participants: &[Participant<'_>]) -> Option<u64> {
    let inside = participants.iter().filter(|participant| participant.is_in(participant.number()));
    inside.map(Participant::number).max()
}

/// A rank that others wait for and that waits for none.
fn missing(all: &[RankStatus], participants: &[Participant<'_>], now: u64) -> Option<String> {
    let number = latest(participants)?;
    let (inside, others): (Vec<&Participant<'_>>, Vec<_>) =
        participants.iter().partition(|participant| participant.is_in(number));
    let waiting: Vec<_> =
        inside.iter().filter(|it| it.status.state != ProcessState::Stopped).copied().collect();
    let waited = waiting.iter().map(|participant| participant.waited(now)).max()?;
    let since =
        || format!("{} waited {}", waiting_ranks(&waiting, participants.len()), seconds(waited));
    let called = waiting.first().and_then(|participant| participant.op).map(call)?;
    let absent: Vec<_> =
        others.into_iter().filter(|participant| participant.number() < number).collect();
    let gone = absent
        .iter()
        .find(|participant| matches!(participant.status.state, ProcessState::Ended(_)));
    if let Some(Participant { status, .. }) = gone
        && let ProcessState::Ended(how) = status.state
    {
        return Some(format!("{} {how} before {called}; {}", rank_label(status), since()));
    }
    if waited < MIN_REPORTED_WAIT {
        return None;
    }
    let stopped =
        |participant: &&Participant<'_>| participant.status.state == ProcessState::Stopped;
    if let Some(Participant { status, op }) = participants.iter().find(stopped) {
        let at = match op.filter(|op| is_running(op)) {
            Some(op) => format!("in {}{}", call(op), position(all, status, op)),
            None => format!("and never entered {called}"),
        };
        return Some(format!("{} is stopped {at}; {}", rank_label(status), since()));
    }
    // A rank in a call of another communicator waits as well.
    let idle =
        |participant: &&&Participant<'_>| !last_op(participant.status).is_some_and(is_running);
    let idle: Vec<_> = absent.iter().filter(idle).collect();
    let first = idle.first()?;
    let more: Vec<_> = idle.iter().skip(1).map(|participant| participant.status.rank).collect();
    let more = match more.as_slice() {
        [] => String::new(),
        more => format!(" and {}", name_ranks(more)),
    };
    Some(format!("{}{more} never entered {called}; {}", rank_label(first.status), since()))
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
fn failed(all: &[RankStatus], status: &RankStatus) -> Option<String> {
    let op = last_op(status).filter(|op| op.state == State::Failed)?;
    Some(format!("{} failed in {}{}", rank_label(status), call(op), position(all, status, op)))
}

/// The rank that is furthest behind in a call that all ranks are in.
fn behind(all: &[RankStatus], participants: &[Participant<'_>], now: u64) -> Option<String> {
    let number = latest(participants)?;
    let inside = || participants.iter().filter(|participant| participant.is_in(number));
    let under_way = || inside().filter(|participant| participant.op.is_some_and(is_running));
    let since = under_way()
        .map(|participant| participant.waited(now))
        .max()
        .filter(|&it| it >= MIN_REPORTED_WAIT)?;
    let slowest = under_way().min_by_key(|participant| participant.op.map(|op| op.step))?;
    let op = slowest.op?;
    let ranks: Vec<_> = under_way().map(|participant| participant.status.rank).collect();
    let (ranks, place) = (ranges(&ranks), position(all, slowest.status, op));
    let (call, since) = (call(op), seconds(since));
    Some(format!(
        "rank {ranks} in {call} for {since}; the furthest behind is {}{place}",
        rank_label(slowest.status)
    ))
}

#[cfg(test)]
mod tests;
