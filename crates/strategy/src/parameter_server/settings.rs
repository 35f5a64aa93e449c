//! How a server works, and how it fails.

use ringreduce::Error;

use super::policy::Policy;
use super::snapshot::SnapshotStore;
use crate::Optimizer;

/// How a server works. All servers of a job have the same settings.
pub struct ServerSettings {
    /// When it updates its parameters.
    pub policy: Policy,
    /// How it updates them.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub rate: f32,
    /// Its snapshots, if it shall come back after it was lost.
    pub snapshots: Option<Snapshots>,
}

/// When and where a server writes its state.
pub struct Snapshots {
    /// Where.
    pub store: Box<dyn SnapshotStore>,
    /// The number of updates after which the next one is written, before any worker has the
    /// parameters; so all that a worker knows is kept if this is 1.
    pub every: u64,
    /// Whether a job that begins goes on from the snapshots of another job.
    pub is_resumed: bool,
}

/// How a server fails.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The messages fail, a worker does not what it should, or an argument is wrong.
    #[error(transparent)]
    Ranks(#[from] Error),
    /// A snapshot can't be written or read, or belongs to another training.
    #[error("snapshot of part {part} of the parameters: {reason}")]
    Snapshot {
        /// The part.
        part: usize,
        /// What is wrong.
        reason: String,
    },
}
