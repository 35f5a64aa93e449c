//! Why a job could not be launched at all, and the exit code that says so.
//! A job that ran and failed is no `Failure`: that is a `job::Verdict`.

use std::io;

/// Nothing runs (any more) when one of these comes back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    #[error("{0}\nTry `ringrun --help`.")]
    Usage(String),
    /// There is no such program.
    #[error("{0}")]
    NotFound(String),
    /// There is one, but it can't be run.
    #[error("{0}")]
    NotExecutable(String),
    /// There is no such job.
    #[error("{0}")]
    NotRunning(String),
    /// The operating system refused something.
    #[error("cannot {what}: {cause}")]
    System {
        /// What ringrun was doing.
        what: String,
        /// What the system said.
        cause: io::Error,
    },
}

impl Failure {
    /// As shells do: 2 for usage, 126 and 127 for programs; 1 for the rest.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::NotRunning(_) | Self::System { .. } => 1,
        }
    }

    /// Names what was being done when the system refused.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |cause| Self::System { what, cause: cause.into() }
    }
}
