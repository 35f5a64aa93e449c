//! The loop of an agent: it starts the ranks that its launcher names, passes on their streams,
//! tells their ends, and does nothing else by itself.
//! Law: no process of the job outlives the agent: the agent ends them when its launcher has gone,
//! its watcher does when the agent itself is killed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;

use super::client::{self, Client};
use super::message::{RankRecord, StreamNumbers, ToAgent, ToLauncher};
use super::mux::Mux;
use super::redial::{Redial, Suspension};
use super::stream::{Direction, StreamEnd};
use crate::cli::hosts::{self, Launcher, RankPlacement};
use crate::launch::job::KILL_GRACE;
use crate::launch::local_process::LocalProcess;
use crate::launch::message::{name_ranks, say};
use crate::launch::orphans::Orphans;
use crate::launch::procfs;
use crate::launch::signals::{ENDING, Signals};
use crate::launch::spawn::{Spawner, StartKind};
use ringreduce::bootstrap::Instant;
use ringreduce::trace::{self, Reader};

/// The time without output after which the streams of a job that is over are closed.
const LAST_OUTPUT: Duration = Duration::from_millis(300);

pub(super) struct Agent<'a> {
    mux: &'a mut Mux,
    /// None if there is the remote shell's connection alone.
    redial: Option<&'a mut Redial>,
    spawner: &'a Spawner<'a>,
    signals: Signals,
    orphans: Orphans<'a>,
    ranks: BTreeMap<usize, LocalProcess>,
    /// Tells of the ends of ranks, by their numbers.
    ends: Epoll,
    /// The remote shells that start agents of further hosts.
    shells: Vec<Client>,
    /// The ranks that the launcher knows to be stopped.
    stopped: BTreeMap<usize, bool>,
    /// The launcher has told this agent so many times to start a rank.
    starts: u32,
    /// The number of processes that outlived their ranks, as the launcher knows it.
    left: Option<usize>,
    /// Processes that outlive their ranks are killed from now on.
    kills_leftovers: bool,
    /// The silence of the launcher after which the ranks are ended.
    lease: Duration,
    suspension: Suspension,
    /// The launcher knows that a signal told this agent to end.
    is_told_to_end: bool,
    is_look_due: bool,
    /// The launcher needs nothing more of this agent.
    is_abandoned: bool,
    /// The exit code of the launcher, once the job is over.
    exit_code: Option<u8>,
}

impl<'a> Agent<'a> {
    pub(super) fn new(
        (mux, redial): (&'a mut Mux, Option<&'a mut Redial>),
        spawner: &'a Spawner<'a>,
        signals: Signals,
        orphans: Orphans<'a>,
        lease: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            mux,
            redial,
            spawner,
            signals,
            orphans,
            ranks: BTreeMap::new(),
            ends: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            shells: vec![],
            stopped: BTreeMap::new(),
            starts: 0,
            left: None,
            kills_leftovers: false,
            lease,
            suspension: Suspension::default(),
            is_told_to_end: false,
            is_look_due: true,
            is_abandoned: false,
            exit_code: None,
        })
    }

    /// Serves the launcher until the job is over, and gives the launcher's exit code; none if the
    /// launcher has gone.
    pub(super) fn run(mut self) -> io::Result<Option<u8>> {
        while self.exit_code.is_none() {
            self.wait()?;
            self.suspension.note_heard(self.mux.heard());
            let is_suspended = self.suspension.lasts(self.mux, self.redial.as_deref(), self.lease);
            let is_silent = self.mux.silent_for() > self.lease && !is_suspended;
            let has_gone = self.mux.end().is_some() || self.mux.has_gone(false);
            let is_gone = self.is_abandoned || has_gone;
            // Reading signals swallows the news of a child's end, which only a look makes up for.
            let must_end = self.is_look_due && self.must_end_alone();
            if is_silent || is_gone || must_end {
                let why = self.last_words(is_silent, is_gone);
                if is_silent && !self.mux.is_broken() {
                    // A launcher that was stopped shows them later.
                    self.mux.send(&ToLauncher::Refused { exit_code: 1, why });
                } else {
                    say(&why);
                }
                self.end_all()?;
                self.mux.move_all()?;
                return Ok(None);
            }
            while let Some(message) = self.mux.next_control() {
                self.obey(message)?;
            }
            if self.is_look_due {
                self.look();
            }
        }
        while self.mux.has_streams() && self.mux.end().is_none() {
            self.wait()?;
            if self.mux.silent_for() > self.lease {
                break;
            }
            self.reap_shells();
            // A further agent may have no other connection than its shell's.
            if self.shells.is_empty() && self.mux.quiet_for() >= LAST_OUTPUT {
                // A process outside the job keeps them open.
                self.mux.end_streams();
            }
        }
        self.mux.send(&ToLauncher::Over);
        Ok(self.exit_code)
    }

    /// Why this agent ends its ranks, and which.
    fn last_words(&self, is_silent: bool, is_gone: bool) -> String {
        let silence = |how| format!("the launcher was {how} for {:?}", self.lease);
        let why = match (is_silent, is_gone) {
            (true, _) if self.mux.is_broken() => silence("out of reach"),
            (true, _) => silence("silent, maybe stopped,"),
            (_, true) => "the launcher has gone, or needs this host no more".into(),
            _ => "a signal told the agent to end".into(),
        };
        let left = self.ranks.iter().filter(|(_, rank)| !rank.has_ended());
        let ranks: Vec<_> = left.map(|(number, _)| *number).collect();
        format!("{why}: the agent on {} ends {}", hosts::here(), name_ranks(&ranks))
    }

    /// Waits for the launcher, signals, ends of ranks and bytes of streams.
    fn wait(&mut self) -> io::Result<()> {
        let mut others = vec![self.signals.descriptor.as_fd(), self.ends.0.as_fd()];
        let own = others.len();
        others.extend(self.redial.as_ref().map(|redial| redial.awake()));
        let ready = self.mux.wait(&others, Duration::from_secs(1))?;
        self.is_look_due |= ready[0];
        let is_dialled = ready[own..].contains(&true);
        if let Some(redial) = &mut self.redial {
            redial.go_on(self.mux, is_dialled);
        }
        for number in self.ended_ranks()? {
            self.reap(number)?;
        }
        Ok(())
    }

    /// The ranks that have ended since the last look, in the order of their ends: epoll keeps it.
    fn ended_ranks(&self) -> io::Result<Vec<usize>> {
        let mut ends = vec![EpollEvent::empty(); self.ranks.len().max(1)];
        let count = match self.ends.wait(&mut ends, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(cause) => return Err(cause.into()),
        };
        let mut ended: Vec<usize> = ends[..count].iter().map(|end| end.data() as usize).collect();
        let without = self.ranks.iter().filter(|(_, rank)| rank.is_ended_without_descriptor());
        ended.extend(without.map(|(number, _)| *number));
        Ok(ended)
    }

    fn reap(&mut self, number: usize) -> io::Result<()> {
        let Some(rank) = self.ranks.get_mut(&number) else { return Ok(()) };
        if let Some(exit_fd) = &rank.exit_fd {
            self.ends.delete(exit_fd)?;
        }
        let end = rank.reap(self.spawner.watcher)?;
        let far_end = rank.far_end(end, self.spawner.request.elastic.is_some());
        // The output of the rank goes before the news of its end.
        self.mux.move_all()?;
        self.mux.send(&ToLauncher::Ended { rank: number, end, far_end });
        // The look that its SIGCHLD caused may have come before.
        self.is_look_due = true;
        Ok(())
    }

    /// Passes on a signal that ends a program, as a batch system or the host's shutdown sends it:
    /// the launcher ends the whole job in order. True if the agent itself must end instead: at a
    /// second signal, and where the job goes on without this host.
    fn must_end_alone(&mut self) -> bool {
        let mut must_end = false;
        for signal in std::iter::from_fn(|| self.signals.next()) {
            if ENDING.contains(&signal) {
                must_end |= self.is_told_to_end || self.spawner.request.elastic.is_some();
                self.is_told_to_end = true;
                self.mux.send(&ToLauncher::ToldToEnd { signal: signal as i32 });
            }
        }
        must_end
    }

    fn obey(&mut self, message: ToAgent) -> io::Result<()> {
        self.suspension.note(&message);
        match message {
            ToAgent::Begin(_) => {}
            ToAgent::Start { placement, kind, streams } => {
                self.start(&placement, kind, StreamNumbers(streams))?;
            }
            ToAgent::Signal { rank, signal, to_handlers } => {
                let (Some(rank), Ok(signal)) = (self.ranks.get(&rank), Signal::try_from(signal))
                else {
                    return Ok(());
                };
                if to_handlers { rank.notify(signal) } else { rank.signal(signal) }
            }
            ToAgent::TerminateLeftovers => {
                let groups: Vec<u32> = self.ranks.values().map(LocalProcess::pid).collect();
                let had_no_signal = |it: &procfs::Process| !groups.contains(&it.group);
                self.orphans.end(self.ranks.values(), Signal::SIGTERM, had_no_signal);
            }
            ToAgent::KillLeftovers { is_news } => {
                self.kills_leftovers = true;
                self.is_look_due = true;
                let killed = self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
                if is_news && killed > 0 {
                    let what = format!("killed {killed} process(es) that outlived their rank");
                    self.mux.send(&ToLauncher::Warn(what));
                }
            }
            ToAgent::StartAgent { host, launcher, streams } => {
                self.start_agent((&host, &launcher), StreamNumbers(streams))?;
            }
            ToAgent::FarEnd(end) => self.spawner.record_far_end(&end),
            ToAgent::Read => self.read_records(),
            ToAgent::Suspend => {}
            ToAgent::Abandon => self.is_abandoned = true,
            ToAgent::Finish { exit_code } => self.exit_code = Some(exit_code),
        }
        Ok(())
    }

    fn start(
        &mut self,
        placement: &RankPlacement,
        kind: StartKind,
        numbers: StreamNumbers,
    ) -> io::Result<()> {
        let rank = placement.rank;
        (self.starts, self.left) = (self.starts + 1, None);
        if let Some(before) = self.ranks.get(&rank) {
            // The orphans of the rank hold what its next process needs.
            let group = before.pid();
            self.orphans.end(self.ranks.values(), Signal::SIGKILL, |it| it.group == group);
        }
        let reads = rank == 0 && self.spawner.request.stdin && kind == StartKind::First;
        let (stdin, writer) = if reads {
            io::pipe().map(|(r, w)| (r.into(), Some(w)))?
        } else {
            (Stdio::null(), None)
        };
        let [stdin_number, stdout, stderr, store, pmi] = numbers.all();
        match self.spawner.spawn(placement, kind, stdin) {
            Ok((process, streams)) => {
                let (pid, cpu, launched) = (process.pid(), process.cpu, process.launched());
                self.mux.send(&ToLauncher::Started { rank, pid, cpu, launched });
                if let Some(exit_fd) = &process.exit_fd {
                    self.ends.add(exit_fd, EpollEvent::new(EpollFlags::EPOLLIN, rank as u64))?;
                }
                self.ranks.insert(rank, process);
                if let Some(writer) = writer {
                    self.mux.add(stdin_number, StreamEnd::new(writer, Direction::Writes)?);
                }
                self.mux.add(stdout, StreamEnd::new(streams.stdout, Direction::Reads)?);
                self.mux.add(stderr, StreamEnd::new(streams.stderr, Direction::Reads)?);
                self.mux.add(store, StreamEnd::new(streams.store, Direction::Both)?);
                self.mux.add(pmi, StreamEnd::new(streams.pmi, Direction::Both)?);
            }
            Err(failure) => {
                let (exit_code, why) = (failure.exit_code(), failure.to_string());
                self.mux.refuse(numbers.all());
                self.mux.send(&ToLauncher::NotStarted { rank, exit_code, why });
            }
        }
        self.mux.set_known(pmi);
        self.is_look_due = true;
        Ok(())
    }

    /// Starts the agent of a further host. The end of the streams tells the launcher if that fails:
    /// it then starts the agent by itself.
    fn start_agent(
        &mut self,
        (host, launcher): (&str, &Launcher),
        numbers: StreamNumbers,
    ) -> io::Result<()> {
        let [input, output, errors, _, last] = numbers.all();
        match client::start(launcher, host, self.spawner.id) {
            Ok(Some((shell, pipes))) => {
                self.orphans.add_own(shell.process());
                self.shells.push(shell);
                self.mux.add(input, StreamEnd::new(pipes.input, Direction::Writes)?);
                self.mux.add(output, StreamEnd::new(pipes.output, Direction::Reads)?);
                self.mux.add(errors, StreamEnd::new(pipes.errors, Direction::Reads)?);
            }
            _ => self.mux.refuse([input, output, errors]),
        }
        self.mux.set_known(last);
        Ok(())
    }

    fn reap_shells(&mut self) {
        self.shells.retain_mut(|shell| !shell.has_ended());
    }

    /// Reaps orphans, and tells the launcher what has changed.
    fn look(&mut self) {
        self.is_look_due = false;
        self.reap_shells();
        if let Some(warning) = self.orphans.sweep(self.ranks.values()) {
            self.mux.send(&ToLauncher::Warn(warning.into()));
        }
        let mut runs = false;
        for (&rank, process) in self.ranks.iter().filter(|(_, rank)| !rank.has_ended()) {
            runs = true;
            let is_stopped = process.is_stopped();
            if self.stopped.insert(rank, is_stopped).unwrap_or(false) != is_stopped {
                self.mux.send(&ToLauncher::Stopped { rank, is_stopped });
            }
        }
        let left = (!runs).then(|| {
            if self.kills_leftovers {
                self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
            }
            self.orphans.running(self.ranks.values()).len()
        });
        if let Some(processes) = left.filter(|left| self.left != Some(*left)) {
            self.mux.send(&ToLauncher::Left { starts: self.starts, processes });
        }
        self.left = left;
    }

    fn read_records(&mut self) {
        let one = |(&rank, process): (&usize, &LocalProcess)| RankRecord {
            rank,
            words: process.record.as_ref().and_then(Reader::words),
            is_foreign: process.record.as_ref().is_some_and(Reader::is_foreign),
            is_stopped: !process.has_ended() && process.is_stopped(),
        };
        for record in self.ranks.iter().map(one) {
            self.mux.send(&ToLauncher::Record { now: trace::now(), record });
        }
        self.mux.send(&ToLauncher::AllRecords);
    }

    /// Kills all ranks and what they have started, as the kernel does where a launcher dies.
    fn end_all(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + KILL_GRACE;
        self.ranks.values().for_each(|rank| rank.signal(Signal::SIGKILL));
        loop {
            self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
            let running = self.ranks.iter().filter(|(_, rank)| rank.is_ended());
            let running: Vec<usize> = running.map(|(number, _)| *number).collect();
            running.into_iter().try_for_each(|number| self.reap(number))?;
            self.orphans.sweep(self.ranks.values());
            let is_empty = self.ranks.values().all(LocalProcess::has_ended)
                && self.orphans.running(self.ranks.values()).is_empty();
            if is_empty || Instant::now() >= deadline {
                return Ok(());
            }
            let signals = [PollFd::new(self.signals.descriptor.as_fd(), PollFlags::POLLIN)];
            poll(&mut { signals }, PollTimeout::from(50_u8))?;
            while self.signals.next().is_some() {}
        }
    }
}
