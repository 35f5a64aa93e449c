//! What a leader proposes. May touch: message, ranks. Law: the same reports make the same value,
//! and what a report says was accepted is proposed again, the highest ballot's.

use super::message::{Kind, Recovery, Report, Value};
use super::ranks::Ranks;

/// The value that `leader` proposes on the reports of all that take part, its own among them.
pub(super) fn choose(leader: u32, kind: Kind, members: Ranks, reports: &[(u32, Report)]) -> Value {
    let accepted = reports.iter().filter_map(|(_, report)| report.accepted);
    if let Some((_, value)) = accepted.max_by_key(|(ballot, _)| *ballot) {
        return value;
    }
    let all = || reports.iter().map(|(_, report)| report);
    let answered: Ranks = reports.iter().map(|&(rank, _)| rank).collect();
    let done = || all().map(|report| report.done);
    let recovery = match kind {
        // Whoever returned `Ok` knew that all had the result: so it is in this minimum.
        Kind::Settle => {
            let full = all().map(|report| report.full).min().unwrap_or(0);
            Recovery { low: full, high: full }
        }
        Kind::Agree | Kind::Change => {
            Recovery { low: done().min().unwrap_or(0), high: done().max().unwrap_or(0) }
        }
    };
    let mut value = Value {
        kind,
        members: answered,
        joined: Ranks::NONE,
        flags: all().fold(u64::MAX, |flags, report| flags & report.call.flags),
        recovery,
        cause: all().filter_map(|report| report.cause).reduce(|one, other| one.better(other)),
    };
    if kind == Kind::Change {
        let gone = all().fold(Ranks::NONE, |gone, report| gone | report.gone);
        let common = all().map(|report| report.call.joiners).reduce(|one, other| one & other);
        value.joined = common.unwrap_or_default() - members - gone;
        value.members = connected(leader, answered, reports) | value.joined;
    }
    value
}

/// Does one of those that reported doubt another?
pub(super) fn quarrel(reports: &[(u32, Report)]) -> bool {
    let ranks: Ranks = reports.iter().map(|&(rank, _)| rank).collect();
    reports.iter().any(|(_, report)| !(report.doubted & ranks).is_empty())
}

/// Those of `ranks` that do not doubt each other. Whoever is in most quarrels goes first, of two
/// the higher rank; the leader stays.
fn connected(leader: u32, ranks: Ranks, reports: &[(u32, Report)]) -> Ranks {
    let mut kept = ranks;
    loop {
        let quarrels = |rank: u32| {
            let others = reports.iter().filter(|&&(other, _)| kept.contains(other));
            let doubted = |report: &Report| (report.doubted & kept).without(rank);
            others.fold(Ranks::NONE, |found, (other, report)| match *other {
                other if other == rank => found | doubted(report),
                other if report.doubted.contains(rank) => found | Ranks::from_iter([other]),
                _ => found,
            })
        };
        let worst = kept.without(leader).iter().max_by_key(|&rank| (quarrels(rank).len(), rank));
        match worst {
            Some(rank) if !quarrels(rank).is_empty() => kept = kept.without(rank),
            _ => return kept,
        }
    }
}
