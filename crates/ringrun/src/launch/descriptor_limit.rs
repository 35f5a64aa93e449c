//! The limit of open descriptors, and the ranks that fit into it.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

use crate::cli::Request;
use crate::failure::Failure;

/// The descriptors that ringrun has, and takes while it starts a rank, however many ranks.
const OWN_DESCRIPTORS: u64 = 32;
/// For each rank: its process, its connections to the store and to PMI, its output and its errors.
const DESCRIPTORS_PER_RANK: u64 = 5;
/// For each agent: the pipes of its remote shell, its connection, and the pipe of its thread.
const DESCRIPTORS_PER_AGENT: u64 = 8;
/// For each rank of another host: both ends of its output, its errors, and its connections to the
/// store and to PMI.
const DESCRIPTORS_PER_REMOTE_RANK: u64 = 8;
/// For each rank with `--output-filename`: the two files.
const FILES_PER_RANK: u64 = 2;

/// The soft and hard limit that ringrun was started with, for the ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorLimit {
    pub(super) soft: rlim_t,
    pub(super) hard: rlim_t,
}

/// The most ranks that ringrun can hold under a hard limit, without files for their output.
pub(crate) fn most_ranks(hard: rlim_t) -> u64 {
    ranks_within(hard, DESCRIPTORS_PER_RANK)
}

/// The descriptors that ringrun needs for so many ranks.
pub(crate) fn descriptors_of(ranks: u64) -> u64 {
    OWN_DESCRIPTORS.saturating_add(ranks.saturating_mul(DESCRIPTORS_PER_RANK))
}

fn ranks_within(hard: rlim_t, each: u64) -> u64 {
    hard.saturating_sub(OWN_DESCRIPTORS) / each
}

impl DescriptorLimit {
    /// Raises the limit for many ranks, so many of them on this host. Refuses a job that ringrun
    /// could not hold under it.
    pub(super) fn raise(request: &Request, here: usize, all: usize) -> Result<Self, Failure> {
        let refused = |cause: Errno| Failure::call("raise a limit", "prlimit64")(cause);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(refused)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(refused)?;
        let files = if request.files.is_some() { FILES_PER_RANK } else { 0 };
        let (each, there) = match all - here {
            0 => (DESCRIPTORS_PER_RANK + files, 0),
            there => (DESCRIPTORS_PER_REMOTE_RANK + files, there),
        };
        let agents = if there > 0 { request.hosts.len() as u64 * DESCRIPTORS_PER_AGENT } else { 0 };
        let saved = (here as u64) * (DESCRIPTORS_PER_REMOTE_RANK - DESCRIPTORS_PER_RANK);
        let saved = if there > 0 { saved } else { 0 };
        let most = ranks_within(hard.saturating_add(saved).saturating_sub(agents), each);
        if all as u64 <= most {
            return Ok(Self { soft, hard });
        }
        let (fit, or_fewer) = match most {
            0 => ("no rank fits".to_string(), ""),
            _ => (format!("at most {most} ranks fit"), ", or start fewer ranks"),
        };
        let of_others = if there > 0 { " that runs on another host" } else { "" };
        Err(Failure::Usage(format!(
            "-n {all}: {fit} here: each{of_others} takes {each} of ringrun's descriptors, ringrun \
             itself {OWN_DESCRIPTORS}, and the hard limit is {hard} (ulimit -Hn); raise it\
             {or_fewer}"
        )))
    }
}
