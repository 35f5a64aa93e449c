//! Resource limits of a process, its user and its machine, as errors name them.

use std::fmt;
use std::io::{self, ErrorKind};

/// The resource limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Descriptors of this process.
    Descriptors,
    /// Descriptors of the whole machine.
    SystemDescriptors,
    /// Memory, or address space.
    Memory,
    /// Threads.
    Threads,
    /// File length, which limits shared memory too.
    FileSize,
}

/// Error numbers of Linux without an [`ErrorKind`].
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl Limit {
    /// The limit that this answer of the system is about.
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
    /// Prints the limit's name, and what to do.
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
