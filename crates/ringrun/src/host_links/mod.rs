//! Checks between the hosts of a list, for `ringrun doctor -H` and `ringrun topo -H`. A job of
//! one rank on each host asks the host for its own findings (`survey`). A second job of one rank on
//! each host that has answered (`rank`) compares clocks, tries the ports in both directions
//! (`reach`), and measures the links of the ring (`measure`); its ranks print what they find
//! (`report`). Jobs are started by ringrun itself, as a child process (`child`).
//! Law: a host that does not answer is a finding, and the other hosts are looked at all the same;
//! every wait has an end.

mod child;
mod measure;
mod rank;
mod reach;
pub(crate) mod report;
mod survey;

use std::ffi::OsString;

use clap::Args;

use crate::cli::environment::Variables;
use crate::cli::hosts::{Host, NamedHosts, ReachOptions};
use crate::failure::Failure;
pub(crate) use rank::run as run_rank;
pub(crate) use survey::{AskedHost, NamedLink, Survey, survey};

/// The argument by which ringrun is a rank of the second job.
const FLAG: &str = "--host-links";

/// True for the arguments of a rank of the second job.
pub(crate) fn is_rank(words: &[OsString]) -> bool {
    matches!(words, [only] if only == FLAG)
}

/// The hosts of a subcommand that looks at several ones.
#[derive(Debug, Args)]
pub(crate) struct HostList {
    #[command(flatten)]
    named: NamedHosts,
    #[command(flatten)]
    reach: ReachOptions,
}

impl HostList {
    /// The hosts that the command line names; none if it names none.
    pub(crate) fn hosts(&self, subcommand: &str) -> Result<Option<Vec<Host>>, Failure> {
        self.named.hosts(&self.reach).map_err(|failure| match failure {
            Failure::Usage(what) => Failure::usage(subcommand, &what),
            other => other,
        })
    }

    /// The variables that the command line sets.
    pub(crate) fn variables(&self) -> Variables {
        self.reach.variables()
    }
}
