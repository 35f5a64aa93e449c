//! A job that runs: the loop waits for ranks, signals and time, asks `job` and `restart_policy`
//! what to do about each, and does it. Each file beside this one has one part of that.

mod events;
mod free_slots;
mod hosts;
mod lost_hosts;
mod pmi;
mod report;
mod restarter;
mod start;
mod stopped;
mod terminal;

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::agents::Agents;
use super::job::{Action, Event, Job, JobFailure};
use super::local_process::LocalProcess;
use super::message::{name_ranks, say};
use super::orphans::{LocalRanks, Orphans};
use super::output::Output;
use super::pmi::world::PmiWorld;
use super::procfs;
use super::rank::{Rank, RankProcess};
use super::rank_end::RankEnd;
use super::signals::{self, NOTIFYING, Signals};
use super::spawn::Spawner;
use crate::cli::Request;
use crate::failure::Failure;
use crate::status::JobStatus;
use events::{Events, PMI, SIGNALS};
use lost_hosts::LostHosts;
use restarter::Restarter;
use ringreduce::bootstrap::{Instant, Server};
use stopped::StoppedRanks;
use terminal::Terminal;

/// How long the requests of ranks by PMI may keep the loop from looking at all ranks.
const REQUESTS_TURN: Duration = Duration::from_millis(100);

pub(super) struct Running<'a> {
    request: &'a Request,
    spawner: &'a Spawner<'a>,
    store: &'a Server,
    signals: Signals,
    orphans: Orphans<'a>,
    /// The agents of other hosts.
    agents: Agents,
    job: Job,
    ranks: Vec<Rank>,
    events: Events,
    status: JobStatus,
    /// The values and barriers of ranks by PMI.
    pmi: PmiWorld,
    output: Option<Output>,
    /// The sentence that the ranks' records gave when the job began to end.
    diagnosis: Option<String>,
    /// The failure has been reported before the end of the output.
    is_reported: bool,
    /// The rest of the output of a host was lost with it.
    is_output_lost: bool,
    /// None without `--elastic`.
    restarter: Option<Restarter>,
    lost_hosts: LostHosts,
    stopped: StoppedRanks,
    terminal: Option<Terminal>,
}

impl Running<'_> {
    /// Runs the loop until the job is over, writes the rest of the output, says what was wrong, and
    /// gives ringrun's exit code.
    pub(super) fn finish(mut self) -> Result<u8, Failure> {
        self.until_over().map_err(Failure::system("wait for the ranks"))?;
        let output = self.drain().map_err(Failure::system("finish the output"))?;
        Ok(self.report_end(output))
    }

    fn until_over(&mut self) -> io::Result<()> {
        let mut looked = Instant::now();
        while !self.job.is_over() {
            let deadline = self.deadline();
            let sources = self.events.wait(deadline, self.ranks.len())?;
            let pmi = PMI..PMI + self.ranks.len();
            let are_requests = sources.iter().all(|source| pmi.contains(source));
            for source in sources {
                match source {
                    SIGNALS => {
                        while let Some(signal) = self.signals.next() {
                            self.handle(Event::Signal(signal));
                        }
                    }
                    rank if rank < self.ranks.len() => self.reap(rank)?,
                    source if pmi.contains(&source) => drop(self.serve_pmi(source - PMI)?),
                    _ => {}
                }
            }
            let now = Instant::now();
            let is_due = deadline.is_some_and(|at| now >= at) || now >= looked + REQUESTS_TURN;
            if are_requests && !is_due {
                // A look at all ranks would cost more than the requests.
                continue;
            }
            looked = now;
            for rank in 0..self.ranks.len() {
                if self.ranks[rank].here().is_some_and(LocalProcess::is_ended_without_descriptor) {
                    self.reap(rank)?;
                }
            }
            self.take_news()?;
            self.sweep();
            self.lend_terminal();
            self.restart_due_ranks()?;
            self.reach_lost_hosts();
            self.end_stopped_ranks();
            self.handle(Event::Tick);
        }
        Ok(())
    }

    /// The time by which the loop must look at the job again.
    fn deadline(&self) -> Option<Instant> {
        let restarter = self.restarter.as_ref().and_then(Restarter::deadline);
        let terminal = self.terminal.as_ref().and_then(Terminal::deadline);
        let (job, stopped) = (self.job.deadline(), self.next_look_for_stopped());
        let all = [job, restarter, self.lost_hosts.deadline(), stopped, terminal];
        all.into_iter().flatten().min()
    }

    fn reap(&mut self, number: usize) -> io::Result<()> {
        // A rank that aborts the job says so before it ends.
        self.drain_pmi(number)?;
        let rank = &mut self.ranks[number];
        let RankProcess::Here(process) = &mut rank.process else { return Ok(()) };
        let end = process.reap(self.spawner.watcher)?;
        let far_end = process.far_end(end, self.request.elastic.is_some());
        let host_number = rank.placement.host_number;
        self.events.remove_rank(rank)?;
        if let Some(end) = far_end {
            self.tell_far_end(host_number, end);
        }
        self.ended(number, end)
    }

    fn ended(&mut self, number: usize, end: RankEnd) -> io::Result<()> {
        self.status.ended(number, end);
        self.rank_ended(number, end);
        self.leave_pmi(number)
    }

    fn handle(&mut self, event: Event) {
        let before = self.job.failure().cloned();
        let actions = self.job.handle(Instant::now(), event);
        self.note_failure(before.as_ref());
        if matches!(event, Event::Signal(Signal::SIGUSR1)) {
            say(&self.status.lines().join("\nringrun: "));
        }
        self.act(actions);
    }

    /// Notes what the ranks' records say of a failure that is another one than `before`, as long as
    /// the other ranks are not ended, which record failures too.
    fn note_failure(&mut self, before: Option<&JobFailure>) {
        if let Some(failure) = self.job.failure().filter(|now| Some(*now) != before) {
            self.diagnosis = self.status.diagnosis(failure);
            self.pmi.end();
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(signal) if NOTIFYING.contains(&signal) => {
                    self.ranks.iter().for_each(|rank| rank.notify(signal));
                }
                Action::Send(signal) => self.ranks.iter().for_each(|rank| rank.signal(signal)),
                Action::Suspend => {
                    self.agents.suspend();
                    self.terminal.iter_mut().for_each(Terminal::take_back);
                    signals::suspend();
                }
                Action::TerminateLeftovers => {
                    let is_of_rank =
                        |group| self.local_ranks().any(|process| process.pid() == group);
                    let had_no_signal = |process: &procfs::Process| !is_of_rank(process.group);
                    self.orphans.end(self.local_ranks(), Signal::SIGTERM, had_no_signal);
                    self.agents.terminate_leftovers();
                }
                Action::KillLeftovers => {
                    let is_news = self.job.killed().is_none();
                    let killed = self.orphans.end(self.local_ranks(), Signal::SIGKILL, |_| true);
                    if killed > 0 && is_news {
                        let what = format!("killed {killed} process(es) that outlived their rank");
                        self.request.warn(&what);
                    }
                    self.agents.kill_leftovers(is_news);
                }
                Action::ReportSlowEnd(left) => self.report_slow_end(left),
            }
        }
    }

    /// The ranks of this host.
    fn local_ranks(&self) -> impl LocalRanks<'_> {
        self.ranks.iter().filter_map(Rank::here)
    }

    /// Reaps orphans, and once all ranks have ended looks whether any orphan is left.
    fn sweep(&mut self) {
        if let Some(warning) = self.orphans.sweep(self.ranks.iter().filter_map(Rank::here)) {
            self.request.warn(warning);
        }
        if self.job.wants_empty() {
            if !self.orphans.running(self.local_ranks()).is_empty() {
                if self.job.kills_leftovers() {
                    self.orphans.end(self.local_ranks(), Signal::SIGKILL, |_| true);
                }
            } else if self.agents.are_empty() {
                self.handle(Event::Empty);
            }
        }
    }

    fn report_slow_end(&self, left: Duration) {
        let who = match self.job.running().as_slice() {
            [] => "processes that the ranks started".into(),
            ranks => name_ranks(ranks),
        };
        self.request.warn(&format!(
            "{who} got SIGTERM and did not end yet: killed in {:.0} s, or at once by Ctrl-C",
            left.as_secs_f64()
        ));
    }
}
