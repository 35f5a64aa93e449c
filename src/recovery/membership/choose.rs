//! The value that a leader proposes.
//! Law: equal reports make equal values; if any report has an accepted value, the one of the
//! highest ballot is proposed again.

use std::collections::BTreeMap;

use super::message::{AgreementKind, Recovery, Report, Value};
use super::ranks::Ranks;

/// The value that `leader` proposes, from the reports of all participants, itself included.
pub(super) fn choose(leader: u32, kind: AgreementKind, reports: &[(u32, Report)]) -> Value {
    let accepted = reports.iter().filter_map(|(_, report)| report.accepted.as_ref());
    if let Some((_, value)) = accepted.max_by_key(|(ballot, _)| *ballot) {
        return value.clone();
    }
    let all = || reports.iter().map(|(_, report)| report);
    let answered: Ranks = reports.iter().map(|(rank, _)| *rank).collect();
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
        members: answered.clone(),
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
    let ranks: Ranks = reports.iter().map(|(rank, _)| *rank).collect();
    reports.iter().any(|(_, report)| !report.suspected.is_disjoint(&ranks))
}

/// A subset of `ranks` in which no rank suspects another. The rank in most suspicions is removed
/// first, of two equal ones the higher; the leader stays.
fn without_suspicions(leader: u32, ranks: Ranks, reports: &[(u32, Report)]) -> Ranks {
    // The ranks that each rank suspects, or that suspect it.
    let mut suspicions: BTreeMap<u32, Ranks> = BTreeMap::new();
    for (rank, report) in reports {
        for suspected in (&report.suspected & &ranks).without(*rank).iter() {
            suspicions.entry(*rank).or_default().insert(suspected);
            suspicions.entry(suspected).or_default().insert(*rank);
        }
    }
    let mut rest = ranks;
    loop {
        let others = suspicions.iter().filter(|&(&rank, _)| rank != leader);
        let worst = others.max_by_key(|&(&rank, found)| (found.len(), rank));
        let Some((&rank, found)) = worst.filter(|(_, found)| !found.is_empty()) else {
            return rest;
        };
        for other in found.clone().iter() {
            suspicions.entry(other).or_default().remove(rank);
        }
        suspicions.remove(&rank);
        rest.remove(rank);
    }
}
