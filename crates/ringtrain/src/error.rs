//! The errors of a rank. Law: every message names the cause and a remedy.

use std::io;
use std::path::PathBuf;

use crate::data::FileError;

/// The example's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error that stops a rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A wrong file of images or labels.
    #[error(transparent)]
    File(#[from] FileError),
    /// A folder without the files.
    #[error("{}: {problem}", dir.display())]
    Folder { dir: PathBuf, problem: String },
    /// Settings that do not fit the data or the world size.
    #[error("{0}")]
    Unfit(String),
    /// The loss is not finite.
    #[error("the loss of step {step} in epoch {epoch} is {loss}: try a smaller --lr")]
    Diverged { epoch: usize, step: usize, loss: f32 },
    /// A thread that can't be started.
    #[error("a thread that loads images can't be started: {0}; use fewer of them")]
    Thread(io::Error),
    /// The progress of another rank cannot be decoded.
    #[error("what another rank said of its progress: {0}; do all run the same program?")]
    Progress(serde_json::Error),
    /// A result that cannot be written.
    #[error("{what}: {source}")]
    Output { what: String, source: io::Error },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] ringreduce::Error),
    /// The model framework failed.
    #[error("model: {0}")]
    Model(#[from] candle_core::Error),
    /// Any of these, in a world of several ranks.
    #[error("rank {rank} of {size}: {source}")]
    OnRank { rank: usize, size: usize, source: Box<Self> },
}
