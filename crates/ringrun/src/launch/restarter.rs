//! `--elastic` in the launcher's loop: restarts ranks, and ends those that no member will admit.
//! Law: without `--elastic` nothing here happens.

use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};

use super::Running;
use super::job::{Event, KILL_GRACE, RankEnd};
use super::message::describe_end;
use super::rank::Rank;
use super::restart_policy::{Bounds, Decision, LostRank, RestartPolicy};
use super::spawn::{Spawner, StartKind};
use super::terminal::Terminal;
use ringreduce::bootstrap::{Instant, StartupStage};

pub(super) struct Restarter<'a> {
    policy: RestartPolicy,
    spawner: &'a Spawner<'a>,
    /// When evicted ranks, and joining ranks of a job that ends, get SIGKILL. They got SIGTERM.
    killed_at: Vec<(Instant, usize)>,
    /// The rank whose loss ended the job.
    pub(super) cause: Option<LostRank>,
}

impl<'a> Restarter<'a> {
    pub(super) fn new((bounds, restarts): (Bounds, usize), spawner: &'a Spawner<'a>) -> Self {
        Self {
            policy: RestartPolicy::new(bounds, restarts),
            spawner,
            killed_at: vec![],
            cause: None,
        }
    }
}

/// Why a job whose loss leaves too few ranks ends.
fn why_too_few(
    policy: &RestartPolicy,
    elastic: Option<(Bounds, usize)>,
    all_stopped: bool,
) -> String {
    match elastic {
        _ if all_stopped => "all ranks that are left are stopped".into(),
        Some((Bounds { min, max }, _)) if !policy.has_no_members() => {
            format!("fewer than {min} ranks are left (--elastic {min}:{max})")
        }
        _ => "no rank is left that another one could come back to".into(),
    }
}

impl Running<'_> {
    /// The latest time at which the loop must look at the job again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let own = self.restarter.as_ref().map(|it| {
            let next_kill_at = it.killed_at.iter().map(|(at, _)| *at).min();
            [it.policy.next_restart_at(), next_kill_at]
        });
        let terminal = self.terminal.as_ref().and_then(Terminal::deadline);
        let others = [self.job.deadline(), self.next_look_for_stopped(), terminal];
        own.into_iter().flatten().chain(others).flatten().min()
    }

    /// The members go on without a rank that the launcher ends.
    pub(super) fn mark_left_behind(&mut self, rank: usize) {
        if let Some(restarter) = &mut self.restarter {
            restarter.policy.mark_left_behind(rank);
        }
    }

    /// Tells the job that a rank has ended, unless the job goes on without it.
    pub(super) fn rank_ended(&mut self, rank: usize, end: RankEnd) {
        if let Some(restarter) = &self.restarter {
            restarter.spawner.store.process_pending();
            self.update_membership();
        }
        let Some(restarter) = self.restarter.as_mut().filter(|_| self.job.failure().is_none())
        else {
            // A signal of the launcher itself is no cause of the failure.
            let is_sent = |it: &Restarter<'_>| it.killed_at.iter().any(|(_, sent)| *sent == rank);
            let end = match self.restarter.as_ref().is_some_and(is_sent) {
                true => RankEnd::Exited(0),
                false => end,
            };
            return self.handle(Event::Ended { rank, end });
        };
        let ended = &self.ranks[rank];
        let (label, stage) = (ended.label(), ended.progress.stage());
        let lost = LostRank { rank, end, label: label.clone() };
        let policy = &mut restarter.policy;
        let mut decision = policy.end(Instant::now(), stage, lost);
        restarter.killed_at.retain(|(_, killed)| *killed != rank);
        let all_stopped =
            matches!(decision, Decision::GiveUp | Decision::ToldToEnd | Decision::Ended)
                && !policy.has_no_members()
                && policy.joining().is_empty()
                && policy.next_restart_at().is_none()
                && policy.members().iter().all(|rank| self.ranks[*rank].is_stopped());
        if all_stopped {
            // No process is left that could continue the stopped ones.
            decision = policy.too_few_ranks();
        }
        let (restarts, most) = policy.restarts(rank);
        let how = describe_end(end);
        let why = why_too_few(policy, self.request.elastic, all_stopped);
        let well = Event::Ended { rank, end: RankEnd::Exited(0) };
        match decision {
            Decision::Ended => self.handle(well),
            Decision::Restart => {
                // The orphans of the rank hold what its next process needs.
                let group = ended.pid();
                self.end_orphans(Signal::SIGKILL, |process| process.group == group);
                self.request.warn(&format!(
                    "{label} {how}; it is started again ({restarts} of {most} times)"
                ));
            }
            Decision::GiveUp => {
                self.request.warn(&format!(
                    "{label} {how}; it is not started again (--max-restarts {most}), and the \
                     others go on without it"
                ));
                self.handle(well);
            }
            Decision::ToldToEnd => {
                self.request.warn(&format!(
                    "{label} {how}, as after a signal that told it to end: it is not started \
                     again, and the others go on without it"
                ));
                self.handle(well);
            }
            Decision::StartupFails => {
                self.request.warn(&format!(
                    "{label} {how} before all ranks had met: the others can't begin without it"
                ));
                self.handle(Event::Ended { rank, end });
            }
            Decision::TooFewRanks(cause) => {
                self.request.warn(&format!(
                    "{label} {how}; {why}, so the job ends and no rank is started again"
                ));
                self.handle(Event::Ended { rank, end });
                self.blame(cause, rank);
            }
        }
    }

    /// Names the first cause of the end of a job, which came with the end of `last`.
    fn blame(&mut self, cause: LostRank, last: usize) {
        if cause.rank != last {
            self.job.set_cause(cause.rank, cause.end);
            self.diagnosis = self.job.failure().and_then(|why| self.status.diagnosis(why));
        }
        if let Some(restarter) = &mut self.restarter {
            restarter.cause = Some(cause);
        }
    }

    /// Records which ranks were admitted, and ends those that the members have evicted: they can
    /// do nothing more for the job, and may be stopped for ever.
    fn update_membership(&mut self) {
        let Some(restarter) = &mut self.restarter else { return };
        for rank in restarter.policy.joining() {
            if self.ranks[rank].progress.stage() == StartupStage::Member {
                restarter.policy.admit(rank);
            }
        }
        while let Some(pid) = restarter.spawner.store.next_evicted_pid() {
            let Ok(group) = getpgid(Some(Pid::from_raw(pid.cast_signed()))) else { continue };
            let leads =
                |rank: &Rank| !rank.has_ended() && rank.pid() == group.as_raw().cast_unsigned();
            let Some(at) = self.ranks.iter().position(leads) else { continue };
            if restarter.policy.mark_left_behind(at) {
                let rank = &self.ranks[at];
                self.request
                    .warn(&format!("{} was left behind by the others and is ended", rank.label()));
                rank.terminate();
                restarter.killed_at.push((Instant::now() + KILL_GRACE, at));
            }
        }
    }

    /// Restarts the ranks that are due; once the job ends, ends those that were not admitted.
    pub(super) fn restart_due_ranks(&mut self) -> io::Result<()> {
        self.update_membership();
        let Some(restarter) = &mut self.restarter else { return Ok(()) };
        let now = Instant::now();
        for (_, rank) in restarter.killed_at.extract_if(.., |(at, _)| *at <= now) {
            self.ranks[rank].signal(Signal::SIGKILL);
        }
        let no_members = restarter.policy.has_no_members();
        if no_members || self.job.failure().is_some() {
            let cancelled = restarter.policy.cancel_restarts();
            for rank in restarter.policy.joining() {
                if restarter.killed_at.iter().all(|(_, killed)| *killed != rank) {
                    if no_members {
                        self.ranks[rank].terminate();
                    }
                    restarter.killed_at.push((now + KILL_GRACE, rank));
                }
            }
            for rank in cancelled {
                self.handle(Event::Ended { rank, end: RankEnd::Exited(0) });
            }
            return Ok(());
        }
        while let Some((rank, start)) =
            self.restarter.as_mut().and_then(|it| it.policy.next_due(now))
        {
            self.restart(rank, start)?;
        }
        Ok(())
    }

    fn restart(&mut self, rank: usize, start: StartKind) -> io::Result<()> {
        let Some(restarter) = &self.restarter else { return Ok(()) };
        let placement = self.ranks[rank].placement.clone();
        let (mut restarted, streams) = match restarter.spawner.spawn(placement, start) {
            Ok(started) => started,
            Err(failure) => {
                self.request.warn(&failure.to_string());
                self.rank_ended(rank, RankEnd::Exited(failure.exit_code()));
                return Ok(());
            }
        };
        let token = u64::try_from(rank).map_err(io::Error::other)?;
        if let Some(exit_fd) = &restarted.exit_fd {
            self.epoll.add(exit_fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        self.status.restarted(&mut restarted);
        self.ranks[rank] = restarted;
        for stream in streams {
            self.output.as_ref().map_or(Ok(()), |output| output.add(stream))?;
        }
        Ok(())
    }
}
