//! The hosts of a job, and the host of each rank. The hosts are those of `--host` and `--hostfile`,
//! else those that a batch system or a default host file names, else this host alone. `text` reads
//! names, `available` puts them together, `placement` deals the ranks, and `groups` does so for
//! several programs: these are pure.

mod available;
mod counts;
mod file;
mod groups;
mod launcher;
mod mapping;
mod named;
mod nodes;
mod options;
mod placement;
mod placing;
mod surroundings;
mod text;
mod this_host;

use serde::{Deserialize, Serialize};

pub(crate) use launcher::{Launcher, is_kubectl};
pub(crate) use named::NamedHosts;
pub(super) use named::ProgramHosts;
pub(crate) use nodes::{Nodes, endpoint_of};
pub(super) use options::HostOptions;
pub(crate) use options::ReachOptions;
pub(super) use placement::ElasticRanks;
pub(crate) use this_host::{LOOKUP_BUDGET, here};

/// More hosts than any job has.
const MAX_HOSTS: usize = 1 << 16;

/// A host of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The name that the user gives, by which the remote shell reaches it.
    pub(crate) name: String,
    /// True for the host of this ringrun.
    pub(crate) is_here: bool,
}

impl Host {
    /// The name in messages.
    pub(crate) fn shown_name(&self) -> String {
        if self.is_here { here() } else { self.name.clone() }
    }

    /// The name without that of a user before it, as a resolver takes it.
    pub(crate) fn without_user(&self) -> &str {
        self.name.rsplit('@').next().unwrap_or_default()
    }

    /// The host with a number of slots, as `-H` takes it.
    pub(crate) fn with_count(&self, slots: usize) -> String {
        let name = &self.name;
        match name.rsplit_once('@') {
            _ if !name.contains(':') => format!("{name}:{slots}"),
            None => format!("[{name}]:{slots}"),
            Some((user, address)) => format!("{user}@[{address}]:{slots}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankPlacement {
    pub(crate) rank: usize,
    /// The host's name in messages.
    pub(crate) host: String,
    /// The number of the host among the hosts of the job.
    pub(crate) host_number: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
    /// The number of the rank's program among those of the job.
    pub(crate) program: usize,
}

/// A host that may run ranks: all mentions of one host together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AvailableHost {
    host: Host,
    /// The number of ranks that the host is for; a mention without a count is for one.
    slots: usize,
    /// True if any mention of the host has a count.
    is_counted: bool,
    /// The most ranks that the host may have with `--oversubscribe`.
    max_slots: Option<usize>,
}
