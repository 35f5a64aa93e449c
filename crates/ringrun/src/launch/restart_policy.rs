//! `--elastic`: which lost ranks are started again, when, and what a loss means for the job.
//! A pure state machine without input or output. Laws: the job goes on while at least `min` ranks
//! are left and one of them can admit others; no rank is restarted more than `max_restarts` times,
//! or after it has ended as a signal told it to, or while its host is lost; no rank waits where
//! its host is not sought and no other one has a free slot.

use std::time::Duration;

use super::rank_end::RankEnd;
use super::spawn::StartKind;
use crate::cli::elastic::Elastic;
use ringreduce::bootstrap::{Instant, StartupStage};

/// The longest pause before a rank that was not admitted is started again.
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(32);

/// The exit statuses of a program that ends because SIGINT or SIGTERM told it to, as those of
/// shells: the user wants its end.
const TOLD_TO_END: [u8; 2] = [128 + 2, 128 + 15];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// The rank runs and belongs to the job, or is one of the first that will form it.
    Member,
    /// The rank was restarted and waits for the members to admit it.
    Joining,
    /// The rank runs, but the members have evicted it.
    LeftBehind,
    RestartDue(Instant, StartKind),
    /// The rank has exited well, or will not be needed any more.
    Ended,
    GivenUp,
}

/// Whether ranks can be started on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    Reached,
    /// The host may come back, or another one may have a slot for the rank.
    Lost,
    /// The host has joined by itself, so that nobody can start a rank there again, and no host has
    /// free slots.
    LostForGood,
}

#[derive(Clone, Copy, Debug)]
struct RankState {
    membership: Membership,
    restarts: usize,
    /// Restarts in a row that ended before the rank was admitted.
    failed_joins: u32,
    /// The restart of a rank waits for its host, however long the host is lost.
    host: HostState,
    /// The others go on without the rank, which has ended by all that they know.
    is_ending: bool,
}

/// The launcher's reaction to the end of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Count the rank as ended well.
    Ended,
    /// Restart the rank; the policy knows when.
    Restart,
    /// Go on without the rank.
    GiveUp,
    /// Go on without the rank, which the user has told to end.
    ToldToEnd,
    /// End the job: the other ranks would wait for this one to start.
    StartupFails,
    /// End the job: fewer than `min` ranks are left. The cause is the first loss not made good.
    TooFewRanks(LostRank),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostRank {
    pub(crate) rank: usize,
    pub(crate) end: RankEnd,
    /// Its process at the time: "rank 2 (pid 4711, host a)".
    pub(crate) label: String,
}

/// The restart policy of one job, with the state of each of its ranks.
#[derive(Debug)]
pub(crate) struct RestartPolicy {
    pub(crate) elastic: Elastic,
    ranks: Vec<RankState>,
    /// Ranks that were lost and have not been admitted again, in the order of their ends.
    lost: Vec<LostRank>,
}

impl RestartPolicy {
    /// The policy of a job that has just started all of its ranks.
    pub(crate) fn new(elastic: Elastic) -> Self {
        let rank = RankState {
            membership: Membership::Member,
            restarts: 0,
            failed_joins: 0,
            host: HostState::Reached,
            is_ending: false,
        };
        Self { elastic, ranks: vec![rank; elastic.max], lost: vec![] }
    }

    /// The ranks that run and wait to be admitted.
    pub(crate) fn joining(&self) -> Vec<usize> {
        self.ranks_where(|membership| membership == Membership::Joining)
    }

    /// Records that the host of a rank is lost, or is back.
    pub(crate) fn set_host(&mut self, rank: usize, host: HostState) {
        self.ranks[rank].host = host;
    }

    /// True if no rank can be started on the host of this one again.
    pub(crate) fn is_host_gone(&self, rank: usize) -> bool {
        self.ranks[rank].host == HostState::LostForGood
    }

    /// Gives up a rank whose restart was due on a host that is lost for good: the end of its last
    /// process, and what that means for the job.
    pub(crate) fn give_up(&mut self, rank: usize) -> Option<(RankEnd, Decision)> {
        let Membership::RestartDue(_, start) = self.ranks[rank].membership else { return None };
        self.ranks[rank].membership = Membership::GivenUp;
        let decision = match start {
            StartKind::Rejoin => Decision::GiveUp,
            StartKind::First | StartKind::Retry => Decision::StartupFails,
        };
        let lost = self.lost.iter().find(|lost| lost.rank == rank)?;
        Some((lost.end, decision))
    }

    /// True if the rank runs, or may be started again.
    pub(crate) fn may_run(&self, rank: usize) -> bool {
        !matches!(self.ranks[rank].membership, Membership::Ended | Membership::GivenUp)
    }

    /// The ranks that are restarted once their host is back, or another one has a slot.
    pub(crate) fn awaiting_host(&self) -> Vec<usize> {
        let mut waiting = self.ranks_where(|it| matches!(it, Membership::RestartDue(..)));
        waiting.retain(|&rank| self.ranks[rank].host != HostState::Reached);
        waiting
    }

    /// The ranks that run and belong to the job.
    fn members(&self) -> Vec<usize> {
        self.ranks_where(|membership| membership == Membership::Member)
    }

    /// The members, if no other rank becomes one again by itself: one whose host is lost may not.
    pub(crate) fn last_members(&self) -> Option<Vec<usize>> {
        let comes_back = |state: &RankState| match state.membership {
            Membership::Joining => true,
            Membership::RestartDue(..) => state.host == HostState::Reached,
            _ => false,
        };
        let members = self.members();
        let are_last = !members.is_empty() && !self.ranks.iter().any(comes_back);
        are_last.then_some(members)
    }

    /// True if no rank runs that could admit others.
    pub(crate) fn has_no_members(&self) -> bool {
        self.members().into_iter().all(|rank| self.ranks[rank].is_ending)
    }

    /// Records that the members have admitted a rank.
    pub(crate) fn admit(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        (state.membership, state.failed_joins) = (Membership::Member, 0);
        self.lost.retain(|lost| lost.rank != rank);
    }

    /// Records that the members have evicted a rank. True if that is news of a running rank.
    pub(crate) fn mark_left_behind(&mut self, rank: usize) -> bool {
        let membership = &mut self.ranks[rank].membership;
        // The rank was a member, though the launcher may not yet know that it was admitted.
        let runs = matches!(membership, Membership::Member | Membership::Joining);
        if runs {
            *membership = Membership::LeftBehind;
        }
        runs
    }

    /// Records that the others go on without a rank that has ended, before the launcher sees that.
    pub(crate) fn mark_ending(&mut self, rank: usize) {
        self.ranks[rank].is_ending = true;
    }

    /// Records that a rank has ended after it had come as far as `stage`.
    pub(crate) fn end(&mut self, now: Instant, stage: StartupStage, lost: LostRank) -> Decision {
        let (rank, end) = (lost.rank, lost.end);
        let was = self.ranks[rank].membership;
        let apart = matches!(was, Membership::Joining | Membership::LeftBehind);
        // The first ranks know each other only once all of them have met.
        let met = apart || stage == StartupStage::Member;
        let well = end == RankEnd::Exited(0) && was != Membership::LeftBehind;
        let is_alone = (apart || self.ranks[rank].is_ending) && self.has_no_members();
        // Without a rank that has ended well the job is not done: its last members were stopped.
        let is_done = !self.ranks_where(|it| it == Membership::Ended).is_empty();
        self.ranks[rank].is_ending = false;
        if well || is_alone && is_done {
            self.ranks[rank].membership = Membership::Ended;
            return Decision::Ended;
        }
        self.ranks[rank].membership = Membership::GivenUp;
        self.lost.push(lost);
        if !met && stage == StartupStage::Connecting {
            return Decision::StartupFails;
        }
        let left =
            self.ranks_where(|it| matches!(it, Membership::Member | Membership::Ended)).len();
        if left < self.elastic.min || self.has_no_members() {
            return self.too_few_ranks();
        }
        // The launcher itself ends a rank that the others have left behind.
        let is_told = was != Membership::LeftBehind
            && matches!(end, RankEnd::Exited(status) if TOLD_TO_END.contains(&status));
        let state = &mut self.ranks[rank];
        let is_last = state.restarts == self.elastic.max_restarts;
        if is_told || is_last || state.host == HostState::LostForGood {
            return match (met, is_told) {
                (false, _) => Decision::StartupFails,
                (true, false) => Decision::GiveUp,
                (true, true) => Decision::ToldToEnd,
            };
        }
        state.restarts += 1;
        // A rank that had been admitted is restarted at once.
        state.failed_joins = if stage == StartupStage::Member { 0 } else { state.failed_joins + 1 };
        let pause = match state.failed_joins {
            0 => Duration::ZERO,
            often => LONGEST_RESTART_DELAY.min(Duration::from_secs(1 << (often - 1).min(5))),
        };
        let start = if met { StartKind::Rejoin } else { StartKind::Retry };
        state.membership = Membership::RestartDue(now + pause, start);
        Decision::Restart
    }

    /// The decision to end the job, blaming the first rank that was killed, or else the first lost.
    pub(crate) fn too_few_ranks(&self) -> Decision {
        let killed = |lost: &&LostRank| matches!(lost.end, RankEnd::Killed { .. });
        let first = self.lost.iter().find(killed).or(self.lost.first());
        first.cloned().map_or(Decision::Ended, Decision::TooFewRanks)
    }

    /// The number of times that a rank was restarted, and the most that are allowed.
    pub(crate) fn restarts(&self, rank: usize) -> (usize, usize) {
        (self.ranks[rank].restarts, self.elastic.max_restarts)
    }

    /// Takes a rank whose restart is due: the caller starts it.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(usize, StartKind)> {
        let can_start = |(_, state): &(usize, &RankState)| state.host == HostState::Reached;
        let due = |(rank, state): (usize, &RankState)| match state.membership {
            Membership::RestartDue(at, start) if at <= now => Some((rank, start)),
            _ => None,
        };
        let (rank, start) = self.ranks.iter().enumerate().filter(can_start).find_map(due)?;
        self.ranks[rank].membership = if start == StartKind::Rejoin {
            Membership::Joining
        } else {
            self.lost.retain(|lost| lost.rank != rank);
            Membership::Member
        };
        Some((rank, start))
    }

    /// When the next restart is due.
    pub(crate) fn next_restart_at(&self) -> Option<Instant> {
        let due = |state: &RankState| match state.membership {
            Membership::RestartDue(at, _) if state.host == HostState::Reached => Some(at),
            _ => None,
        };
        self.ranks.iter().filter_map(due).min()
    }

    /// Cancels all restarts, and gives the ranks that were due.
    pub(crate) fn cancel_restarts(&mut self) -> Vec<usize> {
        let due = self.ranks_where(|it| matches!(it, Membership::RestartDue(..)));
        due.iter().for_each(|&rank| self.ranks[rank].membership = Membership::Ended);
        due
    }

    fn ranks_where(&self, is: impl Fn(Membership) -> bool) -> Vec<usize> {
        (0..self.ranks.len()).filter(|&rank| is(self.ranks[rank].membership)).collect()
    }
}

#[cfg(test)]
mod tests;
