//! The value that a leader proposes.
//! Law: equal reports make equal values; if any report has an accepted value, the one of the
//! highest ballot is proposed again.

use super::message::{AgreementKind, Recovery, Report, Value};
use super::ranks::Ranks;

/// The value that `leader` proposes, from the reports of all participants, itself included.
pub(super) fn choose(leader: u32, kind: AgreementKind, reports: &[(u32, Report)]) -> Value {
    let accepted = reports.iter().filter_map(|(_, report)| report.accepted);
    if let Some((_, value)) = accepted.max_by_key(|(ballot, _)| *ballot) {
        return value;
    }
    let all = || reports.iter().map(|(_, report)| report);
    let answered: Ranks = reports.iter().map(|&(rank, _)| rank).collect();
    let done = || all().map(|report| report.done);
    let recovery = match kind {
        // A rank that returned `Ok` knew that all had the result, so this minimum includes it.
        AgreementKind::Settle => {
            let full = all().map(|report| report.full).min().unwrap_or(0);
            Recovery { low: full, high: full }
        }
        AgreementKind::Agree | AgreementKind::Change | AgreementKind::Close => {
            Recovery { low: done().min().unwrap_or(0), high: done().max().unwrap_or(0) }
        }
    };
    let mut value = Value {
        kind,
        members: answered,
        flags: all().fold(u64::MAX, |flags, report| flags & report.call.flags),
        recovery,
        cause: all().filter_map(|report| report.cause).reduce(|one, other| one.better(other)),
    };
    if kind == AgreementKind::Close {
        let linked = reports.iter().filter(|(_, report)| report.call.flags & 1 == 1);
        value.members = linked.map(|&(rank, _)| rank).collect();
    }
    if kind == AgreementKind::Change {
        value.members = without_suspicions(leader, answered, reports);
    }
    value
}

/// True if there is a value to propose: one that was accepted before, or that of calls of one kind.
pub(super) fn is_decidable(reports: &[(u32, Report)]) -> bool {
    let kind = |(_, report): &(u32, Report)| report.call.kind;
    let is_first = |report| reports.first().is_none_or(|first| kind(first) == kind(report));
    reports.iter().any(|(_, report)| report.accepted.is_some()) || reports.iter().all(is_first)
}

/// True if a participant suspects another.
pub(super) fn has_suspicion(reports: &[(u32, Report)]) -> bool {
    let ranks: Ranks = reports.iter().map(|&(rank, _)| rank).collect();
    reports.iter().any(|(_, report)| !(report.suspected & ranks).is_empty())
}

/// A subset of `ranks` in which no rank suspects another. The rank in most suspicions is removed
/// first, of two equal ones the higher; the leader stays.
fn without_suspicions(leader: u32, ranks: Ranks, reports: &[(u32, Report)]) -> Ranks {
    let mut rest = ranks;
    loop {
        let suspicions = |rank: u32| {
            let others = reports.iter().filter(|&&(other, _)| rest.contains(other));
            let suspected = |report: &Report| (report.suspected & rest).without(rank);
            others.fold(Ranks::NONE, |found, (other, report)| match *other {
                other if other == rank => found | suspected(report),
                other if report.suspected.contains(rank) => found | Ranks::from_iter([other]),
                _ => found,
            })
        };
        let worst = rest.without(leader).iter().max_by_key(|&rank| (suspicions(rank).len(), rank));
        match worst {
            Some(rank) if !suspicions(rank).is_empty() => rest = rest.without(rank),
            _ => return rest,
        }
    }
}
