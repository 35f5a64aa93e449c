//! `--elastic` in the launcher's loop: restarts ranks, and ends those that no member will admit.
//! Law: without `--elastic` no rank is restarted or ended here.

use std::io;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};

use super::Running;
use super::start::start_rank;
use crate::cli::elastic::Elastic;
use crate::launch::job::{Event, KILL_GRACE};
use crate::launch::local_process::LocalProcess;
use crate::launch::message::describe_end;
use crate::launch::rank::Rank;
use crate::launch::rank_end::RankEnd;
use crate::launch::restart_policy::{Decision, LostRank, RestartPolicy};
use crate::launch::spawn::StartKind;
use ringreduce::bootstrap::{Excluded, Instant, StartupStage};

/// The reason why a rank is given up with a host that had joined by itself, for messages.
const HOST_GONE: &str =
    "; its host has joined by itself and was lost, so that it can't be started there again";

pub(super) struct Restarter {
    pub(super) policy: RestartPolicy,
    /// When evicted ranks, and joining ranks of a job that ends, get SIGKILL. They have got SIGTERM
    /// before.
    kill_due: Vec<(Instant, usize)>,
    /// The rank whose loss ended the job.
    pub(super) cause: Option<LostRank>,
}

impl Restarter {
    pub(super) fn new(elastic: Elastic) -> Self {
        Self { policy: RestartPolicy::new(elastic), kill_due: vec![], cause: None }
    }

    /// When the next rank is restarted or killed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let kills = self.kill_due.iter().map(|(at, _)| *at);
        kills.chain(self.policy.next_restart_at()).min()
    }

    fn is_to_be_killed(&self, rank: usize) -> bool {
        self.kill_due.iter().any(|(_, killed)| *killed == rank)
    }
}

impl Running<'_> {
    /// Tells the job that a rank has ended, unless the rank is started again. A rank without which
    /// the job goes on counts as one that exited with status 0.
    pub(super) fn rank_ended(&mut self, rank: usize, end: RankEnd) {
        if self.restarter.is_some() {
            self.store.process_pending();
            self.update_membership();
        }
        let well = RankEnd::Exited(0);
        let Some(restarter) = self.restarter.as_mut().filter(|_| self.job.failure().is_none())
        else {
            // A signal of the launcher itself is no cause of the failure.
            let is_sent = self.restarter.as_ref().is_some_and(|it| it.is_to_be_killed(rank));
            return self.handle(Event::Ended { rank, end: if is_sent { well } else { end } });
        };
        let ended = &self.ranks[rank];
        let (label, stage) = (ended.label(), ended.progress.stage());
        let lost = LostRank { rank, end, label: label.clone() };
        let policy = &mut restarter.policy;
        let mut decision = policy.end(Instant::now(), stage, lost);
        restarter.kill_due.retain(|(_, killed)| *killed != rank);
        let goes_on = matches!(decision, Decision::GiveUp | Decision::ToldToEnd | Decision::Ended);
        let is_stopped = |rank: &usize| self.ranks[*rank].is_stopped();
        let all_stopped =
            goes_on && policy.last_members().is_some_and(|last| last.iter().all(is_stopped));
        if all_stopped {
            // No process is left that could continue the stopped ones.
            decision = policy.too_few_ranks();
        }
        let (restarts, most) = policy.restarts(rank);
        let (what, counted_as) = match decision {
            Decision::Ended => return self.handle(Event::Ended { rank, end: well }),
            Decision::Restart => {
                // The orphans of the rank hold what its next process needs. Agents end theirs.
                if let Some(group) = ended.here().map(LocalProcess::pid) {
                    self.orphans.end(self.local_ranks(), Signal::SIGKILL, |it| it.group == group);
                }
                let is_host_lost = self.agents.is_lost(ended.placement.host_number);
                let when = match (is_host_lost, self.request.has_spare_slots()) {
                    (false, _) => "",
                    (true, false) => " once its host is back",
                    (true, true) => " once a host has a slot for it",
                };
                (format!("; it is started again{when} ({restarts} of {most} times)"), None)
            }
            Decision::GiveUp if policy.is_host_gone(rank) => {
                (format!("{HOST_GONE}, and the others go on without it"), Some(well))
            }
            Decision::GiveUp => {
                let why = format!("; it is not started again (--max-restarts {most})");
                (why + ", and the others go on without it", Some(well))
            }
            Decision::ToldToEnd => {
                let why = ", as after a signal that told it to end: it is not started again";
                (why.to_owned() + ", and the others go on without it", Some(well))
            }
            Decision::StartupFails => {
                let why = " before all ranks had met: the others can't begin without it";
                (why.to_owned(), Some(end))
            }
            Decision::TooFewRanks(_) => {
                let why = why_too_few(policy, all_stopped);
                (format!("; {why}, so the job ends and no rank is started again"), Some(end))
            }
        };
        self.request.warn(&format!("{label} {}{what}", describe_end(end)));
        if let Some(end) = counted_as {
            self.handle(Event::Ended { rank, end });
        }
        match decision {
            Decision::TooFewRanks(cause) => self.blame(cause),
            Decision::GiveUp | Decision::ToldToEnd => self.use_free_slots(),
            _ => {}
        }
    }

    /// Goes on without a rank that waited to be started again on a host that is lost for good, or
    /// ends the job if the others have not met it.
    pub(super) fn give_up_rank(&mut self, rank: usize) {
        let given_up = self.restarter.as_mut().and_then(|it| it.policy.give_up(rank));
        let Some((end, decision)) = given_up else { return };
        let (what, end) = match decision {
            Decision::StartupFails => ("the others can't begin without it", end),
            _ => ("the others go on without it", RankEnd::Exited(0)),
        };
        self.request.warn(&format!("rank {rank} has ended{HOST_GONE}, and {what}"));
        self.handle(Event::Ended { rank, end });
    }

    /// Ends the job, and names the first cause.
    fn blame(&mut self, cause: LostRank) {
        let before = self.job.failure().cloned();
        self.job.set_cause(Instant::now(), cause.rank, cause.end);
        self.note_failure(before.as_ref());
        if let Some(restarter) = &mut self.restarter {
            restarter.cause = Some(cause);
        }
    }

    /// Records which ranks were admitted and which have ended, and ends those that the members have
    /// evicted: they can do nothing more for the job, and may be stopped for ever.
    fn update_membership(&mut self) {
        let Some(restarter) = &mut self.restarter else { return };
        for rank in restarter.policy.joining() {
            if self.ranks[rank].progress.stage() == StartupStage::Member {
                restarter.policy.admit(rank);
            }
        }
        while let Some(Excluded { launched, pid, is_evicted }) = self.store.next_excluded() {
            // The pid of a program that a script runs; where all ranks are here, it is one of here.
            let all_here = || self.ranks.iter().all(|rank| rank.here().is_some());
            let is_here = launched == 0 && pid != 0 && all_here();
            let group = is_here.then(|| getpgid(Some(Pid::from_raw(pid.cast_signed()))).ok());
            let group = group.flatten().map(|group| group.as_raw().cast_unsigned());
            let is_it = |rank: &Rank| {
                let is_known = launched != 0 && rank.launched() == launched;
                !rank.has_ended() && (is_known || group == Some(rank.pid()))
            };
            let Some(at) = self.ranks.iter().position(is_it) else { continue };
            if !is_evicted {
                restarter.policy.mark_ending(at);
            } else if restarter.policy.mark_left_behind(at) {
                let rank = &self.ranks[at];
                self.request
                    .warn(&format!("{} was left behind by the others and is ended", rank.label()));
                rank.terminate();
                restarter.kill_due.push((Instant::now() + KILL_GRACE, at));
            }
        }
    }

    /// Restarts the ranks that are due; once the job ends, ends those that were not admitted.
    pub(super) fn restart_due_ranks(&mut self) -> io::Result<()> {
        self.update_membership();
        let Some(restarter) = &mut self.restarter else { return Ok(()) };
        let now = Instant::now();
        for (_, rank) in restarter.kill_due.extract_if(.., |(at, _)| *at <= now) {
            self.ranks[rank].signal(Signal::SIGKILL);
        }
        let no_members = restarter.policy.has_no_members();
        if no_members || self.job.failure().is_some() {
            let without = restarter.policy.awaiting_host();
            let cancelled = restarter.policy.cancel_restarts();
            for rank in restarter.policy.joining() {
                if !restarter.is_to_be_killed(rank) {
                    if no_members {
                        self.ranks[rank].terminate();
                    }
                    restarter.kill_due.push((now + KILL_GRACE, rank));
                }
            }
            self.leave_lost_hosts(&without);
            for rank in cancelled {
                self.handle(Event::Ended { rank, end: RankEnd::Exited(0) });
            }
            return Ok(());
        }
        while let Some((rank, start)) =
            self.restarter.as_mut().and_then(|it| it.policy.take_due(now))
        {
            self.restart(rank, start)?;
        }
        Ok(())
    }

    fn restart(&mut self, number: usize, start: StartKind) -> io::Result<()> {
        let mut placement = self.ranks[number].placement.clone();
        // A rank that has gone to another host may have left a local rank free.
        let of_host = self.ranks.iter().map(|rank| &rank.placement);
        let of_host = of_host.filter(|it| it.host_number == placement.host_number);
        let highest = of_host.map(|it| it.local_rank).max();
        placement.local_size = highest.map_or(1, |highest| highest + 1);
        let started = start_rank((self.spawner, self.store), &mut self.agents, &placement, start);
        let (mut rank, streams) = match started {
            Ok(started) => started,
            Err(failure) => {
                self.request.warn(&failure.to_string());
                self.rank_ended(number, RankEnd::Exited(failure.exit_code()));
                return Ok(());
            }
        };
        self.events.add_rank(&rank)?;
        self.pmi.restart(number);
        rank.pmi.iter().try_for_each(|pmi| self.events.add_pmi(pmi, number))?;
        self.status.restarted(&mut rank);
        self.ranks[number] = rank;
        let Some(output) = &self.output else { return Ok(()) };
        streams.into_iter().try_for_each(|stream| output.add(stream))
    }
}

/// Why a job whose loss leaves too few ranks ends.
fn why_too_few(policy: &RestartPolicy, all_stopped: bool) -> String {
    let Elastic { min, max, .. } = policy.elastic;
    match policy.has_no_members() {
        _ if all_stopped => "all ranks that are left are stopped".into(),
        true => "no rank is left that another one could come back to".into(),
        false => format!("fewer than {min} ranks are left (--elastic {min}:{max})"),
    }
}
