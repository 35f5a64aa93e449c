//! The options of one program, or of the job, about its hosts and the number of its ranks.

use std::path::PathBuf;

use clap::Args;

use super::available::{choose, merge};
use super::counts::RankCount;
use super::launcher::Launcher;
use super::text::{Mention, mentions_of_list};
use super::this_host::ThisHost;
use super::{AvailableHost, Host, MAX_HOSTS, ReachOptions, file};
use crate::failure::Failure;

/// The hosts that a program names. The options of the first program hold for the job.
#[derive(Debug, Args)]
pub(in crate::cli) struct ProgramHosts {
    #[command(flatten)]
    pub(super) count: RankCount,

    #[command(flatten)]
    pub(super) named: NamedHosts,
}

/// The options that name hosts.
#[derive(Debug, Args)]
pub(crate) struct NamedHosts {
    /// Run on these hosts: HOST or HOST:SLOTS, separated by commas
    ///
    /// node[01-03,7]:4 stands for four hosts, and alice@node1 for a host with another user name.
    /// The slots of a host that is named twice add up. Beside --hostfile, choose hosts of the file.
    #[arg(short = 'H', long, value_name = "HOSTS", alias = "hosts", help_heading = "Hosts")]
    host: Vec<String>,

    /// Read the hosts from a file: "HOST slots=N" or "HOST:N" per line
    #[arg(short = 'f', long, value_name = "FILE", alias = "machinefile", help_heading = "Hosts")]
    hostfile: Option<PathBuf>,
}

impl NamedHosts {
    pub(super) fn is_given(&self) -> bool {
        !self.host.is_empty() || self.hostfile.is_some()
    }

    /// The hosts that these options name; none if they are left out.
    pub(crate) fn hosts(&self, reach: &ReachOptions) -> Result<Option<Vec<Host>>, Failure> {
        let launcher = reach.launcher(false)?.of_subcommand().map_err(Failure::Usage)?;
        let named = self.read(&mut ThisHost::new(launcher == Launcher::Slurm))?;
        Ok(named.map(|named| named.into_iter().map(|it| it.host).collect()))
    }

    pub(super) fn read(
        &self,
        this_host: &mut ThisHost,
    ) -> Result<Option<Vec<AvailableHost>>, Failure> {
        let mut listed = vec![];
        for list in &self.host {
            listed.extend(mentions_of_list(list, MAX_HOSTS).map_err(Failure::Usage)?);
        }
        if let Some(path) = &self.hostfile {
            let of_file = merged(file::read(path)?, this_host)?;
            return match listed.is_empty() {
                true => Ok(Some(of_file)),
                false => {
                    choose(merged(listed, this_host)?, &of_file).map(Some).map_err(Failure::Usage)
                }
            };
        }
        (!listed.is_empty()).then(|| merged(listed, this_host)).transpose()
    }
}

pub(super) fn merged(
    mentions: Vec<Mention>,
    this_host: &mut ThisHost,
) -> Result<Vec<AvailableHost>, Failure> {
    merge(mentions, |name| this_host.is(name)).map_err(Failure::Usage)
}
