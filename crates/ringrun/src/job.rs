//! What each event means for the job: a pure state machine, events and the time in, actions out.
//! Touches nothing outside. The law: the first failure decides, and after it everything ends
//! within two graces, whatever the ranks do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::signals::ENDING;

/// From TERM to KILL, and from KILL to giving up on what can't die.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// From the first failing exit status to TERM. A rank that dies takes its sockets with it before
/// its parent hears of it, so that a neighbour may complain and exit first.
pub(crate) const DOUBT: Duration = Duration::from_millis(100);
/// How long processes that outlive their rank may take to finish (`> >(tee log)` does).
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this status.
    Exited(u8),
    /// By a signal.
    Killed {
        /// Its number.
        signal: i32,
        /// Whether a core file was written.
        core: bool,
    },
}

/// Something happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A rank ended.
    Ended {
        /// Which.
        rank: usize,
        /// How.
        end: End,
    },
    /// ringrun got a signal.
    Signal(Signal),
    /// Nothing that the job started is left (asked for only once all ranks have ended).
    Empty,
    /// Time passed: perhaps the deadline.
    Tick,
}

/// Something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this signal to the process groups of the ranks that run.
    Send(Signal),
    /// Stop ringrun itself until it is continued.
    Suspend,
    /// Kill every process that outlived its rank.
    KillLeftovers,
}

/// Why the job ended before all its ranks were done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This rank failed first.
    Failed {
        /// Which.
        rank: usize,
        /// How.
        end: End,
    },
    /// The user ended it.
    Interrupted(Signal),
    /// The time limit did, while these ranks still ran.
    TimedOut(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank exited in failure; is one about to be known that a signal killed before?
    Doubting(Instant),
    /// TERM was sent; KILL follows.
    Ending(Instant),
    /// KILL was sent; there is nothing stronger.
    Killed(Instant),
    /// All ranks have ended, not yet all of what they started.
    Leftovers(Instant),
    LeftoversKilled(Instant),
    Over,
}

/// The state of a job.
#[derive(Debug)]
pub(crate) struct Job {
    running: BTreeSet<usize>,
    phase: Phase,
    limit: Option<Instant>,
    verdict: Option<Verdict>,
    ended: usize,
    killed: usize,
}

impl Job {
    /// A job whose ranks all run.
    pub(crate) fn new(ranks: usize, limit: Option<Instant>) -> Self {
        let running = (0..ranks).collect();
        Self { running, phase: Phase::Running, limit, verdict: None, ended: 0, killed: 0 }
    }

    /// Takes one event; the actions are to be done in order.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Ended { rank, end } => self.ended(now, rank, end),
            Event::Signal(signal) if ENDING.contains(&signal) => self.interrupted(now, signal),
            Event::Signal(Signal::SIGTSTP) => {
                // Whoever is awake after that wants the ranks awake too.
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

    fn ended(&mut self, now: Instant, rank: usize, end: End) -> Vec<Action> {
        if !self.running.remove(&rank) {
            return vec![];
        }
        let mut actions = vec![];
        match (end, self.phase) {
            (End::Exited(0), _) => {}
            (End::Exited(_), Phase::Running) => {
                self.verdict = Some(Verdict::Failed { rank, end });
                self.phase = Phase::Doubting(now + DOUBT);
            }
            (End::Killed { .. }, Phase::Running | Phase::Doubting(_)) => {
                self.verdict = Some(Verdict::Failed { rank, end });
                actions = self.terminate(now);
            }
            // Once the job is ending, who falls falls by our hand.
            _ => {}
        }
        if self.running.is_empty() {
            self.phase = match self.phase {
                Phase::Killed(_) => Phase::Leftovers(now),
                _ => Phase::Leftovers(now + LINGER),
            };
        }
        actions
    }

    fn interrupted(&mut self, now: Instant, signal: Signal) -> Vec<Action> {
        match self.phase {
            Phase::Running => {
                self.verdict = Some(Verdict::Interrupted(signal));
                self.terminate(now)
            }
            Phase::Doubting(_) => self.terminate(now),
            // The second time means: at once.
            Phase::Ending(_) => self.kill(now),
            Phase::Leftovers(_) => self.kill_leftovers(now),
            Phase::Killed(_) | Phase::LeftoversKilled(_) | Phase::Over => vec![],
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.phase {
            Phase::Running if self.limit.is_some_and(|limit| now >= limit) => {
                self.verdict = Some(Verdict::TimedOut(self.running.iter().copied().collect()));
                self.terminate(now)
            }
            Phase::Doubting(deadline) if now >= deadline => self.terminate(now),
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
        self.phase = Phase::Ending(now + GRACE);
        self.ended = self.running.len();
        // A stopped rank can't heed TERM.
        vec![Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]
    }

    fn kill(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::Killed(now + GRACE);
        self.killed = self.running.len();
        vec![Action::Send(Signal::SIGKILL)]
    }

    fn kill_leftovers(&mut self, now: Instant) -> Vec<Action> {
        self.phase = Phase::LeftoversKilled(now + GRACE);
        vec![Action::KillLeftovers]
    }

    /// When to call with [`Event::Tick`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.limit,
            Phase::Doubting(at)
            | Phase::Ending(at)
            | Phase::Killed(at)
            | Phase::Leftovers(at)
            | Phase::LeftoversKilled(at) => Some(at),
            Phase::Over => None,
        }
    }

    /// Whether the only question left is if anything outlived the ranks.
    pub(crate) fn wants_empty(&self) -> bool {
        matches!(self.phase, Phase::Leftovers(_) | Phase::LeftoversKilled(_))
    }

    /// Whether processes that outlive their rank are being killed now.
    pub(crate) fn kills_leftovers(&self) -> bool {
        matches!(self.phase, Phase::LeftoversKilled(_))
    }

    /// This is the first cause, though others were noticed before.
    pub(crate) fn blame(&mut self, rank: usize, end: End) {
        self.verdict = Some(Verdict::Failed { rank, end });
    }

    /// Whether nothing more will happen.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Why it ended early; none if all is well.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// The ranks that haven't ended: at the end of the job, those that couldn't be killed.
    pub(crate) fn running(&self) -> Vec<usize> {
        self.running.iter().copied().collect()
    }

    /// How many ranks still ran when the job was ended.
    pub(crate) fn ended_by_us(&self) -> usize {
        self.ended
    }

    /// How many ranks TERM did not end in time.
    pub(crate) fn killed(&self) -> usize {
        self.killed
    }
}

impl Verdict {
    /// ringrun's exit code: the first failure's, 128 + n for a signal, 124 for the time limit.
    pub(crate) fn exit_code(&self) -> u8 {
        let signal = match self {
            Self::Failed { end: End::Exited(status), .. } => return *status,
            Self::TimedOut(_) => return 124,
            Self::Failed { end: End::Killed { signal, .. }, .. } => *signal,
            Self::Interrupted(signal) => *signal as i32,
        };
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: End = End::Exited(3);
    const TERMINATED: End = End::Killed { signal: 15, core: false };

    fn ended(rank: usize, end: End) -> Event {
        Event::Ended { rank, end }
    }

    fn ending() -> Vec<Action> {
        vec![Action::Send(Signal::SIGTERM), Action::Send(Signal::SIGCONT)]
    }

    #[test]
    fn all_well_is_no_verdict() {
        let (now, mut job) = (Instant::now(), Job::new(2, None));
        assert_eq!(job.handle(now, ended(1, End::Exited(0))), vec![]);
        assert!(!job.wants_empty());
        assert_eq!(job.handle(now, ended(0, End::Exited(0))), vec![]);
        assert!(job.wants_empty() && !job.is_over());
        job.handle(now, Event::Empty);
        assert!(job.is_over() && job.verdict().is_none());
    }

    #[test]
    fn the_first_failure_is_blamed_and_later_victims_are_not() {
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
        assert_eq!(job.deadline(), Some(now + DOUBT));
        assert_eq!(job.handle(now + DOUBT, Event::Tick), ending());
        assert_eq!(job.handle(now, ended(0, TERMINATED)), vec![]);
        assert_eq!(job.handle(now, ended(1, End::Exited(9))), vec![]);
        assert_eq!(job.verdict(), Some(&Verdict::Failed { rank: 2, end: FAILS }));
        assert_eq!(job.verdict().map(Verdict::exit_code), Some(3));
        assert_eq!(job.ended_by_us(), 2);
    }

    #[test]
    fn who_was_killed_is_blamed_before_a_neighbour_that_complained_of_it() {
        let killed = End::Killed { signal: 9, core: false };
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        assert_eq!(job.handle(now, ended(1, FAILS)), vec![]);
        assert_eq!(job.handle(now, ended(2, FAILS)), vec![]);
        job.handle(now, ended(0, killed));
        assert_eq!(job.verdict(), Some(&Verdict::Failed { rank: 0, end: killed }));
        let (now, mut job) = (Instant::now(), Job::new(3, None));
        job.handle(now, ended(1, FAILS));
        assert_eq!(job.handle(now, ended(0, killed)), ending());
        assert_eq!(job.verdict(), Some(&Verdict::Failed { rank: 0, end: killed }));
        job.handle(now, ended(2, End::Killed { signal: 11, core: false }));
        assert_eq!(job.verdict(), Some(&Verdict::Failed { rank: 0, end: killed }));
    }

    #[test]
    fn who_ignores_term_is_killed_after_the_grace_and_given_up_after_another() {
        let (now, mut job) = (Instant::now(), Job::new(2, None));
        job.handle(now, ended(0, TERMINATED));
        assert_eq!(job.deadline(), Some(now + GRACE));
        assert_eq!(job.handle(now + GRACE - Duration::from_millis(1), Event::Tick), vec![]);
        let killed = job.handle(now + GRACE, Event::Tick);
        assert_eq!(killed, vec![Action::Send(Signal::SIGKILL)]);
        assert_eq!((job.killed(), job.is_over()), (1, false));
        job.handle(now + 2 * GRACE, Event::Tick);
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
            job.handle(now, ended(0, End::Killed { signal: 9, core: false }));
            assert_eq!(job.verdict(), Some(&Verdict::Interrupted(signal)));
            assert_eq!(
                job.verdict().map(Verdict::exit_code),
                u8::try_from(128 + signal as i32).ok()
            );
        }
    }

    #[test]
    fn the_time_limit_names_who_still_ran() {
        let now = Instant::now();
        let mut job = Job::new(3, Some(now + GRACE));
        job.handle(now, ended(1, End::Exited(0)));
        assert_eq!(job.handle(now, Event::Tick), vec![]);
        assert_eq!(job.handle(now + GRACE, Event::Tick), ending());
        assert_eq!(job.verdict(), Some(&Verdict::TimedOut(vec![0, 2])));
        assert_eq!(job.verdict().map(Verdict::exit_code), Some(124));
    }

    #[test]
    fn other_signals_are_forwarded_and_a_stop_wakes_all_again() {
        let (now, mut job) = (Instant::now(), Job::new(1, None));
        let sent = job.handle(now, Event::Signal(Signal::SIGUSR1));
        assert_eq!(sent, vec![Action::Send(Signal::SIGUSR1)]);
        let stopped = job.handle(now, Event::Signal(Signal::SIGTSTP));
        assert_eq!(stopped[1..], [Action::Suspend, Action::Send(Signal::SIGCONT)]);
        assert!(job.verdict().is_none());
    }

    #[test]
    fn leftovers_linger_then_die() {
        let (now, mut job) = (Instant::now(), Job::new(1, None));
        job.handle(now, ended(0, End::Exited(0)));
        assert_eq!(job.handle(now, Event::Tick), vec![]);
        assert_eq!(job.handle(now + LINGER, Event::Tick), vec![Action::KillLeftovers]);
        assert!(job.kills_leftovers());
        job.handle(now + LINGER, Event::Empty);
        assert!(job.is_over() && job.verdict().is_none());
    }

    #[test]
    fn a_signal_gives_128_and_its_number() {
        for (signal, code) in [(11, 139), (9, 137), (64, 192)] {
            let end = End::Killed { signal, core: true };
            assert_eq!(Verdict::Failed { rank: 0, end }.exit_code(), code);
        }
    }
}
