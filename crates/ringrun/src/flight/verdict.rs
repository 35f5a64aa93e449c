//! One sentence of all records: who keeps the others waiting, and since when. Touches nothing
//! outside. The law: the first cause is named; who waits for somebody is not it.

use std::collections::BTreeSet;

use ringreduce::trace::{Op, State};

use super::words::{call, call_in_full, end, is_under_way, key, last, place, seconds, who};
use super::{Life, Seen};
use crate::job::End;
use crate::report::ranges;

/// Nobody is said to be waited for who is waited for less than this.
const LEAST: u64 = 100_000_000;

/// A rank, and its latest call on a communicator.
#[derive(Clone, Copy)]
struct Stand<'a> {
    seen: &'a Seen,
    op: Option<&'a Op>,
}

impl Stand<'_> {
    fn number(&self) -> u64 {
        self.op.map_or(0, |op| op.sequence)
    }

    /// In the call with this number; or it was when that failed.
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

/// The first cause; none if nobody waits for anybody. `blamed` is the rank whose end ended the job.
pub(super) fn of(all: &[Seen], blamed: Option<usize>, now: u64) -> Option<String> {
    let blamed = blamed.and_then(|rank| all.iter().find(|seen| seen.rank == rank));
    let killed = blamed.filter(|seen| matches!(seen.life, Life::Ended(End::Killed { .. })));
    killed
        .and_then(|seen| was_killed(all, seen))
        .or_else(|| keys(all).into_iter().find_map(|key| differ(&stands(all, key))))
        .or_else(|| keys(all).into_iter().find_map(|key| missing(all, &stands(all, key), now)))
        .or_else(|| blamed.and_then(|seen| failed(all, seen)))
        .or_else(|| keys(all).into_iter().find_map(|key| behind(all, &stands(all, key), now)))
}

/// The numbers of all communicators.
fn keys(all: &[Seen]) -> BTreeSet<u64> {
    let records = all.iter().filter_map(|seen| seen.record.as_ref());
    records.flat_map(|record| record.members.iter().flatten().map(|member| member.key)).collect()
}

/// Those who belong to a communicator, or did.
fn stands(all: &[Seen], wanted: u64) -> Vec<Stand<'_>> {
    let stand = |seen| stand(seen, wanted);
    all.iter().filter_map(stand).collect()
}

/// One of them.
fn stand(seen: &Seen, wanted: u64) -> Option<Stand<'_>> {
    let record = seen.record.as_ref()?;
    record.members.iter().flatten().find(|member| member.key == wanted)?;
    let own = |op: &&Op| !op.is_message && key(seen, op) == Some(wanted);
    Some(Stand { seen, op: record.ops.iter().filter(own).max_by_key(|op| op.sequence) })
}

fn was_killed(all: &[Seen], seen: &Seen) -> Option<String> {
    let Life::Ended(how) = seen.life else { return None };
    let (who, how) = (who(seen), end(how));
    seen.record.as_ref()?;
    Some(match last(seen) {
        None => format!("{who} {how} before its first call"),
        Some(op) if op.state == State::Done => format!("{who} {how} after {}", call(op)),
        Some(op) => format!("{who} {how} in {}{}", call(op), place(all, seen, op)),
    })
}

/// Two that make different calls under one number.
fn differ(stands: &[Stand<'_>]) -> Option<String> {
    let number = latest(stands)?;
    let mut inside = stands.iter().filter(|stand| stand.is_in(number));
    let said = |op: &Op| {
        let even = !op.what.is_uneven();
        let (name, dtype) = (op.what.name(), op.what.dtype());
        (name, dtype, op.what.op(), op.what.root(), even, even.then_some(op.count))
    };
    let first = inside.next()?;
    let one = first.op?;
    let (second, other) = inside.find_map(|stand| {
        let other = stand.op.filter(|op| said(op) != said(one))?;
        Some((stand, other))
    })?;
    let (one, other) = (call_in_full(one), call_in_full(other));
    Some(format!("{} called {one}, but {} {other}", who(first.seen), who(second.seen)))
}

/// The number of the latest call that somebody is in.
fn latest(stands: &[Stand<'_>]) -> Option<u64> {
    let inside = stands.iter().filter(|stand| stand.is_in(stand.number()));
    inside.map(Stand::number).max()
}

/// Who is waited for and waits for nobody.
fn missing(all: &[Seen], stands: &[Stand<'_>], now: u64) -> Option<String> {
    let number = latest(stands)?;
    let (inside, others): (Vec<&Stand<'_>>, Vec<_>) =
        stands.iter().partition(|stand| stand.is_in(number));
    let waiting: Vec<_> =
        inside.iter().filter(|it| it.seen.life != Life::Stopped).copied().collect();
    let waited = waiting.iter().map(|stand| stand.waited(now)).max()?;
    let since = || format!("{} waited {}", they(&waiting, stands.len()), seconds(waited));
    let called = waiting.first().and_then(|stand| stand.op).map(call)?;
    let absent: Vec<_> = others.into_iter().filter(|stand| stand.number() < number).collect();
    let gone = absent.iter().find(|stand| matches!(stand.seen.life, Life::Ended(_)));
    if let Some(Stand { seen, .. }) = gone
        && let Life::Ended(how) = seen.life
    {
        return Some(format!("{} {} before {called}; {}", who(seen), end(how), since()));
    }
    if waited < LEAST {
        return None;
    }
    let stopped = |stand: &&Stand<'_>| stand.seen.life == Life::Stopped;
    if let Some(Stand { seen, op }) = stands.iter().find(stopped) {
        let at = match op.filter(|op| is_under_way(op)) {
            Some(op) => format!("in {}{}", call(op), place(all, seen, op)),
            None => format!("and never entered {called}"),
        };
        return Some(format!("{} is stopped {at}; {}", who(seen), since()));
    }
    // Who is in another communicator's call waits as well.
    let idle = |stand: &&&Stand<'_>| !last(stand.seen).is_some_and(is_under_way);
    let idle: Vec<_> = absent.iter().filter(idle).collect();
    let first = idle.first()?;
    let more: Vec<_> = idle.iter().skip(1).map(|stand| stand.seen.rank).collect();
    let more = match more.len() {
        0 => String::new(),
        1 => format!(" and rank {}", ranges(&more)),
        _ => format!(" and ranks {}", ranges(&more)),
    };
    Some(format!("{}{more} never entered {called}; {}", who(first.seen), since()))
}

/// "the others have", or "rank 0 has".
fn they(waiting: &[&Stand<'_>], size: usize) -> String {
    match waiting {
        [one] => format!("rank {} has", one.seen.rank),
        many if many.len() + 1 == size => "the others have".into(),
        many => {
            let ranks: Vec<_> = many.iter().map(|stand| stand.seen.rank).collect();
            format!("ranks {} have", ranges(&ranks))
        }
    }
}

/// Whose failure ended the job, if it was in a call.
fn failed(all: &[Seen], seen: &Seen) -> Option<String> {
    let op = last(seen).filter(|op| op.state == State::Failed)?;
    Some(format!("{} failed in {}{}", who(seen), call(op), place(all, seen, op)))
}

/// All are in one call, which takes its time: who is furthest behind?
fn behind(all: &[Seen], stands: &[Stand<'_>], now: u64) -> Option<String> {
    let number = latest(stands)?;
    let inside = || stands.iter().filter(|stand| stand.is_in(number));
    let under_way = || inside().filter(|stand| stand.op.is_some_and(is_under_way));
    let since = under_way().map(|stand| stand.waited(now)).max().filter(|&it| it >= LEAST)?;
    let slowest = under_way().min_by_key(|stand| stand.op.map(|op| op.step))?;
    let op = slowest.op?;
    let ranks: Vec<_> = under_way().map(|stand| stand.seen.rank).collect();
    let (ranks, place) = (ranges(&ranks), place(all, slowest.seen, op));
    let (call, since) = (call(op), seconds(since));
    Some(format!(
        "rank {ranks} in {call} for {since}; the furthest behind is {}{place}",
        who(slowest.seen)
    ))
}

#[cfg(test)]
mod tests;
