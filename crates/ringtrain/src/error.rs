//! The errors of a rank. Law: every message names the cause and a remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use strategy::{Divergence, JobError};

use crate::data::FileError;

/// The program's result.
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
    /// Settings that do not fit the data, the model or the number of ranks.
    #[error("{0}")]
    Unfit(String),
    /// The loss is not finite.
    #[error("the loss of step {step} is {loss}: {cause}; try a smaller --lr{}", words(good))]
    Diverged { step: u64, loss: f32, cause: Divergence, good: Option<Box<LastGood>> },
    /// A step after which the model is of no use.
    #[error("after step {step} {what} not finite; try a smaller --lr{}", words(good))]
    Unusable { step: u64, what: String, good: Option<Box<LastGood>> },
    /// A checkpoint that can't be written, read or used.
    #[error("checkpoint {}: {problem}", file.display())]
    Checkpoint { file: PathBuf, problem: String },
    /// A failure of another rank, which all ranks learn of.
    #[error("rank {rank} has failed: {problem}")]
    Elsewhere { rank: usize, problem: String },
    /// A state that doesn't fit this training.
    #[error("the training can't go on from this state: {0}")]
    State(String),
    /// The optimizer's state is lost with the ranks that had it.
    #[error(
        "the optimizer's state of step {0} is lost with the ranks that had it and its copy, and no \
         checkpoint is there to go back to: give --checkpoint DIR, which saves one after each \
         epoch, and --checkpoint-every N to save more"
    )]
    StateLost(u64),
    /// Ranks with parts of the model were lost, and none has come in their place.
    #[error(
        "no rank has come back for the parts of the model that {missing} had{}; start the training \
         again, with --resume if it has saved a checkpoint",
        cause(lost)
    )]
    NotBack { missing: String, lost: Option<ringreduce::Error> },
    /// Ranks are lost while the last checkpoint is saved, and it is: the others can end.
    #[error("the training is complete, and its last checkpoint is saved")]
    Complete,
    /// The user has ended the training while it waited for lost ranks.
    #[error("stopped while it waited for {0}; --resume goes on from the last checkpoint")]
    Stopped(String),
    /// A thread that can't be started.
    #[error("a thread can't be started: {0}; use fewer ranks or loaders")]
    Thread(io::Error),
    /// A result that cannot be written.
    #[error("{what}: {source}")]
    Output { what: String, source: io::Error },
    /// A chart that cannot be drawn.
    #[error("drawing {what}: {problem}")]
    Chart { what: String, problem: String },
    /// A figure of a lesson that is not the expected one.
    #[error("{0} figures are not as expected: see the lines that say MISSED")]
    Missed(usize),
    /// Ranks were started with other settings.
    #[error("the ranks have other settings: {given}, expected {expected}")]
    Settings { given: String, expected: String },
    /// Ranks that all have the whole model have not the same one.
    #[error(
        "the weights of the ranks differ after step {0}, which no training may do: go on with \
         --resume from an earlier checkpoint"
    )]
    WeightsDiffer(u64),
    /// Ranks or parameter servers do not work together.
    #[error(transparent)]
    Job(JobError),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] ringreduce::Error),
    /// The model framework failed.
    #[error("model: {0}")]
    Model(candle_core::Error),
    /// Any of these, in a world of several ranks.
    #[error("rank {rank} of {size}: {source}")]
    OnRank { rank: usize, size: usize, source: Box<Self> },
}

/// The state from which a training that has diverged can go on.
#[derive(Clone, Debug, PartialEq)]
pub struct LastGood {
    /// The folder of the checkpoints.
    pub dir: PathBuf,
    /// The newest checkpoint whose parameters have had a finite loss.
    pub file: Option<PathBuf>,
    /// The first loss of its parameters, if this rank knows it.
    pub loss: Option<f32>,
    /// The checkpoints that are newer, under the names that they have now.
    pub renamed: Vec<PathBuf>,
}

impl fmt::Display for LastGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => {
                write!(f, " and --resume from the last good checkpoint, {}", file.display())?;
                match self.loss {
                    Some(loss) if loss < 1e6 => write!(f, ", whose loss was {loss:.4}")?,
                    Some(loss) => write!(f, ", whose loss was {loss:.1e}")?,
                    None => {}
                }
            }
            None => write!(f, "; {} has no good checkpoint to go on from", self.dir.display())?,
        }
        if self.renamed.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.renamed.iter().map(|it| it.display().to_string()).collect();
        write!(f, "; the parameters that led to this are in {}", names.join(", "))
    }
}

fn words(good: &Option<Box<LastGood>>) -> String {
    good.as_ref().map_or_else(String::new, ToString::to_string)
}

fn cause(lost: &Option<ringreduce::Error>) -> String {
    lost.as_ref().map_or_else(String::new, |lost| format!(": {lost}"))
}

/// A failure of the ranks as an error of the framework, which [`Error::from`] turns back.
pub(crate) fn in_model(error: ringreduce::Error) -> candle_core::Error {
    candle_core::Error::Io(io::Error::other(error))
}

impl From<candle_core::Error> for Error {
    /// A call of the ranks that failed within the model is a failure of the ranks.
    fn from(error: candle_core::Error) -> Self {
        match error {
            candle_core::Error::Io(error) => match error.downcast::<ringreduce::Error>() {
                Ok(error) => Self::Collective(error),
                Err(error) => Self::Model(error.into()),
            },
            candle_core::Error::WithBacktrace { inner, .. } => Self::from(*inner),
            error => Self::Model(error),
        }
    }
}

impl From<strategy::Error<Self>> for Error {
    fn from(error: strategy::Error<Self>) -> Self {
        match error {
            strategy::Error::Ranks(error) => error.into(),
            strategy::Error::Job(error) => error.into(),
            strategy::Error::Model(error) => error,
            strategy::Error::State(problem) => Self::State(problem),
            strategy::Error::StateLost(step) => Self::StateLost(step),
            strategy::Error::Diverged { step, loss, cause } => {
                Self::Diverged { step, loss, cause, good: None }
            }
        }
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Ranks(error) => error.into(),
            JobError::Settings { given, expected, .. } => Self::Settings { given, expected },
            other => Self::Job(other),
        }
    }
}

impl Error {
    /// This error with the last good checkpoint, if it is of a training that has diverged: `find`
    /// gets the last step whose loss was finite.
    #[must_use]
    pub(crate) fn with_last_good(self, find: impl FnOnce(u64) -> Option<LastGood>) -> Self {
        match self {
            Self::Diverged { step, loss, cause, .. } => {
                Self::Diverged { step, loss, cause, good: find(step - 1).map(Box::new) }
            }
            Self::Unusable { step, what, .. } => {
                Self::Unusable { step, what, good: find(step).map(Box::new) }
            }
            other => other,
        }
    }

    /// True if a rank is lost, so that the others can go on without it.
    #[must_use]
    pub(crate) fn is_lost_rank(&self) -> bool {
        matches!(self, Self::Collective(error) if error.is_lost_rank())
    }

    /// True if the user has ended the training.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        match self {
            Self::OnRank { source, .. } => source.is_stop(),
            error => matches!(error, Self::Stopped(_)),
        }
    }

    /// True if another rank's failure is the cause.
    #[must_use]
    pub(crate) fn is_consequence(&self) -> bool {
        match self {
            Self::OnRank { source, .. } => source.is_consequence(),
            Self::Collective(ringreduce::Error::Broken { .. }) | Self::Elsewhere { .. } => true,
            error => error.is_lost_rank(),
        }
    }
}
