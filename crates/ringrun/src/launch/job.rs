//! The state of a job as a pure state machine: events and the time go in, actions come out.
//! Law: the first failure decides the outcome, and after it everything ends within twice
//! [`TERM_GRACE`], whatever the ranks do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::signals::ENDING;

/// The time from SIGTERM to SIGKILL, and from SIGKILL to giving up on a process that can't die.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(5);
/// The time from the first failing exit status to SIGTERM. A killed rank's sockets close before its
/// parent hears of its death, so that a neighbour may fail and exit before.
pub(crate) const FIRST_FAILURE_DELAY: Duration = Duration::from_millis(100);
/// The time that processes have to finish after the last rank has ended (`> >(tee log)` needs it).
pub(crate) const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankEnd {
    Exited(u8),
    Killed { signal: i32, core: bool },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Ended {
        rank: usize,
        end: RankEnd,
    },
    Signal(Signal),
    /// No process of the job is left; looked for only once all ranks have ended.
    Empty,
    /// Time has passed, perhaps the deadline.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this signal to the process groups of the ranks that run.
    Send(Signal),
    /// Stop ringrun itself until it is continued.
    Suspend,
    KillLeftovers,
}

/// The reason why a job ended before all its ranks were done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobFailure {
    RankFailed {
        rank: usize,
        end: RankEnd,
    },
    Interrupted(Signal),
    /// The time limit was reached while these ranks still ran.
    TimedOut(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank exited in failure; until this time, a rank that was killed before may turn up.
    ConfirmingCause(Instant),
    /// SIGTERM was sent; SIGKILL follows at this time.
    Ending(Instant),
    /// SIGKILL was sent; ranks that survive it until this time are given up.
    Killed(Instant),
    /// All ranks have ended, but not all processes that they started.
    Leftovers(Instant),
    LeftoversKilled(Instant),
    Over,
}

#[derive(Debug)]
pub(crate) struct Job {
    running: BTreeSet<usize>,
    phase: Phase,
    limit: Option<Instant>,
    failure: Option<JobFailure>,
    ended: usize,
    killed: usize,
}

impl Job {
    /// The state of a job all of whose ranks run.
    pub(crate) fn new(ranks: usize, limit: Option<Instant>) -> Self {
        let running = (0..ranks).collect();
        Self { running, phase: Phase::Running, limit, failure: None, ended: 0, killed: 0 }
    }

    /// Takes one event, and gives the actions to do in their order.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Ended { rank, end } => self.ended(now, rank, end),
            Event::Signal(signal) if ENDING.contains(&signal) => self.interrupted(now, signal),
            Event::Signal(Signal::SIGTSTP) => {
                // Once ringrun is continued, the ranks are continued too.
                vec![Action::Send(Signal::SIGTSTP), Action::Suspend, Action::Send(Signal::SIGCONT)]
            }
            Event::Signal(signal) => vec![Action::Send(signal)],
            Event::Empty => {
                if self.wants_empty() {
                    self.phase = Phase::Over;
                }
                vec![]
            }
            Event::Tick => self.tick(now),
        }
    }

    fn ended(&mut self, now: Instant, rank: usize, end: RankEnd) -> Vec<Action> {
        if !self.running.remove(&rank) {
            return vec![];
        }
        let mut actions = vec![];
        match (end, self.phase) {
            (RankEnd::Exited(0), _) => {}
            (RankEnd::Exited(_), Phase::Running) => {
                self.failure = Some(JobFailure::RankFailed { rank, end });
                self.phase = Phase::ConfirmingCause(now + FIRST_FAILURE_DELAY);
            }
            (RankEnd::Killed { .. }, Phase::Running | Phase::ConfirmingCause(_)) => {
                self.failure = Some(JobFailure::RankFailed { rank, end });
                actions = self.terminate(now);
            }
            // While the job ends, ringrun itself ends the ranks.
            _ => {}
        }
        if self.running.is_empty() {
            self.phase = match self.phase {
                Phase::Killed(_) => Phase::Leftovers(now),
                _ => Phase::Leftovers(now + LEFTOVER_GRACE),
            };
        }
        actions
    }

    fn interrupted(&mut self, now: Instant, signal: Signal) -> Vec<Action> {
        match self.phase {
            Phase::Running => {
                self.failure = Some(JobFailure::Interrupted(signal));
                self.terminate(now)
            }
            Phase::ConfirmingCause(_) => self.terminate(now),
            // A second signal skips the rest of the grace period.
            Phase::Ending(_) => self.kill(now),
            Phase::Leftovers(_) => self.kill_leftovers(now),
            Phase::Killed(_) | Phase::LeftoversKilled(_) | Phase::Over => vec![],
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.phase {
            Phase::Running if self.limit.is_some_and(|limit| now >= limit) => {
                self.failure = Some(JobFailure::TimedOut(self.running.iter().copied().collect()));
                self.terminate(now)
            }
            Phase::ConfirmingCause(deadline) if now >= deadline => self.terminate(now),
            Phase::Ending(deadline) if now >= deadline => self.kill(now),
            Phase::Leftovers(deadline) if now >= deadline => self.kill_leftovers(now),
            Phase::Killed(deadline) | Phase::LeftoversKilled(deadline) if now >= deadline => {
                self.phase = Phase::Over;
                vec![]
            }
            _ => vec![],
        }
    }

    fn terminate(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::Ending(now + TERM_GRACE);
        self.ended = self.running.len();
        // A stopped rank receives SIGTERM only once it is continued.
        vec![Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]
    }

    fn kill(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::Killed(now + TERM_GRACE);
        self.killed = self.running.len();
        vec![Action::Send(Signal::SIGKILL)]
    }

    fn kill_leftovers(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::LeftoversKilled(now + TERM_GRACE);
        vec![Action::KillLeftovers]
    }

    /// The latest time for the next [`Event::Tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.limit,
            Phase::ConfirmingCause(at)
            | Phase::Ending(at)
            | Phase::Killed(at)
            | Phase::Leftovers(at)
            | Phase::LeftoversKilled(at) => Some(at),
            Phase::Over => None,
        }
    }

    /// True if all ranks have ended, and only processes that they left behind may still run.
    pub(crate) fn wants_empty(&self) -> bool {
        matches!(self.phase, Phase::Leftovers(_) | Phase::LeftoversKilled(_))
    }

    /// True while processes that outlived their rank are being killed.
    pub(crate) fn kills_leftovers(&self) -> bool {
        matches!(self.phase, Phase::LeftoversKilled(_))
    }

    /// Names the first cause, where other failures were noticed before.
    pub(crate) fn set_cause(&mut self, rank: usize, end: RankEnd) {
        self.failure = Some(JobFailure::RankFailed { rank, end });
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// None as long as all is well.
    pub(crate) fn failure(&self) -> Option<&JobFailure> {
        self.failure.as_ref()
    }

    /// The ranks that have not ended: at the end of the job, the ones that can't be killed.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.running.iter().copied().collect()
    }

    /// The number of ranks that still ran when the job was ended.
    pub(crate) fn ended_by_us(&self) -> usize {
        self.ended
    }

    /// The number of ranks that SIGTERM did not end in time.
    pub(crate) fn killed(&self) -> usize {
        self.killed
    }
}

impl JobFailure {
    /// ringrun's exit code: the status of the rank, 128 + n for signal n, 124 for the time limit.
    pub(crate) fn exit_code(&self) -> u8 {
        let signal = match self {
            Self::RankFailed { end: RankEnd::Exited(status), .. } => return *status,
            Self::TimedOut(_) => return 124,
            Self::RankFailed { end: RankEnd::Killed { signal, .. }, .. } => *signal,
            Self::Interrupted(signal) => *signal as i32,
        };
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
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
        let (now, mut job) = (Instant::now(), Job::new(2, None));
        assert_eq!(job.handle(now, ended(1, RankEnd::Exited(0))), vec![]);
        assert!(!job.wants_empty());
        assert_eq!(job.handle(now, ended(0, RankEnd::Exited(0))), vec![]);
        assert!(job.wants_empty() && !job.is_over());
        job.handle(now, Event::Empty);
        assert!(job.is_over() && job.failure().is_none());
    }

    #[test]
    fn the_first_failure_is_the_cause_and_ranks_ended_by_ringrun_are_not() {
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
        assert_eq!(job.deadline(), Some(now + FIRST_FAILURE_DELAY));
        assert_eq!(job.handle(now + FIRST_FAILURE_DELAY, Event::Tick), ending());
        assert_eq!(job.handle(now, ended(0, TERMINATED)), vec![]);
        assert_eq!(job.handle(now, ended(1, RankEnd::Exited(9))), vec![]);
        assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 2, end: FAILS }));
        assert_eq!(job.failure().map(JobFailure::exit_code), Some(3));
        assert_eq!(job.ended_by_us(), 2);
    }

    #[test]
    fn a_killed_rank_is_the_cause_though_a_neighbour_failed_before_it_was_seen() {
        let killed = RankEnd::Killed { signal: 9, core: false };
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        assert_eq!(job.handle(now, ended(1, FAILS)), vec![]);
        assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
        job.handle(now, ended(0, killed));
        assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        job.handle(now, ended(1, FAILS));
        assert_eq!(job.handle(now, ended(0, killed)), ending());
        assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
        job.handle(now, ended(2, RankEnd::Killed { signal: 11, core: false }));
        assert_eq!(job.failure(), Some(&JobFailure::RankFailed { rank: 0, end: killed }));
    }

    #[test]
    fn a_rank_that_ignores_sigterm_is_killed_after_the_grace_and_given_up_after_another() {
        let (now, mut job) = (Instant::now(), Job::new(2, None));
        job.handle(now, ended(0, TERMINATED));
        assert_eq!(job.deadline(), Some(now + TERM_GRACE));
        assert_eq!(job.handle(now + TERM_GRACE - Duration::from_millis(1), Event::Tick), vec![]);
        let killed = job.handle(now + TERM_GRACE, Event::Tick);
        assert_eq!(killed, vec![Action::Send(Signal::SIGKILL)]);
        assert_eq!((job.killed(), job.is_over()), (1, false));
        job.handle(now + 2 * TERM_GRACE, Event::Tick);
        assert!(job.is_over());
        assert_eq!(job.running(), vec![1]);
    }

    #[test]
    fn a_second_interrupt_kills_at_once() {
        for signal in ENDING {
            let (now, mut job) = (Instant::now(), Job::new(2, None));
            assert_eq!(job.handle(now, Event::Signal(signal)), ending());
            let killed = job.handle(now, Event::Signal(Signal::SIGINT));
            assert_eq!(killed, vec![Action::Send(Signal::SIGKILL)]);
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
        let mut job = Job::new(3, Some(now + TERM_GRACE));
        job.handle(now, ended(1, RankEnd::Exited(0)));
        assert_eq!(job.handle(now, Event::Tick), vec![]);
        assert_eq!(job.handle(now + TERM_GRACE, Event::Tick), ending());
        assert_eq!(job.failure(), Some(&JobFailure::TimedOut(vec![0, 2])));
        assert_eq!(job.failure().map(JobFailure::exit_code), Some(124));
    }

    #[test]
    fn other_signals_are_forwarded_and_a_stop_wakes_all_again() {
        let (now, mut job) = (Instant::now(), Job::new(1, None));
        let sent = job.handle(now, Event::Signal(Signal::SIGUSR1));
        assert_eq!(sent, vec![Action::Send(Signal::SIGUSR1)]);
        let stopped = job.handle(now, Event::Signal(Signal::SIGTSTP));
        assert_eq!(stopped[1..], [Action::Suspend, Action::Send(Signal::SIGCONT)]);
        assert!(job.failure().is_none());
    }

    #[test]
    fn leftovers_are_killed_after_their_grace() {
        let (now, mut job) = (Instant::now(), Job::new(1, None));
        job.handle(now, ended(0, RankEnd::Exited(0)));
        assert_eq!(job.handle(now, Event::Tick), vec![]);
        assert_eq!(job.handle(now + LEFTOVER_GRACE, Event::Tick), vec![Action::KillLeftovers]);
        assert!(job.kills_leftovers());
        job.handle(now + LEFTOVER_GRACE, Event::Empty);
        assert!(job.is_over() && job.failure().is_none());
    }
}
