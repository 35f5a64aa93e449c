//! Who and where: ranks as others know them, and what they were doing. May touch: nothing else.

use std::fmt;

/// A rank as others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// Its process there.
    pub pid: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// Where in its program a rank was when a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The rank that reports.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// The collective, as its method is called.
    pub operation: &'static str,
    /// The number of the call on this communicator, from 1.
    pub sequence: u64,
    /// What the caller says that the call is for.
    pub tag: Option<String>,
    /// The step of the schedule, from 0.
    pub step: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, operation, sequence, tag, step } = self;
        write!(f, "rank {rank} (host {host}) in {operation} #{sequence}")?;
        if let Some(tag) = tag {
            write!(f, " {tag:?}")?;
        }
        write!(f, ", step {step}")
    }
}

/// What a rank does that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stall {
    /// Its process is stopped: by a signal, or a debugger.
    #[non_exhaustive]
    Paused {
        /// The number of the latest call that it entered.
        entered: u64,
    },
    /// On another host: it has not said that it waits in the call, as the others have. It is
    /// stopped, busy with something else, or has not come to it.
    #[non_exhaustive]
    Silent {
        /// The number of the latest call in which it has said so.
        waited: u64,
    },
    /// It runs, but has not made the call yet.
    #[non_exhaustive]
    NeverEntered {
        /// Likewise.
        entered: u64,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { entered } => {
                write!(f, "is paused: its process is stopped, {}", last(*entered))
            }
            Self::Silent { waited: 0 } => {
                f.write_str("is silent: it is stopped, busy, or has not come to it")
            }
            Self::Silent { waited } => {
                write!(f, "is silent since it waited in call #{waited}: it is stopped, or busy")
            }
            Self::NeverEntered { entered } => write!(f, "never entered it, {}", last(*entered)),
        }
    }
}

/// The latest call that a rank entered.
fn last(entered: u64) -> String {
    if entered == 0 { "nor any call before".into() } else { format!("its last call is #{entered}") }
}
