//! The ranks of one trial, which are processes, or threads of one process.

use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::hosts::Hosts;
use harness::processes::{Process, number};
use nix::sys::signal::Signal;

use super::rank::{ARGUMENT, AT_WORK, FAILED, now};
use super::trial::{Fault, Links, Trial};

/// The longest start of a world, with one CPU for many ranks.
pub(crate) const START: Duration = Duration::from_secs(40);

pub(crate) struct World<'a> {
    trial: &'a Trial,
    hosts: Option<&'a Hosts>,
    /// One for each rank, or one for all of them.
    processes: Vec<Process>,
}

/// A rank's error: its time and kind, and the ranks that it names.
pub(crate) struct Failure {
    pub(crate) at: u64,
    pub(crate) kind: String,
    pub(crate) names: Vec<usize>,
}

impl<'a> World<'a> {
    /// Starts the ranks of a trial and waits until all are at work.
    pub(crate) fn start(trial: &'a Trial, hosts: Option<&'a Hosts>) -> Result<Self, String> {
        let (until, two) = (Instant::now() + START, hosts.filter(|_| trial.links == Links::Mixed));
        let store = match two {
            Some(hosts) => hosts.store(),
            None => format!("unix:@storm-{}-{}", std::process::id(), number()),
        };
        let is_threads = trial.links == Links::Threads;
        let body = if is_threads { "storm::rank::threads" } else { "storm::rank::rank" };
        let start = |rank| {
            let mut command = match two {
                Some(hosts) => hosts.process(trial.host(rank), body),
                None => harness::process(body),
            };
            let argument = format!("{} {} {rank} {store}", trial.seed, hosts.is_some());
            command.env(ARGUMENT, argument).env("RINGREDUCE_CACHE", "off").stdin(Stdio::piped());
            command.env("RINGREDUCE_ALL_PAIRS", trial.all_pairs.to_string());
            Process::start(command)
        };
        let processes = (0..if is_threads { 1 } else { trial.n }).map(start).collect();
        let mut world = Self { trial, hosts, processes };
        for rank in 0..world.processes.len() {
            if !world.says_by(rank, AT_WORK, until) {
                return Err(format!("rank {rank} did not begin: {}", world.state()));
            }
        }
        Ok(world)
    }

    fn process(&self, rank: usize) -> &Process {
        &self.processes[rank.min(self.processes.len() - 1)]
    }

    fn process_mut(&mut self, rank: usize) -> &mut Process {
        let last = self.processes.len() - 1;
        &mut self.processes[rank.min(last)]
    }

    /// Waits until a rank writes a line that begins with `what`; false if that does not happen.
    pub(crate) fn says_by(&mut self, rank: usize, what: &str, until: Instant) -> bool {
        self.process_mut(rank).says_by(&format!("{rank} {what}"), until)
    }

    /// The rest of the first line of a rank that begins with `what`.
    pub(crate) fn line(&self, rank: usize, what: &str) -> Option<&str> {
        self.process(rank).line_after(&format!("{rank} {what}"))
    }

    /// Tells the ranks that the trial is over, if they still make calls.
    pub(crate) fn ends_calls(&mut self) {
        self.process_mut(0).close_stdin();
    }

    /// Waits until the process of a rank has ended; false if the time is over first.
    pub(crate) fn ends_by(&mut self, rank: usize, until: Instant) -> bool {
        self.process_mut(rank).ends_by(until).is_some()
    }

    /// Removes the processes that the fault has ended, or stopped for ever.
    pub(crate) fn remove_victims(&mut self, until: Instant) {
        if self.trial.links == Links::Threads {
            return;
        }
        for &rank in &self.trial.victims {
            if self.trial.fault == Fault::Stop {
                self.process(rank).kill();
            }
            self.ends_by(rank, until);
        }
    }

    /// Causes the fault, unless the victim does; gives its time.
    pub(crate) fn inject(&self) -> u64 {
        let trial = self.trial;
        let all = |signal| trial.victims.iter().for_each(|&rank| self.process(rank).signal(signal));
        std::thread::sleep(trial.after);
        let since = now();
        match trial.fault {
            _ if trial.links == Links::Threads => (),
            Fault::Kill | Fault::KillParent | Fault::TwoKills => all(Signal::SIGKILL),
            Fault::Terminate => all(Signal::SIGTERM),
            Fault::Stop => all(Signal::SIGSTOP),
            Fault::Pause => {
                all(Signal::SIGSTOP);
                std::thread::sleep(trial.pause);
                all(Signal::SIGCONT);
            }
            Fault::Drops => {
                self.hosts.unwrap().drop_longer(trial.passes).unwrap();
                std::thread::sleep(trial.pause);
                self.hosts.unwrap().drop_none().unwrap();
            }
            Fault::Cut => self.hosts.unwrap().drop_longer(trial.passes).unwrap(),
            _ => (),
        }
        since
    }

    /// The lines of each process, and the states of the threads of living ones.
    pub(crate) fn state(&self) -> String {
        let one = |process: &Process| {
            let pid = process.pid();
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
            let at = |task: std::fs::DirEntry| {
                let read =
                    |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
                format!("{} in {}", read("comm").trim(), read("wchan"))
            };
            let at: Vec<_> = tasks.into_iter().flatten().flatten().map(at).collect();
            format!("\n  pid {pid}, {at:?}: {}", process.lines.join("\n    "))
        };
        self.processes.iter().map(one).collect()
    }

    /// The error that a rank has reported.
    pub(crate) fn failure(&self, rank: usize) -> Option<Failure> {
        let mut words = self.line(rank, FAILED)?.splitn(4, ' ');
        let (at, kind) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let names = words.next()?.split(',').map_while(|rank| rank.parse().ok()).collect();
        Some(Failure { at, kind, names })
    }
}
