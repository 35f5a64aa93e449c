//! Processes that outlived their rank. Their parent is the launcher now, so that their numbers are
//! not used again before it reaps them. Law: the launcher ends no process that it did not start:
//! neither a child that it inherited (`sidecar & exec ringrun ...`) nor, as the first process of a
//! container, one that came to it from elsewhere.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::Running;
use crate::launch::job::Event;
use crate::launch::{procfs, sys};

/// The children that the launcher had before it started any process.
pub(in crate::launch) struct Inherited {
    children: BTreeSet<u32>,
    /// True if processes may become children of the launcher that no rank has started.
    adopts_others: bool,
}

impl Inherited {
    pub(in crate::launch) fn look() -> Self {
        let me = std::process::id();
        // Most launchers have none, and need not read what all processes of the system are.
        let all = if sys::has_children() { procfs::processes() } else { vec![] };
        let own = all.into_iter().filter(|process| process.parent == me);
        let children: BTreeSet<_> = own.map(|process| process.pid).collect();
        let adopts_others = !children.is_empty() || me == 1;
        Self { children, adopts_others }
    }
}

impl Running<'_> {
    /// Reaps orphans, and once all ranks have ended looks whether any orphan is left.
    pub(super) fn sweep(&mut self) {
        while let Some(pid) = sys::ended_child() {
            if self.ranks.iter().any(|rank| rank.pid() == pid && !rank.has_ended()) {
                // The loop reaps this rank when its descriptor is next, in the order of the ends.
                break;
            }
            let _ = waitpid(Pid::from_raw(pid.cast_signed()), Some(WaitPidFlag::WNOHANG));
            self.inherited.children.remove(&pid);
            if pid == self.spawner.watcher.pid() && self.watcher_runs {
                self.watcher_runs = false;
                self.request.warn(
                    "the watcher process was killed: if ringrun is killed now, \
                     processes that the ranks started may stay behind",
                );
            }
        }
        if self.job.wants_empty() {
            if self.orphans().is_empty() {
                self.handle(Event::Empty);
            } else if self.job.kills_leftovers() {
                self.end_orphans(Signal::SIGKILL, |_| true);
            }
        }
    }

    pub(super) fn is_group_of_rank(&self, group: u32) -> bool {
        self.ranks.iter().any(|rank| rank.pid() == group)
    }

    fn orphans(&self) -> Vec<procfs::Process> {
        let (me, watcher) = (std::process::id(), self.spawner.watcher.pid());
        let is_orphan = |process: &procfs::Process| {
            process.parent == me
                && process.pid != watcher
                && process.state != 'Z'
                && !self.inherited.children.contains(&process.pid)
                && !self.ranks.iter().any(|rank| rank.pid() == process.pid && !rank.has_ended())
                && (!self.inherited.adopts_others
                    || self.is_group_of_rank(process.group)
                    || procfs::belongs_to(process.pid, self.spawner.id))
        };
        procfs::processes().into_iter().filter(is_orphan).collect()
    }

    /// Sends a signal to the orphans that `which` picks, and gives their number.
    pub(super) fn end_orphans(
        &self,
        signal: Signal,
        which: impl Fn(&procfs::Process) -> bool,
    ) -> usize {
        let orphans = self.orphans().into_iter().filter(which);
        let send = |process: procfs::Process| {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), signal);
        };
        orphans.map(send).count()
    }
}
