//! The limits of a process, its user and its machine, as errors name them. May touch: nothing else.

use std::fmt;
use std::io::{self, ErrorKind};

/// What there was too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Descriptors that this process may have open.
    Descriptors,
    /// The same of the whole machine.
    SystemDescriptors,
    /// Memory, or addresses for it.
    Memory,
    /// Threads.
    Threads,
    /// How long a file may be, which shared memory is one of.
    FileSize,
}

/// The system's numbers that have no [`ErrorKind`].
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl Limit {
    /// The one that this answer of the system is about.
    #[must_use]
    pub fn of(answer: &io::Error) -> Option<Self> {
        match (answer.raw_os_error(), answer.kind()) {
            (Some(EMFILE), _) => Some(Self::Descriptors),
            (Some(ENFILE), _) => Some(Self::SystemDescriptors),
            (_, ErrorKind::OutOfMemory) => Some(Self::Memory),
            (_, ErrorKind::FileTooLarge) => Some(Self::FileSize),
            _ => None,
        }
    }
}

impl fmt::Display for Limit {
    /// Its name, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "RLIMIT_NOFILE is reached; raise it with `ulimit -n`",
            Self::SystemDescriptors => "the machine's fs.file-max is reached; raise it",
            Self::Memory => {
                "this process may have no more: look at RLIMIT_AS (`ulimit -v`), the memory limit \
                 of its control group, and the machine's memory"
            }
            Self::Threads => {
                "there may be no more threads: look at RLIMIT_NPROC (`ulimit -u`), the limit of \
                 processes of its control group and, for their stacks, RLIMIT_AS (`ulimit -v`)"
            }
            Self::FileSize => "RLIMIT_FSIZE is below that; raise it with `ulimit -f`",
        })
    }
}
