//! The launcher's view of an agent: the sending half of its thread, and the processes
//! that it has started.

use std::io::{PipeWriter, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Agents;
use super::client::{Client, Pipes};
use super::message::{RankRecord, ToAgent};
use super::stream::StreamEnd;
use ringreduce::bootstrap::{Instant, SealedStream};

/// The time in which an agent answers for the records of its ranks.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// A request of the launcher to an agent's thread.
pub(super) enum Command {
    Send(ToAgent),
    Add(u32, StreamEnd),
    /// Go on over this connection, which the agent of this generation has made.
    Resume(u16, SealedStream),
    /// Ask the agent for the records of its ranks.
    Read(Sender<Vec<HostRecord>>),
    /// This remote shell starts an agent, where another host could not, or the former one is lost.
    Start(Client, Pipes),
    /// Tell when all that was said before has left this host.
    Flush(Sender<()>),
    /// The launcher needs the agent no more.
    Close,
}

/// A rank's record, and the nanoseconds by which the clock of its host is behind.
pub(crate) struct HostRecord {
    pub(crate) record: RankRecord,
    pub(crate) behind: i64,
}

/// The records for which an agent was asked.
pub(crate) struct AskedRecords(Receiver<Vec<HostRecord>>);

impl AskedRecords {
    /// The time by which all agents that were asked now have answered.
    pub(crate) fn deadline() -> Instant {
        Instant::now() + READ_LIMIT
    }

    /// The records; none of an agent that has not answered by the deadline.
    pub(crate) fn wait(&self, deadline: Instant) -> Vec<HostRecord> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left).unwrap_or_default()
    }
}

/// The sending half of an agent's thread.
#[derive(Clone)]
pub(crate) struct Commands {
    pub(super) sender: Sender<Command>,
    /// Gets a byte for each command, which wakes the thread.
    pub(super) wake: Arc<PipeWriter>,
}

impl Commands {
    /// A thread that has ended has told the loop so.
    pub(super) fn send(&self, command: Command) {
        if self.sender.send(command).is_ok() {
            // A full pipe has bytes enough to wake the thread.
            let _ = (&*self.wake).write(&[1]);
        }
    }

    /// Asks for the records of the agent's ranks.
    pub(crate) fn ask_for_records(&self) -> AskedRecords {
        let (sender, records) = channel();
        self.send(Command::Read(sender));
        AskedRecords(records)
    }
}

impl Agents {
    /// Tells all agents but that of this host how a process of it ended.
    pub(crate) fn tell_far_end(&self, host_number: usize, end: &[u8]) {
        for (_, commands) in self.commands().iter().filter(|(other, _)| *other != host_number) {
            commands.send(Command::Send(ToAgent::FarEnd(end.to_vec())));
        }
    }
}

/// A process that an agent has started as a rank, as far as the agent has told.
pub(crate) struct RemoteProcess {
    pub(super) rank: usize,
    pub(super) commands: Commands,
    pub(crate) pid: u32,
    pub(crate) launched: u64,
    pub(crate) cpu: Option<usize>,
    pub(crate) has_ended: bool,
    pub(crate) is_stopped: bool,
}

impl RemoteProcess {
    /// Sends a signal to the rank's process group, or to those processes of it that have a handler.
    pub(crate) fn signal(&self, signal: Signal, to_handlers: bool) {
        if !self.has_ended {
            let (rank, signal) = (self.rank, signal as i32);
            self.commands.send(Command::Send(ToAgent::Signal { rank, signal, to_handlers }));
        }
    }
}
