//! The communicators of a job, from the records of all ranks: the ranks that belong to each, and
//! the call that each rank is in there.
//! Law: every record is read once, however many communicators there are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ringreduce::trace::{CommunicatorRecord, OperationRecord, State};

use super::RankStatus;
use super::wording::{is_running, seconds};
use crate::launch::message::name_ranks;

/// Communicators with a line of their own: as many as fit on a screen beside the lines of ranks.
const MAX_LINES: usize = 16;

/// A rank of a communicator, with its latest collective there.
#[derive(Clone, Copy)]
pub(super) struct Participant<'a> {
    pub(super) status: &'a RankStatus,
    pub(super) op: Option<&'a OperationRecord>,
    pub(super) member: &'a CommunicatorRecord,
}

impl Participant<'_> {
    pub(super) fn number(&self) -> u64 {
        self.op.map_or(0, |op| op.sequence)
    }

    /// True if the rank is in the call with this number, or was in it when the call failed.
    pub(super) fn is_in(&self, number: u64) -> bool {
        self.op.is_some_and(|op| op.sequence == number && op.state != State::Done)
    }

    pub(super) fn waited(&self, now: u64) -> u64 {
        self.op.map_or(0, |op| {
            let until = if op.state == State::Failed { op.end } else { now };
            until.saturating_sub(op.start)
        })
    }
}

/// The number of the latest call that a rank is in.
pub(super) fn latest(participants: &[Participant<'_>]) -> Option<u64> {
    let inside = participants.iter().filter(|participant| participant.is_in(participant.number()));
    inside.map(Participant::number).max()
}

/// All communicators of a job.
pub(super) struct Communicators<'a> {
    /// By key: the ranks that belong to it, or did.
    groups: BTreeMap<u64, Vec<Participant<'a>>>,
    /// The rank in the job by the communicator's key and the rank there.
    ranks: BTreeMap<(u64, u64), usize>,
}

impl<'a> Communicators<'a> {
    pub(super) fn of(all: &'a [RankStatus]) -> Self {
        let (mut groups, mut ranks) = (BTreeMap::new(), BTreeMap::new());
        for status in all {
            for (key, participant) in participants(status) {
                groups.entry(key).or_insert_with(Vec::new).push(participant);
            }
            let records = status.record.iter().flat_map(|record| &record.communicators);
            for member in records.flatten() {
                ranks.entry((member.key, member.rank)).or_insert(status.rank);
            }
        }
        Self { groups, ranks }
    }

    /// The ranks of the communicators that a rank still has.
    pub(super) fn open_groups(&self) -> impl Iterator<Item = &[Participant<'a>]> {
        self.groups().filter(|group| group.iter().any(|one| one.member.is_open))
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &[Participant<'a>]> {
        self.groups.values().map(Vec::as_slice)
    }

    /// The rank in the job of a communicator's rank.
    pub(super) fn job_rank(&self, key: u64, rank: u64) -> Option<usize> {
        self.ranks.get(&(key, rank)).copied()
    }

    /// A line for each communicator with a call that is under way or has failed, those that waited
    /// longest first, and the number of the others. Nothing if there is one communicator, of which
    /// the lines of ranks tell all.
    pub(super) fn lines(&self, now: u64) -> Vec<String> {
        let open: Vec<_> = self.open_groups().collect();
        if open.len() < 2 {
            return vec![];
        }
        let mut busy: Vec<_> = open.iter().filter_map(|group| busy_line(group, now)).collect();
        busy.sort_by_key(|(waited, _)| Reverse(*waited));
        let (idle, more) = (open.len() - busy.len(), busy.len().saturating_sub(MAX_LINES));
        let mut lines: Vec<_> = busy.into_iter().map(|(_, line)| line).take(MAX_LINES).collect();
        match more {
            0 => {}
            1 => lines.push("1 more communicator has a call under way or failed".into()),
            more => {
                lines.push(format!("{more} more communicators have a call under way or failed"))
            }
        }
        match idle {
            0 => {}
            1 => lines.push("1 other communicator has no call under way".into()),
            idle => lines.push(format!("{idle} other communicators have no call under way")),
        }
        lines
    }
}

/// The name of a communicator at the first rank that gives it one.
pub(super) fn name_of(group: &[Participant<'_>]) -> Option<String> {
    let mut names = group.iter().map(|one| one.member.name);
    names.find(|name| !name.is_empty()).map(|name| name.to_string())
}

/// The rank's part in each of its communicators.
fn participants(status: &RankStatus) -> BTreeMap<u64, Participant<'_>> {
    let Some(record) = &status.record else { return BTreeMap::new() };
    let mut participants = BTreeMap::new();
    for member in record.communicators.iter().flatten() {
        let participant = Participant { status, op: None, member };
        participants.entry(member.key).or_insert(participant);
    }
    for op in record.ops.iter().filter(|op| !op.is_message) {
        let member = op.communicator.and_then(|at| record.communicators.get(at)?.as_ref());
        if let Some(participant) = member.and_then(|member| participants.get_mut(&member.key))
            && participant.op.is_none_or(|latest| latest.sequence <= op.sequence)
        {
            participant.op = Some(op);
        }
    }
    participants
}

/// "communicator \"experts\" (ranks 0-3): all_reduce #12 under way at ranks 0-2 for 30.0 s", and
/// the wait in nanoseconds, if a call is under way there or has failed.
fn busy_line(group: &[Participant<'_>], now: u64) -> Option<(u64, String)> {
    let number = latest(group)?;
    let inside = || group.iter().filter(|participant| participant.is_in(number));
    let name = name_of(group).map_or(String::new(), |name| format!(" {name:?}"));
    let ranks = |of: &mut dyn Iterator<Item = &Participant<'_>>| {
        of.map(|participant| participant.status.rank).collect::<Vec<_>>()
    };
    let (all, op) = (name_ranks(&ranks(&mut group.iter())), inside().find_map(|it| it.op)?);
    let is_under_way = |it: &&Participant<'_>| it.op.is_some_and(is_running);
    let running = ranks(&mut inside().filter(is_under_way));
    let failed = ranks(&mut inside().filter(|it| !is_under_way(it)));
    let waited = inside().map(|it| it.waited(now)).max().unwrap_or_default();
    let since = seconds(waited);
    let mut states = vec![];
    if !running.is_empty() {
        states.push(format!("under way at {} for {since}", name_ranks(&running)));
    }
    if !failed.is_empty() {
        states.push(format!("failed at {}", name_ranks(&failed)));
    }
    let (call, states) = (op.code.name(), states.join(", "));
    Some((waited, format!("communicator{name} ({all}): {call} #{number} {states}")))
}
