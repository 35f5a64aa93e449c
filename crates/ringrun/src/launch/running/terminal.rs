//! A terminal as standard input. Rank 0 inherits it, but is a background process group of it: the
//! kernel stops a rank that reads there or changes its settings (SIGTTIN, SIGTTOU). The launcher
//! then lends the terminal to that rank, as a shell does with a job, and takes it back soon: a read
//! that has begun goes on, and Ctrl-C means the whole job. So no input is read for nobody.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

use super::Running;
use crate::launch::job::Event;
use crate::launch::sys;
use ringreduce::bootstrap::Instant;

/// The time that a rank which was continued has to begin its read.
const LOAN: Duration = Duration::from_millis(100);
/// The time between two looks whether a background job was brought to the foreground.
const FOREGROUND_POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Terminal {
    tty: File,
    /// The ranks that were stopped because they want the terminal.
    waiting: Vec<usize>,
    /// The process group that has the terminal, and until when.
    loan: Option<(Pid, Instant)>,
    /// When to look again for ranks that wait.
    retry: Option<Instant>,
}

impl Terminal {
    /// The terminal that is the standard input and controls this process's session.
    pub(super) fn of_stdin() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(stdin.as_fd()).is_err() {
            return None;
        }
        let tty = File::from(stdin.as_fd().try_clone_to_owned().ok()?);
        Some(Self { tty, waiting: vec![], loan: None, retry: None })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.loan.map(|(_, until)| until).into_iter().chain(self.retry).min()
    }

    fn has(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Gives the terminal to a process group. With SIGTTOU blocked, a background process may.
    fn give(&self, group: Pid) {
        let only = SigSet::from(Signal::SIGTTOU);
        let _ = only.thread_block();
        let _ = tcsetpgrp(&self.tty, group);
        let _ = only.thread_unblock();
    }

    /// Ends a loan, unless a shell has taken the terminal meanwhile.
    pub(super) fn take_back(&mut self) {
        if let Some((group, _)) = self.loan.take()
            && self.has(group)
        {
            self.give(getpgrp());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl Running<'_> {
    /// Lends the terminal to a rank that was stopped because it wants it.
    pub(super) fn lend_terminal(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        let mut interrupted = false;
        let here = self.ranks.iter().enumerate().filter_map(|(at, rank)| Some((at, rank.here()?)));
        for (number, rank) in here.filter(|(_, rank)| !rank.has_ended()) {
            match sys::stop_of(rank.pid()) {
                Some(libc::SIGTTIN | libc::SIGTTOU) => terminal.waiting.push(number),
                // The rank had the terminal when Ctrl-Z was typed, which meant the whole job.
                Some(libc::SIGTSTP)
                    if terminal.loan.is_some_and(|(lent, _)| lent == rank.group()) =>
                {
                    interrupted = true;
                }
                _ => {}
            }
        }
        let now = Instant::now();
        if terminal.loan.is_some_and(|(_, until)| now >= until) {
            terminal.take_back();
        }
        terminal.waiting.retain(|&rank| !self.ranks[rank].has_ended());
        terminal.retry = None;
        if let Some(&rank) = terminal.waiting.first()
            && terminal.loan.is_none()
        {
            if !terminal.has(getpgrp()) {
                // Stops the launcher as the system would stop a program that reads in the
                // background, unless no shell is there that could continue it.
                let _ = raise(Signal::SIGTTIN);
            }
            if terminal.has(getpgrp()) {
                let group = Pid::from_raw(self.ranks[rank].pid().cast_signed());
                terminal.waiting.remove(0);
                terminal.give(group);
                terminal.loan = Some((group, Instant::now() + LOAN));
                self.ranks[rank].signal(Signal::SIGCONT);
            } else {
                terminal.retry = Some(now + FOREGROUND_POLL_INTERVAL);
            }
        }
        if interrupted {
            self.handle(Event::Signal(Signal::SIGTSTP));
        }
    }
}
