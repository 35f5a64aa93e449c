//! A rank of a job: its process, on this host or on another one, and its connections to the
//! launcher.

use nix::sys::signal::Signal;

use super::agents::RemoteProcess;
use super::local_process::LocalProcess;
use super::pmi::connection::Connection;
use crate::cli::hosts::RankPlacement;
use ringreduce::bootstrap::Progress;

pub(crate) struct Rank {
    pub(crate) placement: RankPlacement,
    pub(crate) process: RankProcess,
    /// The rank's PMI socket, until one side has closed it.
    pub(crate) pmi: Option<Connection>,
    /// How far the rank has come in meeting the others.
    pub(crate) progress: Progress,
}

pub(crate) enum RankProcess {
    Here(LocalProcess),
    There(RemoteProcess),
}

impl Rank {
    /// The rank's process, if it is of this host.
    pub(crate) fn here(&self) -> Option<&LocalProcess> {
        match &self.process {
            RankProcess::Here(process) => Some(process),
            RankProcess::There(_) => None,
        }
    }

    /// The rank's process, if it is of another host.
    pub(crate) fn there(&mut self) -> Option<&mut RemoteProcess> {
        match &mut self.process {
            RankProcess::Here(_) => None,
            RankProcess::There(process) => Some(process),
        }
    }

    /// The number of the rank's process on its host.
    pub(crate) fn pid(&self) -> u32 {
        match &self.process {
            RankProcess::Here(process) => process.pid(),
            RankProcess::There(process) => process.pid,
        }
    }

    /// The number by which all hosts know the process; 0 if it has none.
    pub(crate) fn launched(&self) -> u64 {
        match &self.process {
            RankProcess::Here(process) => process.launched(),
            RankProcess::There(process) => process.launched,
        }
    }

    /// The CPU that the rank is bound to.
    pub(crate) fn cpu(&self) -> Option<usize> {
        match &self.process {
            RankProcess::Here(process) => process.cpu,
            RankProcess::There(process) => process.cpu,
        }
    }

    /// True once the end of the rank's process is known.
    pub(crate) fn has_ended(&self) -> bool {
        match &self.process {
            RankProcess::Here(process) => process.has_ended(),
            RankProcess::There(process) => process.has_ended,
        }
    }

    /// True if a signal has stopped the rank's process.
    pub(crate) fn is_stopped(&self) -> bool {
        match &self.process {
            RankProcess::Here(process) => process.is_stopped(),
            RankProcess::There(process) => process.is_stopped,
        }
    }

    /// "rank 2 (pid 4711, host a)".
    pub(crate) fn label(&self) -> String {
        format!("rank {} (pid {}, host {})", self.placement.rank, self.pid(), self.placement.host)
    }

    /// Signals the rank's process group, unless the rank has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        match &self.process {
            RankProcess::Here(process) => process.signal(signal),
            RankProcess::There(process) => process.signal(signal, false),
        }
    }

    /// Sends a signal to the processes of the rank's group that have a handler for it: see
    /// [`LocalProcess::notify`].
    pub(crate) fn notify(&self, signal: Signal) {
        match &self.process {
            RankProcess::Here(process) => process.notify(signal),
            RankProcess::There(process) => process.signal(signal, true),
        }
    }

    /// Sends SIGTERM, and SIGCONT since a stopped process would not receive it.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }
}
