//! The ranks of each communicator by their records, as NCCL's RAS sorts them: a rank has data, or
//! is missing since its process does not run, does not answer or has left the communicator.
//! Law: a report is as large as the job, whatever a rank writes into its record.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringreduce::trace::{OperationRecord, State};

use super::super::communicators::{Communicators, Participant, name_of};
use super::super::verdict::{self, FirstCause};
use super::super::{ProcessState, RankStatus};

/// Ranks of all communicators that a report has at most: those of about 16 communicators of a
/// thousand ranks. An answer takes some hundred bytes for each.
const MAX_RANKS: usize = 1 << 14;

pub(super) struct Report<'a> {
    pub(super) all: &'a [RankStatus],
    pub(super) of_job: Communicators<'a>,
    /// The communicators with errors come first, then the largest.
    pub(super) communicators: Vec<Communicator<'a>>,
    /// Communicators for which the report has no room.
    pub(super) left_out: usize,
    /// The cause for which ranks wait, if they do.
    pub(super) cause: Option<FirstCause>,
    /// Hosts that did not answer.
    pub(super) timeouts: usize,
    pub(super) now: u64,
    /// The time that it took to read the records.
    pub(super) duration: Duration,
}

pub(super) struct Communicator<'a> {
    pub(super) key: u64,
    pub(super) name: Option<String>,
    pub(super) size: u64,
    /// The ranks with data, by their numbers in the communicator.
    pub(super) ranks: BTreeMap<u64, Participant<'a>>,
    pub(super) missing: Vec<MissingRank<'a>>,
    /// All missing ranks: `missing` has as many as the job has ranks, at most.
    pub(super) missing_count: u64,
}

pub(super) struct MissingRank<'a> {
    /// The number in the communicator.
    pub(super) rank: u64,
    /// The process, where it is known.
    pub(super) process: Option<&'a RankStatus>,
    /// True if the process may answer, but is no member of the communicator: it has left, or has
    /// not come yet.
    pub(super) has_left: bool,
}

/// The errors of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Errors {
    /// A rank has not answered.
    pub(super) is_incomplete: bool,
    /// A call has failed at a rank.
    pub(super) has_failed: bool,
    /// The ranks have made different numbers of calls, or some have left.
    pub(super) is_mismatch: bool,
}

impl<'a> Report<'a> {
    pub(super) fn of(all: &'a [RankStatus], now: u64, duration: Duration) -> Self {
        let of_job = Communicators::of(all);
        let is_job_silent = all.iter().any(is_silent);
        let communicator = |group| Communicator::of((all, is_job_silent), group);
        // Each communicator is made and dropped for its place in the order, so that memory holds
        // those that fit alone.
        let places = of_job.open_groups().filter_map(|group| {
            let one = communicator(group)?;
            let order = (Reverse(one.errors()), Reverse(one.size), one.hosts().len(), one.key);
            Some((order, one.ranks.len() + one.missing.len(), group))
        });
        let mut places: Vec<_> = places.collect();
        places.sort_unstable_by_key(|(order, ..)| *order);
        let mut room = MAX_RANKS.max(all.len() * 2);
        let fitting = places.iter().map_while(|(_, ranks, group)| {
            room = room.checked_sub(*ranks)?;
            communicator(group)
        });
        let communicators: Vec<_> = fitting.collect();
        let left_out = places.len() - communicators.len();
        let silent = all.iter().filter(|status| !status.is_read).map(|status| &status.host);
        let timeouts = silent.collect::<BTreeSet<_>>().len();
        let cause = verdict::of(all, None, now);
        Self { all, of_job, communicators, left_out, cause, timeouts, now, duration }
    }

    /// The processes of each host.
    pub(super) fn hosts(&self) -> BTreeMap<&'a str, usize> {
        processes_by_host(self.all.iter())
    }
}

impl<'a> Communicator<'a> {
    /// The communicator of these ranks; none of no ranks. The job may have a rank that is silent.
    fn of(
        (all, is_job_silent): (&'a [RankStatus], bool),
        group: &[Participant<'a>],
    ) -> Option<Self> {
        let first = group.first()?.member;
        let size = group.iter().map(|one| one.member.size).max()?;
        let (with_data, without): (Vec<_>, Vec<_>) = group
            .iter()
            .partition(|one| one.member.is_open && one.status.state == ProcessState::Running);
        let by_rank = |ranks: Vec<&Participant<'a>>| {
            ranks.into_iter().map(|one| (one.member.rank, *one)).collect::<BTreeMap<_, _>>()
        };
        let (ranks, without) = (by_rank(with_data), by_rank(without));
        // In the first communicator of a job the ranks have their numbers of the job.
        let is_world = size == all.len() as u64
            && group.iter().all(|one| one.member.rank == one.status.rank as u64);
        let missing = (0..size).filter(|rank| !ranks.contains_key(rank)).map(|rank| {
            if let Some(one) = without.get(&rank) {
                let (process, has_left) = (Some(one.status), !one.member.is_open);
                return MissingRank { rank, process, has_left };
            }
            let at = usize::try_from(rank).ok().filter(|_| is_world);
            let process = at.and_then(|at| all.get(at));
            MissingRank { rank, process, has_left: !process.map_or(is_job_silent, is_silent) }
        });
        let missing: Vec<_> = missing.take(all.len()).collect();
        let missing_count = size.saturating_sub(ranks.len() as u64);
        Some(Self { key: first.key, name: name_of(group), size, ranks, missing, missing_count })
    }

    pub(super) fn errors(&self) -> Errors {
        let mut counts = self.ranks.values().map(Participant::number);
        let first = counts.next();
        let has_left = self.missing.iter().any(|one| one.has_left);
        Errors {
            is_incomplete: self.missing.iter().any(|one| !one.has_left),
            has_failed: self.ranks.values().any(has_failed),
            is_mismatch: has_left || counts.any(|count| Some(count) != first),
        }
    }

    /// The known processes of its ranks by host.
    pub(super) fn hosts(&self) -> BTreeMap<&'a str, usize> {
        let missing = self.missing.iter().filter_map(|one| one.process);
        processes_by_host(self.ranks.values().map(|one| one.status).chain(missing))
    }
}

impl MissingRank<'_> {
    pub(super) fn is_dead(&self) -> bool {
        self.process.is_some_and(|status| matches!(status.state, ProcessState::Ended(_)))
    }
}

/// "INCOMPLETE,ERROR", or "OK".
impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            (self.is_incomplete, "INCOMPLETE"),
            (self.has_failed, "ERROR"),
            (self.is_mismatch, "MISMATCH"),
        ];
        let names: Vec<_> = all.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
        f.pad(&if names.is_empty() { "OK".into() } else { names.join(",") })
    }
}

/// The rank's latest call, if it has failed.
pub(super) fn failed_call<'a>(rank: &Participant<'a>) -> Option<&'a OperationRecord> {
    rank.op.filter(|op| op.state == State::Failed)
}

/// True if the process cannot say what it does.
fn is_silent(status: &RankStatus) -> bool {
    status.state != ProcessState::Running || !status.is_read || status.other_format
}

fn has_failed(rank: &Participant<'_>) -> bool {
    failed_call(rank).is_some()
}

fn processes_by_host<'a>(ranks: impl Iterator<Item = &'a RankStatus>) -> BTreeMap<&'a str, usize> {
    let mut hosts = BTreeMap::new();
    ranks.for_each(|status| *hosts.entry(status.host.as_str()).or_insert(0) += 1);
    hosts
}
