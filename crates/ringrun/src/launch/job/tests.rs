//! The state machine of a job, event by event.

use super::*;

const FAILS: RankEnd = RankEnd::Exited(3);
const TERMINATED: RankEnd = RankEnd::Killed { signal: 15, core: false };

fn ended(rank: usize, end: RankEnd) -> Event {
    Event::Ended { rank, end }
}

fn ending() -> Vec<Action> {
    vec![Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]
}

#[test]
fn a_job_whose_ranks_all_exit_with_0_has_not_failed() {
    let (now, mut job) = (Instant::now(), Job::new(2, None, DEFAULT_TERM_GRACE));
    assert_eq!(job.handle(now, ended(1, RankEnd::Exited(0))), vec![]);
    assert!(!job.wants_empty());
    assert_eq!(job.handle(now, ended(0, RankEnd::Exited(0))), vec![]);
    assert!(job.wants_empty() && !job.is_over());
    job.handle(now, Event::Empty);
    assert!(job.is_over() && job.failure().is_none());
}

#[test]
fn the_first_failure_is_the_cause_and_ranks_ended_by_ringrun_are_not() {
    let (now, mut job) = (Instant::now(), Job::new(3, None, DEFAULT_TERM_GRACE));
    assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
    assert_eq!(job.deadline(), Some(now + FIRST_FAILURE_DELAY));
    assert_eq!(job.handle(now + FIRST_FAILURE_DELAY, Event::Tick), ending());
    assert_eq!(job.handle(now, ended(0, TERMINATED)), vec![]);
    let last = job.handle(now, ended(1, RankEnd::Exited(9)));
    assert_eq!(last, vec![Action::TerminateLeftovers]);
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 2, end: FAILS }));
    assert_eq!(job.failure().map(JobFailure::exit_code), Some(3));
    assert_eq!(job.ended_by_us(), 2);
}

#[test]
fn a_killed_rank_is_the_cause_though_a_neighbour_failed_before_it_was_seen() {
    let killed = RankEnd::Killed { signal: 9, core: false };
    let (now, mut job) = (Instant::now(), Job::new(3, None, DEFAULT_TERM_GRACE));
    assert_eq!(job.handle(now, ended(1, FAILS)), vec![]);
    assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
    job.handle(now, ended(0, killed));
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
    let (now, mut job) = (Instant::now(), Job::new(3, None, DEFAULT_TERM_GRACE));
    job.handle(now, ended(1, FAILS));
    assert_eq!(job.handle(now, ended(0, killed)), ending());
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
    job.handle(now, ended(2, RankEnd::Killed { signal: 11, core: false }));
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_the_grace_and_given_up_after_another() {
    let (now, mut job) = (Instant::now(), Job::new(2, None, DEFAULT_TERM_GRACE));
    job.handle(now, ended(0, TERMINATED));
    let grace = DEFAULT_TERM_GRACE;
    let [before, at] = [grace - Duration::from_millis(1), grace].map(|since| now + since);
    assert_eq!(job.deadline(), Some(now + SLOW_END));
    let said = vec![Action::ReportSlowEnd(grace - SLOW_END)];
    assert_eq!(job.handle(now + SLOW_END, Event::Tick), said);
    assert_eq!(job.deadline(), Some(at));
    assert_eq!(job.handle(before, Event::Tick), vec![]);
    assert_eq!(job.handle(at, Event::Tick), vec![Action::Send(Signal::SIGKILL)]);
    let killed = Killed { ranks: vec![1], after: grace, hurried: None };
    assert_eq!((job.killed(), job.is_over()), (Some(&killed), false));
    job.handle(at + KILL_GRACE, Event::Tick);
    assert!(job.is_over());
    assert_eq!(job.running(), vec![1]);
}

#[test]
fn a_second_interrupt_kills_at_once() {
    for signal in ENDING {
        let (now, mut job) = (Instant::now(), Job::new(2, None, DEFAULT_TERM_GRACE));
        assert_eq!(job.handle(now, Event::Signal(signal)), ending());
        let killed = job.handle(now, Event::Signal(Signal::SIGINT));
        assert_eq!(killed, vec![Action::Send(Signal::SIGKILL)]);
        let hurried = job.killed().and_then(|killed| killed.hurried);
        assert_eq!(hurried, Some(Signal::SIGINT));
        job.handle(now, ended(0, RankEnd::Killed { signal: 9, core: false }));
        assert_eq!(job.failure(), Some(&JobFailure::Interrupted(signal)));
        assert_eq!(
            job.failure().map(JobFailure::exit_code),
            u8::try_from(128 + signal as i32).ok()
        );
    }
}

#[test]
fn the_time_limit_names_the_ranks_that_still_ran() {
    let now = Instant::now();
    let mut job = Job::new(3, Some(now + KILL_GRACE), DEFAULT_TERM_GRACE);
    job.handle(now, ended(1, RankEnd::Exited(0)));
    assert_eq!(job.handle(now, Event::Tick), vec![]);
    assert_eq!(job.handle(now + KILL_GRACE, Event::Tick), ending());
    assert_eq!(job.failure(), Some(&JobFailure::TimedOut(vec![0, 2])));
    assert_eq!(job.failure().map(JobFailure::exit_code), Some(124));
}

#[test]
fn other_signals_are_forwarded_and_a_stop_wakes_all_again() {
    let (now, mut job) = (Instant::now(), Job::new(1, None, DEFAULT_TERM_GRACE));
    let sent = job.handle(now, Event::Signal(Signal::SIGUSR1));
    assert_eq!(sent, vec![Action::Send(Signal::SIGUSR1)]);
    let stopped = job.handle(now, Event::Signal(Signal::SIGTSTP));
    assert_eq!(stopped[1..], [Action::Suspend, Action::Send(Signal::SIGCONT)]);
    assert!(job.failure().is_none());
}

#[test]
fn leftovers_are_killed_after_their_grace() {
    let (now, mut job) = (Instant::now(), Job::new(1, None, DEFAULT_TERM_GRACE));
    job.handle(now, ended(0, RankEnd::Exited(0)));
    assert_eq!(job.handle(now, Event::Tick), vec![]);
    assert_eq!(job.handle(now + LEFTOVER_GRACE, Event::Tick), vec![Action::KillLeftovers]);
    assert!(job.kills_leftovers());
    job.handle(now + LEFTOVER_GRACE, Event::Empty);
    assert!(job.is_over() && job.failure().is_none());
}

#[test]
fn the_program_of_a_shell_that_ended_has_the_whole_grace() {
    let (now, mut job) = (Instant::now(), Job::new(2, None, DEFAULT_TERM_GRACE));
    assert_eq!(job.handle(now, Event::Signal(Signal::SIGTERM)), ending());
    assert_eq!(job.handle(now, ended(0, TERMINATED)), vec![]);
    assert_eq!(job.handle(now, ended(1, TERMINATED)), vec![Action::TerminateLeftovers]);
    let said = vec![Action::ReportSlowEnd(DEFAULT_TERM_GRACE - SLOW_END)];
    assert_eq!(job.handle(now + SLOW_END, Event::Tick), said);
    assert_eq!(job.deadline(), Some(now + DEFAULT_TERM_GRACE));
    let killed = job.handle(now + DEFAULT_TERM_GRACE, Event::Tick);
    assert_eq!(killed, vec![Action::KillLeftovers]);
}

#[test]
fn an_abort_ends_the_job_unless_a_rank_has_failed_before() {
    let abort = Event::Aborted { rank: 1, code: 7 };
    let aborted = JobFailure::Aborted { rank: 1, code: 7 };
    let now = Instant::now();
    for aborter_ends in [false, true] {
        let mut job = Job::new(3, None, DEFAULT_TERM_GRACE);
        assert_eq!(job.handle(now, abort), vec![]);
        assert_eq!(job.handle(now, Event::Aborted { rank: 2, code: 8 }), vec![]);
        if aborter_ends {
            job.handle(now, ended(1, FAILS));
        }
        assert_eq!(job.handle(now + FIRST_FAILURE_DELAY, Event::Tick), ending());
        assert_eq!((job.failure(), job.ended_by_us()), (Some(&aborted), 2));
        assert_eq!(job.failure().map(JobFailure::exit_code), Some(7));
    }
    // MPI ends the rank by a signal.
    let mut job = Job::new(3, None, DEFAULT_TERM_GRACE);
    job.handle(now, abort);
    assert_eq!(job.handle(now, ended(1, TERMINATED)), ending());
    assert_eq!(job.failure(), Some(&aborted));
    // A rank aborts the job because another one has failed, or was killed and turns up later.
    let mut job = Job::new(3, None, DEFAULT_TERM_GRACE);
    job.handle(now, ended(2, FAILS));
    assert_eq!(job.handle(now, abort), vec![]);
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 2, end: FAILS }));
    let mut job = Job::new(3, None, DEFAULT_TERM_GRACE);
    job.handle(now, abort);
    assert_eq!(job.handle(now, ended(0, TERMINATED)), ending());
    assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: TERMINATED }));
}

#[test]
fn a_lost_host_ends_the_job_and_its_ranks_are_not_awaited() {
    let now = Instant::now();
    let lost = |ranks: &[usize]| HostFailure {
        ranks: ranks.to_vec(),
        what: "host h1 was lost".into(),
        exit_code: 1,
    };
    let mut job = Job::new(3, None, DEFAULT_TERM_GRACE);
    let actions = job.fail_host(now, lost(&[1, 2]));
    assert_eq!(actions, [Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]);
    assert_eq!((job.running(), job.ended_by_us()), (vec![0], 1));
    job.handle(now, Event::Ended { rank: 0, end: RankEnd::Exited(0) });
    job.handle(now, Event::Empty);
    assert!(job.is_over());
    assert_eq!(job.failure().map(JobFailure::exit_code), Some(1));

    // Ranks that had ended before leave nothing to lose.
    let mut job = Job::new(2, None, DEFAULT_TERM_GRACE);
    job.handle(now, Event::Ended { rank: 1, end: RankEnd::Exited(0) });
    assert_eq!(job.fail_host(now, lost(&[])), []);
    assert_eq!(job.failure(), None);

    // A job that ends has its cause already.
    let mut job = Job::new(2, None, DEFAULT_TERM_GRACE);
    job.handle(now, Event::Signal(Signal::SIGINT));
    job.fail_host(now, lost(&[1]));
    assert_eq!(job.failure(), Some(&JobFailure::Interrupted(Signal::SIGINT)));
    assert_eq!(job.running(), [0]);
}

/// Rank 2 was lost before, rank 0 exits with status 0, and rank 1 is stopped.
#[test]
fn a_cause_ends_the_job_however_the_last_rank_has_ended() {
    let killed = RankEnd::Killed { signal: 9, core: false };
    for (rank, end, code) in [(2, killed, 137), (0, RankEnd::Exited(0), 1)] {
        let (now, mut job) = (Instant::now(), Job::new(3, None, DEFAULT_TERM_GRACE));
        assert_eq!(job.handle(now, ended(0, RankEnd::Exited(0))), vec![]);
        job.set_cause(now, rank, end);
        assert_eq!(job.deadline(), Some(now + FIRST_FAILURE_DELAY));
        assert_eq!(job.handle(now + FIRST_FAILURE_DELAY, Event::Tick), ending());
        for stopped in [1, 2] {
            job.handle(now, ended(stopped, TERMINATED));
        }
        job.handle(now, Event::Empty);
        assert!(job.is_over());
        assert_eq!(job.failure().map(JobFailure::exit_code), Some(code));
    }
}
