//! News of other hosts in the launcher's loop.

use std::io;

use nix::sys::signal::Signal;

use super::Running;
use super::start::binding;
use crate::launch::agents::{AgentEvent, ToLauncher};
use crate::launch::job::{Event, HostFailure};
use crate::launch::message::say;
use crate::launch::rank::Rank;
use crate::launch::rank_end::RankEnd;
use ringreduce::bootstrap::Instant;
use ringreduce::codec::printable;

impl Running<'_> {
    /// Takes in what other hosts have told.
    pub(super) fn take_news(&mut self) -> io::Result<()> {
        for (host_number, news) in self.agents.take_news() {
            match news {
                AgentEvent::Message(message) => self.take_message(host_number, message)?,
                AgentEvent::NotBegun(failure) if self.lost_hosts.contains(host_number) => {
                    self.not_reached(host_number, &failure.to_string());
                }
                AgentEvent::NotBegun(failure) => {
                    self.lose_host(host_number, &failure.to_string())?
                }
                AgentEvent::Lost(why) if self.lost_hosts.contains(host_number) => {
                    self.not_reached(host_number, &why);
                }
                // All agents are ready before the ranks start.
                AgentEvent::NotStartedByAgent => {}
                AgentEvent::Lost(why) => self.lose_host(host_number, &why)?,
            }
        }
        Ok(())
    }

    fn take_message(&mut self, host_number: usize, message: ToLauncher) -> io::Result<()> {
        match message {
            ToLauncher::Started { rank, pid, cpu, launched } => {
                let Some(started) = self.remote(host_number, rank) else { return Ok(()) };
                let Some(process) = started.there() else { return Ok(()) };
                (process.pid, process.cpu, process.launched) = (pid, cpu, launched);
                self.status.started(rank, pid);
                if self.request.report_bindings {
                    say(&binding(&self.ranks[rank]));
                }
            }
            ToLauncher::NotStarted { rank, exit_code, why } => {
                self.not_started(host_number, rank, (exit_code, &why))?;
            }
            ToLauncher::Ended { rank, end, far_end } => {
                let Some(ended) = self.remote(host_number, rank) else { return Ok(()) };
                if let Some(process) = ended.there() {
                    process.has_ended = true;
                }
                if let Some(end) = far_end {
                    self.spawner.record_far_end(&end);
                    self.tell_far_end(host_number, end);
                }
                self.drain_pmi(rank)?;
                self.ended(rank, end)?;
            }
            ToLauncher::Stopped { rank, is_stopped } => {
                let stopped = self.remote(host_number, rank).and_then(Rank::there);
                if let Some(process) = stopped {
                    process.is_stopped = is_stopped;
                }
            }
            ToLauncher::Left { starts, processes } => {
                self.agents.set_left(host_number, starts, processes);
            }
            ToLauncher::Over => {
                self.agents.set_over(host_number);
            }
            ToLauncher::Warn(what) => {
                let host = &self.request.hosts[host_number].name;
                self.request.warn(&format!("host {host}: {}", printable(&what)));
            }
            ToLauncher::ToldToEnd { signal } => self.told_to_end(host_number, signal),
            ToLauncher::Ready { .. } => self.host_is_back(host_number),
            // The agent's thread takes these.
            ToLauncher::Joined { .. }
            | ToLauncher::Refused { .. }
            | ToLauncher::Record { .. }
            | ToLauncher::AllRecords => {}
        }
        Ok(())
    }

    /// Lets the ranks of all hosts but this one know how a process of it ended. Nobody goes on in a
    /// job that has failed.
    pub(super) fn tell_far_end(&self, host_number: usize, end: Vec<u8>) {
        if self.job.failure().is_none() {
            self.agents.tell_far_end(host_number, &end);
        }
    }

    /// A signal has come to an agent: the job ends as if it had come to this process. Several
    /// agents may tell of one event, so that it never counts as a second signal.
    fn told_to_end(&mut self, host_number: usize, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        let host = &self.request.hosts[host_number].name;
        self.request.warn(&format!("host {host}: {signal} came to the agent"));
        if self.restarter.is_some() {
            // The agent ends at once, with its ranks.
            self.agents.set_ending(host_number);
            self.set_host_lost(host_number);
        } else if self.job.failure().is_none() {
            self.handle(Event::Signal(signal));
        }
    }

    /// The rank, if it is one of this host that has not ended.
    fn remote(&mut self, host_number: usize, rank: usize) -> Option<&mut Rank> {
        let found = self.ranks.get_mut(rank)?;
        let is_it = found.placement.host_number == host_number && !found.has_ended();
        is_it.then_some(found)
    }

    /// A rank could not be started: at the start of a job nothing can go on without it.
    fn not_started(
        &mut self,
        host_number: usize,
        rank: usize,
        (exit_code, why): (u8, &str),
    ) -> io::Result<()> {
        let Some(process) = self.remote(host_number, rank).and_then(Rank::there) else {
            return Ok(());
        };
        process.has_ended = true;
        let host = &self.request.hosts[host_number].name;
        let what = format!("host {host}: {}", printable(why));
        if self.restarter.is_some() {
            self.request.warn(&what);
            return self.ended(rank, RankEnd::Exited(exit_code));
        }
        self.fail_host(HostFailure { ranks: vec![rank], what, exit_code });
        self.leave_pmi(rank)
    }

    /// An agent has gone, and its ranks with it.
    fn lose_host(&mut self, host_number: usize, why: &str) -> io::Result<()> {
        if !self.agents.set_over(host_number) {
            return Ok(());
        }
        let is_lost = |rank: &&Rank| rank.placement.host_number == host_number && !rank.has_ended();
        let lost: Vec<usize> =
            self.ranks.iter().filter(is_lost).map(|rank| rank.placement.rank).collect();
        for &rank in &lost {
            if let Some(process) = self.ranks[rank].there() {
                process.has_ended = true;
            }
        }
        let killed = RankEnd::Killed { signal: Signal::SIGKILL as i32, core: false };
        if self.restarter.is_some() {
            self.request.warn(why);
            self.set_host_lost(host_number);
            lost.into_iter().try_for_each(|rank| self.ended(rank, killed))?;
            self.replace_host(host_number);
            return Ok(());
        }
        for &rank in &lost {
            self.status.ended(rank, killed);
        }
        if self.output.is_some() {
            let what = why.to_owned();
            self.fail_host(HostFailure { ranks: lost.clone(), what, exit_code: 1 });
        } else if self.job.failure().is_none() {
            // All ranks have ended, and the rest of their output was on its way.
            self.request.warn(&format!("{why}; the rest of its output is lost"));
            self.is_output_lost = true;
        }
        lost.into_iter().try_for_each(|rank| self.leave_pmi(rank))
    }

    fn fail_host(&mut self, failure: HostFailure) {
        let before = self.job.failure().cloned();
        let actions = self.job.fail_host(Instant::now(), failure);
        self.note_failure(before.as_ref());
        self.act(actions);
    }
}
