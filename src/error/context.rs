//! The context of an error: peers, the call and step of a rank, and states of stalled ranks.

use std::fmt;

use super::communicator_name::OfCommunicator;

/// A rank, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// The number of its process.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// The call and step at which a rank failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The rank that reports.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// The method's name.
    pub operation: &'static str,
    /// Number of the call on this communicator, from 1.
    pub sequence: u64,
    /// The caller's tag of the call.
    pub tag: Option<String>,
    /// The name of the communicator, if it has one.
    pub communicator: Option<String>,
    /// Step of the schedule, from 0.
    pub step: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, operation, sequence, tag, communicator, step } = self;
        write!(f, "rank {rank} (host {host}) in {operation} #{sequence}")?;
        if let Some(tag) = tag {
            write!(f, " {tag:?}")?;
        }
        write!(f, "{}, step {step}", OfCommunicator(communicator.as_deref()))
    }
}

/// State of a rank that keeps others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// The process is stopped, by a signal or a debugger.
    #[non_exhaustive]
    Paused {
        /// Number of the latest call that the rank entered.
        entered: u64,
    },
    /// The rank is on another host and has not reported that it waits in the call, as the others
    /// have. It is stopped, busy with other work, or has not reached the call.
    #[non_exhaustive]
    Silent {
        /// Number of the latest call in which the rank reported that it waits.
        waited: u64,
    },
    /// The rank is in a collective, while this one waits for a message of it or to it.
    #[non_exhaustive]
    InCall {
        /// Number of that call.
        entered: u64,
    },
    /// The process runs, but has not made the call yet.
    #[non_exhaustive]
    NeverEntered {
        /// Number of the latest call that the rank entered.
        entered: u64,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { entered } => {
                write!(f, "is paused: its process is stopped, {}", last_call_text(*entered))
            }
            Self::Silent { waited: 0 } => {
                f.write_str("is silent: it is stopped, busy, or has not come to it")
            }
            Self::Silent { waited } => {
                write!(f, "is silent since it waited in call #{waited}: it is stopped, or busy")
            }
            Self::InCall { entered } => {
                write!(f, "is in call #{entered}, which this rank has not made")
            }
            Self::NeverEntered { entered } => {
                write!(f, "never entered it, {}", last_call_text(*entered))
            }
        }
    }
}

/// The latest call that a rank entered, in words.
fn last_call_text(entered: u64) -> String {
    if entered == 0 { "nor any call before".into() } else { format!("its last call is #{entered}") }
}
