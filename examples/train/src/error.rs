//! What stops a rank. Law: every message names the thing and what to do.

use std::io;
use std::path::PathBuf;

use crate::idx::IdxError;

/// The example's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What stops a rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of images or labels that is not what it should be.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A folder without the files.
    #[error("{}: {problem}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Settings that do not fit the data or the world size.
    #[error("{0}")]
    Unfit(String),
    /// The loss left the numbers.
    #[error("the loss of step {step} in epoch {epoch} is {loss}: try a smaller --lr")]
    Diverged {
        /// The epoch, from 1.
        epoch: usize,
        /// The step in it, from 1.
        step: usize,
        /// Infinite or not a number.
        loss: f32,
    },
    /// Another rank's account of how far it is makes no sense.
    #[error("what another rank said of its progress: {0}; do all run the same program?")]
    Progress(serde_json::Error),
    /// A result that can't be written.
    #[error("{what}: {source}")]
    Output {
        /// The file or stream.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] ringreduce::Error),
    /// The model framework failed.
    #[error("model: {0}")]
    Model(#[from] candle_core::Error),
    /// Any of these, in a world of several ranks.
    #[error("rank {rank} of {size}: {source}")]
    OnRank {
        /// This rank.
        rank: usize,
        /// The world size.
        size: usize,
        /// What stopped it.
        source: Box<Self>,
    },
}
