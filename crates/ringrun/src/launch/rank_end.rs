//! How the process of a rank ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use super::signals;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RankEnd {
    Exited(u8),
    Killed { signal: i32, core: bool },
}

impl RankEnd {
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(status), _) => Self::Exited((status & 0xff) as u8),
            (None, signal) => {
                Self::Killed { signal: signal.unwrap_or(0), core: status.core_dumped() }
            }
        }
    }
}

/// "exited with status 3", "was killed by SIGSEGV".
impl fmt::Display for RankEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Killed { signal, .. } => write!(f, "was killed by {}", signals::name(*signal)),
        }
    }
}
