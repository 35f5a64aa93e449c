//! Records in words. Touches nothing outside.

use std::fmt::Write;

use ringreduce::trace::{Op, State};

use super::{Life, Seen};
use crate::job::End;
use crate::signals;

/// "rank 3 (host b, pid 71)".
pub(super) fn who(seen: &Seen) -> String {
    format!("rank {} (host {}, pid {})", seen.rank, seen.host, seen.pid)
}

/// How it ended.
pub(super) fn end(end: End) -> String {
    match end {
        End::Exited(status) => format!("exited with status {status}"),
        End::Killed { signal, .. } => format!("was killed by {}", signals::name(signal)),
    }
}

/// "30.2 s".
pub(super) fn seconds(nanos: u64) -> String {
    format!("{:.1} s", nanos as f64 / 1e9)
}

/// "all_reduce #812".
pub(super) fn call(op: &Op) -> String {
    let name = op.what.name();
    let uneven = if op.what.is_uneven() { " (uneven)" } else { "" };
    match op.is_message {
        true => format!("{name} after call #{}", op.sequence),
        false => format!("{name}{uneven} #{}", op.sequence),
    }
}

/// "all_reduce #812 (1024 x float, sum)".
pub(super) fn call_in_full(op: &Op) -> String {
    let mut text = call(op);
    let mut details = vec![];
    if let Some(dtype) = op.what.dtype().filter(|_| op.what.name() != "barrier") {
        details.push(format!("{} x {dtype}", op.count));
        details.extend(op.what.op().map(str::to_owned));
    }
    details.extend(op.what.root().map(|root| format!("root {root}")));
    if !details.is_empty() {
        let _ = write!(text, " ({})", details.join(", "));
    }
    text
}

/// ", step 3, receiving from rank 1"; ranks are those of the job.
pub(super) fn place(all: &[Seen], seen: &Seen, op: &Op) -> String {
    let at_step = matches!(op.state, State::AtStep | State::Failed) && op.toward.is_some();
    if !at_step {
        return String::new();
    }
    let mut text = format!(", step {}", op.step);
    if let Some((how, peer)) = op.toward {
        let known = key(seen, op).and_then(|key| of_group(all, key, peer));
        let _ = match known {
            Some(rank) => write!(text, ", {how} rank {rank}"),
            None => write!(text, ", {how} rank {peer} of its communicator"),
        };
    }
    text
}

/// The number of an operation's communicator.
pub(super) fn key(seen: &Seen, op: &Op) -> Option<u64> {
    Some(seen.record.as_ref()?.members.get(op.member?)?.as_ref()?.key)
}

/// The rank of the job that is this one of a communicator.
fn of_group(all: &[Seen], key: u64, peer: u64) -> Option<usize> {
    let is_it = |seen: &&Seen| {
        let members = seen.record.iter().flat_map(|record| record.members.iter().flatten());
        members.into_iter().any(|member| member.key == key && member.rank == peer)
    };
    all.iter().find(is_it).map(|seen| seen.rank)
}

/// Its last operation.
pub(super) fn last(seen: &Seen) -> Option<&Op> {
    seen.record.as_ref()?.ops.last()
}

/// Is it in the middle of it?
pub(super) fn is_under_way(op: &Op) -> bool {
    matches!(op.state, State::Entered | State::AtStep)
}

/// One rank of a job that runs.
pub(super) fn line(all: &[Seen], seen: &Seen, now: u64) -> String {
    let mut text = format!("{}: ", who(seen));
    match seen.life {
        Life::Ended(how) => text += &format!("{}, ", end(how)),
        Life::Stopped => text += "stopped, ",
        Life::Running => {}
    }
    let since = |then: u64| seconds(now.saturating_sub(then));
    let Some(op) = last(seen) else {
        return text
            + match (&seen.record, seen.foreign) {
                (Some(_), _) => "no call yet",
                (None, false) => "has not joined",
                (None, true) => "records its calls in the format of another version",
            };
    };
    let (call, place) = (call_in_full(op), place(all, seen, op));
    text += &match op.state {
        State::Entered | State::AtStep => format!("in {call} for {}{place}", since(op.start)),
        State::Done => format!("after {call}, {} ago", since(op.end)),
        State::Failed => format!("{call} failed{place}, {} ago", since(op.end)),
    };
    text
}

/// Where nobody waits.
pub(super) fn fine(seen: &[Seen]) -> String {
    let latest = seen.iter().filter_map(last).max_by_key(|op| op.start);
    match latest {
        Some(op) => format!("no rank waits for another one; the last call is {}", call(op)),
        None => "no rank has made a call yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Life, Seen, line};

    #[test]
    fn a_record_of_another_version_is_not_taken_for_none() {
        let (host, life, record) = ("b".to_owned(), Life::Running, None);
        let none = Seen { rank: 0, host, pid: 7, life, record, foreign: false };
        assert_eq!(line(&[], &none, 0), "rank 0 (host b, pid 7): has not joined");
        let foreign = Seen { foreign: true, ..none };
        assert!(
            line(&[], &foreign, 0)
                .ends_with(": records its calls in the format of another version")
        );
    }
}
