//! Errors of a command that launches no job, and their exit codes. A job that was launched and
//! failed is a `JobFailure` instead.

use std::io;

use nix::sys::signal::Signal;
use ringreduce::Limit;
use ringreduce::bootstrap::name_refused_call;

use crate::launch::job::JobFailure;

/// The reason why nothing was launched, or runs any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}\nTry `ringrun --help`.")]
    Usage(String),
    #[error("{command}: {what}\nTry `ringrun {command} --help`.")]
    SubcommandUsage { command: String, what: String },
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    NotExecutable(String),
    #[error("{0}")]
    NotRunning(String),
    /// Another host of the job.
    #[error("{0}")]
    Host(String),
    #[error("{0} came before the job had begun")]
    Interrupted(Signal),
    #[error("the time limit was reached before these hosts were ready (--timeout): {0}")]
    TimeLimit(String),
    #[error("cannot {what}: {cause}{}", limit.map(|it| format!(": {it}")).unwrap_or_default())]
    System {
        /// The action that failed, after "cannot".
        what: String,
        cause: io::Error,
        limit: Option<Limit>,
    },
}

impl Failure {
    /// The exit code, as of a shell: 2 for usage, 126 and 127 for programs, 1 for all else.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::SubcommandUsage { .. } => 2,
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::NotRunning(_) | Self::Host(_) | Self::System { .. } => 1,
            Self::TimeLimit(_) => JobFailure::TimedOut(vec![]).exit_code(),
            Self::Interrupted(signal) => JobFailure::Interrupted(*signal).exit_code(),
        }
    }

    pub(crate) fn usage(command: &str, what: &str) -> Self {
        Self::SubcommandUsage { command: command.into(), what: what.into() }
    }

    /// The failure of another host, which exits with this code there.
    pub(crate) fn of_host(exit_code: u8, what: String) -> Self {
        match exit_code {
            127 => Self::NotFound(what),
            126 => Self::NotExecutable(what),
            _ => Self::Host(what),
        }
    }

    /// This failure of a host, and the texts of those of others.
    pub(crate) fn and(self, others: &str) -> Self {
        Self::of_host(self.exit_code(), format!("{self}{others}"))
    }

    /// A refusal of the system, with the action that failed.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |cause| {
            let cause = cause.into();
            Self::System { what, limit: Limit::of(&cause), cause }
        }
    }

    /// As [`Self::system`], for an action that is the one system call `call`.
    pub(crate) fn call<E: Into<io::Error>>(what: &str, call: &str) -> impl FnOnce(E) -> Self {
        move |cause| Self::system(what)(name_refused_call(call, cause))
    }

    /// As [`Self::system`], for a process or a thread that could not be started.
    pub(crate) fn no_process(what: String, cause: io::Error) -> Self {
        let refused = cause.kind() == io::ErrorKind::WouldBlock;
        let limit = if refused { Some(Limit::Threads) } else { Limit::of(&cause) };
        Self::System { what, cause, limit }
    }
}
