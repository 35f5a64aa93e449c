//! The state of a job as a pure state machine: events and the time go in, actions come out.
//! The clock stands still while the launcher is stopped, so that a job that is continued has the
//! rest of its time.
//! Law: the first failure decides the outcome, and after it everything ends within the grace that
//! the user gives and [`KILL_GRACE`], whatever the ranks do.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::rank_end::RankEnd;
use super::signals::ENDING;
use ringreduce::bootstrap::Instant;

/// The time from SIGTERM to SIGKILL, in which ranks save what they have, as by Slurm.
pub(crate) const DEFAULT_TERM_GRACE: Duration = Duration::from_secs(30);
/// The time from SIGKILL to giving up on a process that can't die.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(5);
/// The time from SIGTERM to a word to the user that ranks have not ended.
const SLOW_END: Duration = Duration::from_secs(3);
/// The time from the first failing exit status to SIGTERM. A killed rank's sockets close before its
/// parent hears of its death, so that a neighbour may fail and exit before.
pub(crate) const FIRST_FAILURE_DELAY: Duration = Duration::from_millis(100);
/// The time that processes have to finish after the last rank has ended (`> >(tee log)` needs it).
pub(crate) const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Ended {
        rank: usize,
        end: RankEnd,
    },
    /// A rank ends the job, as MPI_Abort does.
    Aborted {
        rank: usize,
        code: u8,
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
    /// Send SIGTERM to processes that outlived their rank, but to none that got it with the rank.
    TerminateLeftovers,
    KillLeftovers,
    /// Tell the user that ranks have not ended, and when they will be killed.
    ReportSlowEnd(Duration),
}

/// The ranks that got SIGKILL, and the reason why they got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Killed {
    pub(crate) ranks: Vec<usize>,
    /// The time since SIGTERM.
    pub(crate) after: Duration,
    /// The signal that cut their grace short.
    pub(crate) hurried: Option<Signal>,
}

/// The reason why a job ended before all its ranks were done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobFailure {
    RankFailed {
        rank: usize,
        end: RankEnd,
    },
    /// A rank has ended the job, with this exit code.
    Aborted {
        rank: usize,
        code: u8,
    },
    Interrupted(Signal),
    Host(HostFailure),
    /// The time limit was reached while these ranks still ran.
    TimedOut(Vec<usize>),
}

/// The failure of another host to do its part of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostFailure {
    /// The ranks that are lost with it.
    pub(crate) ranks: Vec<usize>,
    /// A sentence that names the host and the cause.
    pub(crate) what: String,
    pub(crate) exit_code: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank exited in failure; until this time, a rank that was killed before may turn up.
    ConfirmingCause(Instant),
    /// SIGTERM was sent; SIGKILL follows after the grace.
    Ending,
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
    term_grace: Duration,
    failure: Option<JobFailure>,
    /// When SIGTERM was sent.
    terminated: Option<Instant>,
    is_slow_end_reported: bool,
    ended: usize,
    killed: Option<Killed>,
}

impl Job {
    /// The state of a job all of whose ranks run.
    pub(crate) fn new(ranks: usize, limit: Option<Instant>, term_grace: Duration) -> Self {
        Self {
            running: (0..ranks).collect(),
            phase: Phase::Running,
            limit,
            term_grace,
            failure: None,
            terminated: None,
            is_slow_end_reported: false,
            ended: 0,
            killed: None,
        }
    }

    /// Takes one event, and gives the actions to do in their order.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Ended { rank, end } => self.ended(now, rank, end),
            Event::Aborted { rank, code } => {
                self.aborted(now, rank, code);
                vec![]
            }
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
                // MPI ends a rank that has aborted the job by a signal.
                let has_aborted = matches!(&self.failure,
                    Some(JobFailure::Aborted { rank: by, .. }) if *by == rank);
                if !has_aborted {
                    self.failure = Some(JobFailure::RankFailed { rank, end });
                }
                actions = self.terminate(now);
            }
            // While the job ends, ringrun itself ends the ranks.
            _ => {}
        }
        self.look_for_leftovers(now, &mut actions);
        actions
    }

    /// Begins to look for leftovers, if all ranks have ended.
    fn look_for_leftovers(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.running.is_empty() {
            return;
        }
        let grace_ends = self.terminated.map_or(now, |since| since + self.term_grace);
        self.phase = match self.phase {
            Phase::Killed(_) => Phase::Leftovers(now),
            // The program of a rank may be the child of a shell that SIGTERM has ended.
            _ => Phase::Leftovers(grace_ends.max(now + LEFTOVER_GRACE)),
        };
        if self.terminated.is_some() {
            actions.push(Action::TerminateLeftovers);
        }
    }

    /// Takes the loss of the last ranks of another host, which can't be told to end any more.
    pub(crate) fn fail_host(&mut self, now: Instant, failure: HostFailure) -> Vec<Action> {
        let before = self.running.len();
        self.running.retain(|rank| !failure.ranks.contains(rank));
        if self.running.len() == before {
            return vec![];
        }
        let mut actions = vec![];
        if matches!(self.phase, Phase::Running | Phase::ConfirmingCause(_)) {
            self.failure = Some(JobFailure::Host(failure));
            actions = self.terminate(now);
        }
        self.look_for_leftovers(now, &mut actions);
        actions
    }

    /// A rank may abort the job because of one that was killed, whose end turns up a little later.
    fn aborted(&mut self, now: Instant, rank: usize, code: u8) {
        if self.phase == Phase::Running {
            self.failure = Some(JobFailure::Aborted { rank, code });
            self.phase = Phase::ConfirmingCause(now + FIRST_FAILURE_DELAY);
        }
    }

    fn interrupted(&mut self, now: Instant, signal: Signal) -> Vec<Action> {
        match self.phase {
            Phase::Running => {
                self.failure = Some(JobFailure::Interrupted(signal));
                self.terminate(now)
            }
            Phase::ConfirmingCause(_) => self.terminate(now),
            // A second signal skips the rest of the grace period.
            Phase::Ending => self.kill(now, Some(signal)),
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
            Phase::Ending if self.grace_left(now).is_zero() => self.kill(now, None),
            Phase::Leftovers(deadline) if now >= deadline => self.kill_leftovers(now),
            Phase::Killed(deadline) | Phase::LeftoversKilled(deadline) if now >= deadline => {
                self.phase = Phase::Over;
                vec![]
            }
            Phase::Ending | Phase::Leftovers(_) if self.slow_end().is_some_and(|at| now >= at) => {
                self.is_slow_end_reported = true;
                vec![Action::ReportSlowEnd(self.grace_left(now))]
            }
            _ => vec![],
        }
    }

    /// The rest of the time from SIGTERM to SIGKILL.
    fn grace_left(&self, now: Instant) -> Duration {
        let end = self.terminated.map_or(now, |since| since + self.term_grace);
        end.saturating_duration_since(now)
    }

    /// When to tell the user that the job takes long to end.
    fn slow_end(&self) -> Option<Instant> {
        self.terminated.filter(|_| !self.is_slow_end_reported).map(|since| since + SLOW_END)
    }

    fn terminate(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::Ending;
        self.terminated = Some(now);
        let aborter = match self.failure {
            Some(JobFailure::Aborted { rank, .. }) => Some(rank),
            _ => None,
        };
        self.ended = self.running.iter().filter(|rank| Some(**rank) != aborter).count();
        // A stopped rank receives SIGTERM only once it is continued.
        vec![Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]
    }

    fn kill(&mut self, now: Instant, hurried: Option<Signal>) -> Vec<Action> {
        self.phase = Phase::Killed(now + KILL_GRACE);
        let after = self.term_grace.saturating_sub(self.grace_left(now));
        self.killed = Some(Killed { ranks: self.running(), after, hurried });
        vec![Action::Send(Signal::SIGKILL)]
    }

    fn kill_leftovers(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::LeftoversKilled(now + KILL_GRACE);
        vec![Action::KillLeftovers]
    }

    /// The latest time for the next [`Event::Tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.limit,
            Phase::Ending => {
                let kill = self.terminated.map(|since| since + self.term_grace);
                kill.into_iter().chain(self.slow_end()).min()
            }
            Phase::Leftovers(at) => Some(self.slow_end().map_or(at, |slow| slow.min(at))),
            Phase::ConfirmingCause(at) | Phase::Killed(at) | Phase::LeftoversKilled(at) => Some(at),
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

    /// Names the first cause of a failure, which ends the job also where the rank that ended last
    /// has exited with status 0: the other ranks may be stopped, and would never end.
    pub(crate) fn set_cause(&mut self, now: Instant, rank: usize, end: RankEnd) {
        self.failure = Some(JobFailure::RankFailed { rank, end });
        if self.phase == Phase::Running {
            self.phase = Phase::ConfirmingCause(now + FIRST_FAILURE_DELAY);
        }
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

    /// The ranks that SIGTERM did not end in time.
    pub(crate) fn killed(&self) -> Option<&Killed> {
        self.killed.as_ref()
    }
}

impl JobFailure {
    /// ringrun's exit code: the status of the rank, or the code that it asked for, 128 + n for
    /// signal n, 124 for the time limit. It is never 0: a rank that exited with status 0 after the
    /// others had left it behind is the cause of a failure too, if too few ranks are left.
    pub(crate) fn exit_code(&self) -> u8 {
        let signal = match self {
            Self::RankFailed { end: RankEnd::Exited(status), .. } => return (*status).max(1),
            Self::Aborted { code, .. } => return *code,
            Self::Host(failure) => return failure.exit_code,
            Self::TimedOut(_) => return 124,
            Self::RankFailed { end: RankEnd::Killed { signal, .. }, .. } => *signal,
            Self::Interrupted(signal) => *signal as i32,
        };
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests;
