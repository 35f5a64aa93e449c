//! The processes of a job on this host, beside its ranks: the watcher, and processes that outlived
//! their rank. The parent of those is the launcher now, so that their numbers are not used again
//! before it reaps them. Law: the launcher ends no process that it did not start:
//! neither a child that it inherited (`sidecar & exec ringrun ...`) nor, as the first process of a
//! container, one that came to it from elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::local_process::LocalProcess;
use super::watcher::Watcher;
use super::{procfs, sys};

/// The children that the launcher had before it started any process.
pub(crate) struct Inherited {
    children: BTreeSet<u32>,
    /// True if processes may become children of the launcher that no rank has started.
    adopts_others: bool,
}

impl Inherited {
    pub(crate) fn look() -> Self {
        let me = std::process::id();
        // Most launchers have none, and need not read what all processes of the system are.
        let all = if sys::has_children() { procfs::processes() } else { vec![] };
        let own = all.into_iter().filter(|process| process.parent == me);
        let children: BTreeSet<_> = own.map(|process| process.pid).collect();
        let adopts_others = !children.is_empty() || me == 1;
        Self { children, adopts_others }
    }
}

/// The children of a launcher that are no ranks.
pub(crate) struct Orphans<'a> {
    pub(crate) inherited: Inherited,
    pub(crate) watcher: &'a Watcher,
    watcher_runs: bool,
    own: Vec<OwnProcess>,
    /// The name of the job.
    id: &'a str,
}

/// A process that the launcher has started to reach another host, and reaps by itself. After that
/// its number may be that of another process.
#[derive(Clone)]
pub(crate) struct OwnProcess {
    pid: u32,
    is_reaped: Arc<AtomicBool>,
}

impl OwnProcess {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, is_reaped: Arc::default() }
    }

    pub(crate) fn note_reaped(&self) {
        self.is_reaped.store(true, Ordering::Relaxed);
    }

    fn is_reaped(&self) -> bool {
        self.is_reaped.load(Ordering::Relaxed)
    }
}

/// The ranks that the launcher has started on this host.
pub(crate) trait LocalRanks<'p>: Iterator<Item = &'p LocalProcess> + Clone {}

impl<'p, T: Iterator<Item = &'p LocalProcess> + Clone> LocalRanks<'p> for T {}

impl<'a> Orphans<'a> {
    pub(crate) fn new(inherited: Inherited, watcher: &'a Watcher, id: &'a str) -> Self {
        Self { inherited, watcher, watcher_runs: true, own: vec![], id }
    }

    /// Takes in a process that is no orphan.
    pub(crate) fn add_own(&mut self, process: OwnProcess) {
        self.own.retain(|process| !process.is_reaped());
        self.own.push(process);
    }

    fn is_own(&self, pid: u32) -> bool {
        self.own.iter().any(|process| process.pid == pid && !process.is_reaped())
    }

    /// Reaps orphans. A warning if the watcher was among them.
    pub(crate) fn sweep<'p>(&mut self, ranks: impl LocalRanks<'p>) -> Option<&'static str> {
        let mut warning = None;
        while let Some(pid) = sys::ended_child() {
            let is_rank = ranks.clone().any(|rank| rank.pid() == pid && !rank.has_ended());
            if is_rank || self.is_own(pid) {
                // The loop reaps a rank when its descriptor is next, in the order of the ends, and
                // the thread of an agent its remote shell.
                break;
            }
            let _ = waitpid(Pid::from_raw(pid.cast_signed()), Some(WaitPidFlag::WNOHANG));
            self.inherited.children.remove(&pid);
            if pid == self.watcher.pid() && self.watcher_runs {
                self.watcher_runs = false;
                warning = Some(
                    "the watcher process was killed: if ringrun is killed now, \
                     processes that the ranks started may stay behind",
                );
            }
        }
        warning
    }

    /// The orphans that still run.
    pub(crate) fn running<'p>(&self, ranks: impl LocalRanks<'p>) -> Vec<procfs::Process> {
        let (me, watcher) = (std::process::id(), self.watcher.pid());
        let is_orphan = |process: &procfs::Process| {
            process.parent == me
                && process.pid != watcher
                && process.state != 'Z'
                && !self.is_own(process.pid)
                && !self.is_own(process.group)
                && !self.inherited.children.contains(&process.pid)
                && !ranks.clone().any(|rank| rank.pid() == process.pid && !rank.has_ended())
                && (!self.inherited.adopts_others
                    || ranks.clone().any(|rank| rank.pid() == process.group)
                    || procfs::belongs_to(process.pid, self.id))
        };
        procfs::processes().into_iter().filter(is_orphan).collect()
    }

    /// Sends a signal to the orphans that `which` picks, and gives their number.
    pub(crate) fn end<'p>(
        &self,
        ranks: impl LocalRanks<'p>,
        signal: Signal,
        which: impl Fn(&procfs::Process) -> bool,
    ) -> usize {
        let orphans = self.running(ranks).into_iter().filter(which);
        let send = |process: procfs::Process| {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), signal);
        };
        orphans.map(send).count()
    }
}
