//! How trainings and parameter servers fail. Errors of the library pass through as they are.

use std::fmt;

use ringreduce::Error as RankError;

use crate::Divergence;

/// How a training fails.
#[derive(Debug, thiserror::Error)]
pub enum Error<M> {
    /// A rank is lost, ranks do different things, or an argument is wrong.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// Ranks or servers do not work together.
    #[error(transparent)]
    Job(JobError),
    /// The model can't compute something.
    #[error("{0}")]
    Model(M),
    /// The optimizer's state was lost with the ranks that had it and its copy.
    #[error(
        "the optimizer's state of step {0} was lost with the ranks that had it; load the last \
         checkpoint"
    )]
    StateLost(u64),
    /// A state of another model or optimizer; nothing was changed by it.
    #[error("the training can't go on from this state: {0}")]
    State(String),
    /// The loss of a step is no finite number; no parameter was changed by it.
    #[error("the loss of step {step} is {loss}: {cause}; try a smaller learning rate")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// The loss over the whole batch; not a number if a gradient alone is not finite.
        loss: f32,
        /// The first rank with a number that is not finite, and what that number is of.
        cause: Divergence,
    },
}

impl<M> Error<M> {
    /// Whether [`Trainer::recover`](crate::Trainer::recover) can go on:
    /// [`ringreduce::Error::is_lost_rank`].
    #[must_use]
    pub const fn is_lost_rank(&self) -> bool {
        matches!(self, Self::Ranks(error) if error.is_lost_rank())
    }
}

/// How the ranks of a job fail to work together. `{:?}` prints the message too, as `main` shows the
/// error that it returns.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The messages or calls fail, or an argument is wrong.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// Ranks have other settings.
    #[non_exhaustive]
    #[error("JobConfig::agree: the setting is {given}, expected {expected}")]
    Settings {
        /// The first setting that differs, and the rank that has it.
        given: String,
        /// The right one and its rank, and what to do.
        expected: String,
    },
    /// Another rank is silent, stuck or missing, or does not what its role says.
    #[non_exhaustive]
    #[error("{call}: {what} is {given}, expected {expected}")]
    Peer {
        /// The method.
        call: &'static str,
        /// The fault.
        what: &'static str,
        /// Which rank, and what it does.
        given: String,
        /// The expected behavior, and the remedy.
        expected: String,
    },
    /// The thread that sends signs of life can't be started.
    #[error(
        "Member::new: a thread for heartbeats can't be started: {0}; use fewer ranks on this host"
    )]
    Thread(std::io::Error),
    /// A snapshot can't be written or read, or belongs to another training.
    #[non_exhaustive]
    #[error("snapshot of part {part} of the parameters: {reason}")]
    Snapshot {
        /// The part.
        part: usize,
        /// The reason, in words.
        reason: String,
    },
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JobError {
    #[cold]
    pub(crate) fn peer(
        call: &'static str,
        what: &'static str,
        given: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Peer { call, what, given: given.into(), expected: expected.into() }
    }

    /// Whether the ranks that are left can go on: [`ringreduce::Error::is_lost_rank`].
    #[must_use]
    pub const fn is_lost_rank(&self) -> bool {
        matches!(self, Self::Ranks(error) if error.is_lost_rank())
    }
}

impl<M> From<JobError> for Error<M> {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Ranks(error) => Self::Ranks(error),
            error => Self::Job(error),
        }
    }
}
