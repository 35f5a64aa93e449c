//! The processes of a trial: what they say, line by line, and when they end.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::rank::{AT_WORK, SEAT};
use super::trial::{Trial, Way};
use harness::hosts::Hosts;
use harness::lines;

/// What ranks do.
const BODY: &str = "storm::rank::body";

pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    pub(crate) said: Vec<String>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        let (child, lines) = lines::start(command);
        Self { child, lines, said: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Closes what it reads.
    pub(crate) fn is_over(&mut self) {
        self.child.stdin = None;
    }

    /// Has it said so by then? No, if it has ended instead.
    pub(crate) fn says(&mut self, wanted: &str, until: Instant) -> bool {
        while let Ok(line) = self.lines.recv_timeout(until - Instant::now().min(until)) {
            self.said.push(line);
            if self.said.last().is_some_and(|line| line.starts_with(wanted)) {
                return true;
            }
        }
        false
    }

    /// Has it ended by then, and every process with it that it may have started?
    pub(crate) fn ends(&mut self, until: Instant) -> bool {
        loop {
            match self.lines.recv_timeout(until - Instant::now().min(until)) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().is_ok(),
            }
        }
    }

    /// What follows these words.
    pub(crate) fn said(&self, words: &str) -> Option<&str> {
        self.said.iter().find_map(|line| line.strip_prefix(words))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ranks of a trial, at work.
pub(crate) fn start(trial: &Trial, hosts: Option<&Hosts>, until: Instant) -> Vec<Process> {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let (pid, world) = (std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
    let two = hosts.filter(|_| trial.way == Way::Mixed);
    let store = match two {
        // Ports of a network of its own, and below those that the system gives.
        Some(_) => format!("10.77.0.1:{}", 2000 + world % 30_000),
        None => format!("unix:@storm-{pid}-{world}"),
    };
    let start = |rank| {
        let mut command = match two {
            Some(hosts) => hosts.process(trial.host(rank), BODY),
            None => harness::process(BODY),
        };
        let seat = format!("{} {} {rank} {store}", trial.seed, hosts.is_some());
        command.env(SEAT, seat).env("RINGREDUCE_CACHE", "off");
        Process::start(command)
    };
    let mut ranks: Vec<_> = (0..trial.n).map(start).collect();
    for rank in 0..trial.n {
        let began = ranks[rank].says(AT_WORK, until);
        let said: Vec<_> = ranks.iter().map(|rank| &rank.said).collect();
        assert!(began, "rank {rank} did not begin: {said:#?}");
    }
    ranks
}
