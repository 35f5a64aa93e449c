//! `--elastic`: which lost ranks are started again, when, and what a loss means for the job.
//! A pure state machine without input or output. Laws: the job goes on while at least `min` ranks
//! are left and one of them can admit others; no rank is restarted more than `max_restarts` times,
//! or after it has ended as a signal told it to.

use std::time::Duration;

use super::job::RankEnd;
use super::spawn::StartKind;
use crate::failure::Failure;
use ringreduce::bootstrap::{Instant, StartupStage};

pub(crate) const DEFAULT_MAX_RESTARTS: usize = 3;
/// The longest pause before a rank that was not admitted is started again.
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(32);

/// The exit statuses of a program that ends because SIGINT or SIGTERM told it to, as those of
/// shells: the user wants its end.
const TOLD_TO_END: [u8; 2] = [128 + 2, 128 + 15];

/// The value of `--elastic MIN:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The fewest ranks with which the job goes on.
    pub(crate) min: usize,
    /// The number of ranks at the start.
    pub(crate) max: usize,
}

impl std::str::FromStr for Bounds {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let bounds = word
            .split_once(':')
            .and_then(|(min, max)| Some(Self { min: min.parse().ok()?, max: max.parse().ok()? }));
        bounds.filter(|it| 1 <= it.min && it.min <= it.max).ok_or_else(|| {
            "expected MIN:MAX, such as 2:4: numbers of ranks, at least 1, MIN at most MAX".into()
        })
    }
}

/// Checks that `--elastic`, `--max-restarts` and the number of ranks agree.
pub(crate) fn check(
    bounds: Option<Bounds>,
    ranks: usize,
    restarts: Option<usize>,
) -> Result<(), Failure> {
    match bounds {
        None if restarts.is_some_and(|most| most > 0) => {
            Err(Failure::Usage("--max-restarts is for jobs with --elastic MIN:MAX".into()))
        }
        Some(Bounds { min, max }) if ranks != max => Err(Failure::Usage(format!(
            "--elastic {min}:{max} with {ranks} ranks: the job begins with MAX of them, and \
             none are added later"
        ))),
        _ => Ok(()),
    }
}

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

#[derive(Clone, Copy, Debug)]
struct RankState {
    membership: Membership,
    restarts: usize,
    /// Restarts in a row that ended before the rank was admitted.
    failed_joins: u32,
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
    min: usize,
    max_restarts: usize,
    ranks: Vec<RankState>,
    /// Ranks that were lost and have not been admitted again, in the order of their ends.
    lost: Vec<LostRank>,
}

impl RestartPolicy {
    /// The policy of a job all of whose ranks have just been started.
    pub(crate) fn new(bounds: Bounds, max_restarts: usize) -> Self {
        let rank = RankState { membership: Membership::Member, restarts: 0, failed_joins: 0 };
        Self { min: bounds.min, max_restarts, ranks: vec![rank; bounds.max], lost: vec![] }
    }

    /// The ranks that run and wait to be admitted.
    pub(crate) fn joining(&self) -> Vec<usize> {
        self.ranks_where(|membership| membership == Membership::Joining)
    }

    /// The ranks that run and belong to the job.
    pub(crate) fn members(&self) -> Vec<usize> {
        self.ranks_where(|membership| membership == Membership::Member)
    }

    /// True if no rank runs that could admit others.
    pub(crate) fn has_no_members(&self) -> bool {
        self.members().is_empty()
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

    /// Records that a rank has ended, which had come as far as `stage`.
    pub(crate) fn end(&mut self, now: Instant, stage: StartupStage, lost: LostRank) -> Decision {
        let (rank, end) = (lost.rank, lost.end);
        let was = self.ranks[rank].membership;
        let apart = matches!(was, Membership::Joining | Membership::LeftBehind);
        // The first ranks know each other only once all of them have met.
        let met = apart || stage == StartupStage::Member;
        let well = end == RankEnd::Exited(0) && was != Membership::LeftBehind;
        if well || apart && self.has_no_members() {
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
        if left < self.min || self.has_no_members() {
            return self.too_few_ranks();
        }
        // The launcher itself ends a rank that the others have left behind.
        let is_told = was != Membership::LeftBehind
            && matches!(end, RankEnd::Exited(status) if TOLD_TO_END.contains(&status));
        let state = &mut self.ranks[rank];
        if is_told || state.restarts == self.max_restarts {
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
        (self.ranks[rank].restarts, self.max_restarts)
    }

    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(usize, StartKind)> {
        let due = |(rank, state): (usize, &RankState)| match state.membership {
            Membership::RestartDue(at, start) if at <= now => Some((rank, start)),
            _ => None,
        };
        let (rank, start) = self.ranks.iter().enumerate().find_map(due)?;
        self.ranks[rank].membership = if start == StartKind::Rejoin {
            Membership::Joining
        } else {
            self.lost.retain(|lost| lost.rank != rank);
            Membership::Member
        };
        Some((rank, start))
    }

    pub(crate) fn next_restart_at(&self) -> Option<Instant> {
        let due = |state: &RankState| match state.membership {
            Membership::RestartDue(at, _) => Some(at),
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
mod tests {
    use super::*;

    const KILLED: RankEnd = RankEnd::Killed { signal: 9, core: false };
    const WELL: RankEnd = RankEnd::Exited(0);

    fn lost(rank: usize, end: RankEnd) -> LostRank {
        LostRank { rank, end, label: format!("rank {rank}") }
    }

    /// A policy with at most two restarts of each rank, and one time at which everything happens.
    struct Trial {
        now: Instant,
        policy: RestartPolicy,
    }

    fn trial(min: usize, max: usize) -> Trial {
        Trial { now: Instant::now(), policy: RestartPolicy::new(Bounds { min, max }, 2) }
    }

    impl Trial {
        /// Ends a member, or a rank that waits to be admitted.
        fn end(&mut self, rank: usize, end: RankEnd) -> Decision {
            let joining = self.policy.joining().contains(&rank);
            self.end_at(
                if joining { StartupStage::Connecting } else { StartupStage::Member },
                rank,
                end,
            )
        }

        fn end_at(&mut self, stage: StartupStage, rank: usize, end: RankEnd) -> Decision {
            self.policy.end(self.now, stage, lost(rank, end))
        }

        /// The rank that is restarted after so many seconds.
        fn due(&mut self, seconds: u64) -> Option<(usize, StartKind)> {
            self.policy.next_due(self.now + Duration::from_secs(seconds))
        }
    }

    #[test]
    fn bounds_are_checked() {
        assert_eq!("2:4".parse(), Ok(Bounds { min: 2, max: 4 }));
        assert_eq!("1:1".parse(), Ok(Bounds { min: 1, max: 1 }));
        for wrong in ["", "2", "0:4", "5:4", "a:b", "2:", ":2", "-1:2", "1:2:3"] {
            assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_admitted_rank_restarts_at_once_and_others_after_a_growing_pause() {
        let mut job = trial(1, 2);
        assert_eq!(job.end(1, KILLED), Decision::Restart);
        assert_eq!((job.due(0), job.due(0)), (Some((1, StartKind::Rejoin)), None));
        assert_eq!(job.policy.joining(), [1]);
        // The second end comes before the rank is admitted.
        assert_eq!(job.end(1, RankEnd::Exited(1)), Decision::Restart);
        assert_eq!(job.due(0), None);
        assert_eq!(job.policy.next_restart_at(), Some(job.now + Duration::from_secs(1)));
        assert_eq!(job.due(1), Some((1, StartKind::Rejoin)));
        assert_eq!(job.end(1, KILLED), Decision::GiveUp);
        assert_eq!(job.end(0, WELL), Decision::Ended);
    }

    #[test]
    fn with_too_few_ranks_left_the_first_unreplaced_loss_is_the_cause() {
        let mut job = trial(3, 4);
        assert_eq!(job.end(2, RankEnd::Exited(3)), Decision::Restart);
        assert_eq!(job.due(0), Some((2, StartKind::Rejoin)));
        job.policy.admit(2);
        assert_eq!(job.end(1, RankEnd::Exited(4)), Decision::Restart);
        let first = Decision::TooFewRanks(lost(1, RankEnd::Exited(4)));
        assert_eq!(job.end(0, RankEnd::Exited(1)), first);
        // A killed rank is the cause, though others failed before it was seen.
        assert_eq!(job.end(3, KILLED), Decision::TooFewRanks(lost(3, KILLED)));
    }

    #[test]
    fn joining_ranks_end_well_when_no_member_is_left_to_admit_them() {
        let mut job = trial(1, 3);
        for rank in [1, 2] {
            assert_eq!(job.end(rank, KILLED), Decision::Restart);
        }
        assert_eq!(job.due(0), Some((1, StartKind::Rejoin)));
        assert_eq!(job.end(0, WELL), Decision::Ended);
        assert!(job.policy.has_no_members());
        assert_eq!(job.policy.cancel_restarts(), [2]);
        assert_eq!(job.end(1, KILLED), Decision::Ended);
        // The job fails if the last member was lost.
        let mut job = trial(1, 2);
        job.end(1, KILLED);
        assert!(matches!(job.end(0, RankEnd::Exited(7)), Decision::TooFewRanks(_)));
    }

    #[test]
    fn an_evicted_rank_restarts_unless_the_members_are_done() {
        let mut job = trial(2, 3);
        assert!(job.policy.mark_left_behind(1) && !job.policy.mark_left_behind(1));
        assert_eq!(job.end(1, KILLED), Decision::Restart);
        assert_eq!(job.due(0), Some((1, StartKind::Rejoin)));
        job.policy.admit(1);
        // However rank 2 ends; the second time it was admitted and evicted unseen by the launcher.
        for end in [WELL, KILLED] {
            assert!(job.policy.mark_left_behind(2));
            assert_eq!(job.end(2, end), Decision::Restart);
            assert_eq!(job.due(0), Some((2, StartKind::Rejoin)));
        }
        assert!(job.policy.mark_left_behind(2));
        for rank in [0, 1] {
            assert_eq!(job.end(rank, WELL), Decision::Ended);
        }
        assert_eq!(job.end(2, KILLED), Decision::Ended);
        // Without the evicted rank too few are left.
        let mut job = trial(3, 3);
        assert!(job.policy.mark_left_behind(1));
        assert_eq!(job.end(1, KILLED), Decision::TooFewRanks(lost(1, KILLED)));
    }

    #[test]
    fn a_rank_that_was_told_to_end_is_not_started_again() {
        let (interrupted, terminated) = (RankEnd::Exited(130), RankEnd::Exited(143));
        let mut job = trial(1, 4);
        assert_eq!(job.end(1, interrupted), Decision::ToldToEnd);
        assert_eq!(job.end(2, terminated), Decision::ToldToEnd);
        assert_eq!(job.policy.next_restart_at(), None);
        // The launcher has told this one.
        assert!(job.policy.mark_left_behind(3));
        assert_eq!(job.end(3, terminated), Decision::Restart);
        // All others have ended: so has the job, with the first one's status.
        assert_eq!(job.end(0, interrupted), Decision::TooFewRanks(lost(1, interrupted)));
        let mut job = trial(1, 2);
        assert_eq!(job.end_at(StartupStage::Silent, 1, interrupted), Decision::StartupFails);
    }

    #[test]
    fn before_all_ranks_have_met_only_a_silent_rank_is_started_again() {
        let mut job = trial(1, 3);
        assert_eq!(job.end_at(StartupStage::Silent, 1, KILLED), Decision::Restart);
        assert_eq!((job.due(0), job.due(1)), (None, Some((1, StartKind::Retry))));
        assert_eq!((job.policy.joining(), job.policy.has_no_members()), (vec![], false));
        assert_eq!(job.end_at(StartupStage::Connecting, 2, KILLED), Decision::StartupFails);
        assert_eq!(job.end_at(StartupStage::Silent, 1, KILLED), Decision::Restart);
        assert_eq!(job.due(1), None);
        assert!(job.due(3).is_some());
        assert_eq!(job.end_at(StartupStage::Silent, 1, KILLED), Decision::StartupFails);
        assert_eq!(job.end_at(StartupStage::Connecting, 1, WELL), Decision::Ended);
    }
}
