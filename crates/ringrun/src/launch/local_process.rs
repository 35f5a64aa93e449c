//! A process of this host that was started as a rank, and the group of processes that it leads.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::rank_end::RankEnd;
use super::watcher::Watcher;
use super::{procfs, sys};
use ringreduce::health::process_table::ProcessTable;
use ringreduce::trace::Reader;

pub(crate) struct LocalProcess {
    /// A pidfd, readable when the rank has ended; none where the system refuses them.
    pub(crate) exit_fd: Option<OwnedFd>,
    pub(crate) cpu: Option<usize>,
    pub(crate) record: Option<Reader>,
    /// The entry in the launcher's process table in which other ranks see how this one ended.
    pub(super) table_entry: Option<(Arc<ProcessTable>, usize)>,
    pub(super) child: Child,
    pub(super) ended: bool,
}

impl LocalProcess {
    /// The number of the rank's process and of its process group.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True once the rank's process was reaped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The number by which all hosts know the process; 0 if it has no entry in the process table.
    pub(crate) fn launched(&self) -> u64 {
        self.table_entry.as_ref().map_or(0, |(table, at)| table.id(*at))
    }

    /// How the process ended, for the process tables of other hosts; none while it runs or without
    /// an entry in the process table. An end that was well matters to survivors alone, which only a
    /// job that `goes_on` has.
    pub(crate) fn far_end(&self, end: RankEnd, goes_on: bool) -> Option<Vec<u8>> {
        let matters = goes_on || end != RankEnd::Exited(0);
        let (table, at) = self.table_entry.as_ref().filter(|_| matters)?;
        table.end_of(*at)
    }

    /// Signals the rank's process group, unless the rank has ended: its number may be in use again.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.ended {
            let _ = killpg(self.group(), signal);
        }
    }

    /// Sends a signal that ends a process which has no handler for it, such as the shell that
    /// started the program: it goes to the processes of the rank's group that have one. Where none
    /// has, SIGUSR1, by which users ask ringrun for the status, goes to none, and others to all.
    pub(crate) fn notify(&self, signal: Signal) {
        let group = self.pid();
        let processes = procfs::processes().into_iter().filter(|process| process.group == group);
        let handlers: Vec<_> =
            processes.filter(|it| procfs::has_handler(it.pid, signal as i32)).collect();
        if handlers.is_empty() && signal != Signal::SIGUSR1 {
            return self.signal(signal);
        }
        for process in handlers.into_iter().filter(|_| !self.ended) {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), signal);
        }
    }

    /// True if a signal has stopped the rank's process.
    pub(crate) fn is_stopped(&self) -> bool {
        procfs::process(self.pid()).is_some_and(|process| process.state == 'T')
    }

    /// True if the process has ended and was not reaped.
    pub(crate) fn is_ended(&self) -> bool {
        !self.ended && sys::end_of(self.pid()).is_some()
    }

    /// As [`Self::is_ended`], if no `exit_fd` tells the end.
    pub(crate) fn is_ended_without_descriptor(&self) -> bool {
        self.exit_fd.is_none() && self.is_ended()
    }

    /// Reaps the rank, once it has ended. The process number is free after that, so the
    /// watcher forgets the group, unless other processes of it still hold the number.
    pub(crate) fn reap(&mut self, watcher: &Watcher) -> io::Result<RankEnd> {
        if let (Some((table, at)), Some(end)) = (&self.table_entry, sys::end_of(self.pid())) {
            table.set_ended(*at, end);
        }
        let status = self.child.wait()?;
        self.ended = true;
        if killpg(self.group(), None).is_err() {
            watcher.forget_group(self.group().as_raw());
        }
        Ok(RankEnd::of(status))
    }

    pub(crate) fn group(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed())
    }
}

impl Drop for LocalProcess {
    /// Only a failed launch drops ranks that run.
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::SIGKILL);
            // A process in state D can't die, and is not waited for.
            if procfs::process(self.pid()).is_none_or(|process| process.state != 'D') {
                let _ = self.child.wait();
            }
        }
    }
}
