//! Why a job could not be launched at all, and the exit code that says so.
//! A job that ran and failed is no `Failure`: that is a `job::Verdict`.

use std::io;

use ringreduce::Limit;

/// Nothing runs (any more) when one of these comes back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    #[error("{0}\nTry `ringrun --help`.")]
    Usage(String),
    /// That of a subcommand does not.
    #[error("{command}: {what}\nTry `ringrun {command} --help`.")]
    SubcommandUsage {
        /// Its name.
        command: String,
        /// What is wrong.
        what: String,
    },
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
    #[error("cannot {what}: {cause}{}", limit.map(|it| format!(": {it}")).unwrap_or_default())]
    System {
        /// What ringrun was doing.
        what: String,
        /// What the system said.
        cause: io::Error,
        /// What there was too little of.
        limit: Option<Limit>,
    },
}

impl Failure {
    /// As shells do: 2 for usage, 126 and 127 for programs; 1 for the rest.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::SubcommandUsage { .. } => 2,
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::NotRunning(_) | Self::System { .. } => 1,
        }
    }

    /// What makes no sense of a subcommand's words.
    pub(crate) fn usage(command: &str, what: &str) -> Self {
        Self::SubcommandUsage { command: command.into(), what: what.into() }
    }

    /// Names what was being done when the system refused.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |cause| {
            let cause = cause.into();
            Self::System { what, limit: Limit::of(&cause), cause }
        }
    }

    /// The same where a process can't be started.
    pub(crate) fn no_process(what: String, cause: io::Error) -> Self {
        let refused = cause.kind() == io::ErrorKind::WouldBlock;
        let limit = if refused { Some(Limit::Threads) } else { Limit::of(&cause) };
        Self::System { what, cause, limit }
    }
}
