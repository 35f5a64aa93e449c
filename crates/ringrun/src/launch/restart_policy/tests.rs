//! The policy of restarts, end by end.

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
    Trial { now: Instant::now(), policy: RestartPolicy::new(Elastic { min, max, max_restarts: 2 }) }
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
        self.policy.take_due(self.now + Duration::from_secs(seconds))
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
fn a_rank_that_the_others_know_has_ended_fails_no_job_that_is_done() {
    let mut job = trial(1, 3);
    for rank in [1, 2] {
        job.policy.mark_ending(rank);
    }
    // Another one lives that can admit the rank.
    assert_eq!(job.end(1, KILLED), Decision::Restart);
    assert_eq!(job.end(0, WELL), Decision::Ended);
    assert!(job.policy.has_no_members());
    assert_eq!(job.end(2, KILLED), Decision::Ended);
    // The end of a rank is the rank's own, whatever the others know.
    let mut job = trial(1, 3);
    for (rank, end, decision) in
        [(1, WELL, Decision::Ended), (2, RankEnd::Exited(143), Decision::ToldToEnd)]
    {
        job.policy.mark_ending(rank);
        assert_eq!(job.end(rank, end), decision);
    }
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

#[test]
fn ranks_of_a_lost_host_restart_once_it_is_back_and_spend_no_restart_by_waiting() {
    let mut job = trial(1, 4);
    for rank in [2, 3] {
        assert_eq!(job.end(rank, KILLED), Decision::Restart);
        job.policy.set_host(rank, HostState::Lost);
    }
    assert_eq!((job.due(1000), job.policy.next_restart_at()), (None, None));
    assert_eq!(job.policy.awaiting_host(), [2, 3]);
    // These ranks may never come back, and only a member could let them in.
    assert_eq!(job.policy.last_members(), Some(vec![0, 1]));
    for rank in [2, 3] {
        job.policy.set_host(rank, HostState::Reached);
        assert_eq!(job.due(0), Some((rank, StartKind::Rejoin)));
        assert_eq!(job.policy.restarts(rank), (1, 2));
    }
    assert!(job.policy.awaiting_host().is_empty());
    // The members are done before the host is back.
    assert_eq!(job.end_at(StartupStage::Member, 3, KILLED), Decision::Restart);
    job.policy.set_host(3, HostState::Lost);
    for rank in [0, 1] {
        assert_eq!(job.end(rank, WELL), Decision::Ended);
    }
    assert_eq!(job.end(2, WELL), Decision::Ended);
    assert_eq!((job.policy.awaiting_host(), job.policy.cancel_restarts()), (vec![3], vec![3]));
}

#[test]
fn ranks_of_a_host_that_is_lost_for_good_are_given_up() {
    let mut job = trial(1, 5);
    // One was to be started again when the host was lost, two end with the host.
    assert_eq!(job.end(1, KILLED), Decision::Restart);
    for rank in [1, 2, 3] {
        job.policy.set_host(rank, HostState::LostForGood);
    }
    assert_eq!(job.policy.give_up(1), Some((KILLED, Decision::GiveUp)));
    assert_eq!(job.policy.give_up(2), None);
    assert_eq!(job.end(2, KILLED), Decision::GiveUp);
    assert_eq!((job.due(1000), job.policy.awaiting_host()), (None, vec![]));
    // The others can't begin without a rank that they have not met.
    assert_eq!(job.end_at(StartupStage::Silent, 3, KILLED), Decision::StartupFails);
    assert_eq!(job.end_at(StartupStage::Silent, 4, KILLED), Decision::Restart);
    job.policy.set_host(4, HostState::LostForGood);
    assert_eq!(job.policy.give_up(4), Some((KILLED, Decision::StartupFails)));
}

/// The last members are stopped, and the launcher ends them, while a rank waits for its host.
#[test]
fn a_job_whose_last_members_were_stopped_has_failed() {
    let mut job = trial(1, 3);
    assert_eq!(job.end(2, KILLED), Decision::Restart);
    job.policy.set_host(2, HostState::Lost);
    assert_eq!(job.policy.last_members(), Some(vec![0, 1]));
    for rank in [0, 1] {
        assert!(job.policy.mark_left_behind(rank));
    }
    assert_eq!(job.end(0, KILLED), Decision::TooFewRanks(lost(2, KILLED)));
    // With a rank that has ended well the job was done without the stopped one.
    let mut job = trial(1, 3);
    assert_eq!(job.end(2, KILLED), Decision::Restart);
    job.policy.set_host(2, HostState::Lost);
    assert_eq!(job.end(0, WELL), Decision::Ended);
    assert!(job.policy.mark_left_behind(1));
    assert_eq!((job.end(1, KILLED), job.policy.cancel_restarts()), (Decision::Ended, vec![2]));
}
