//! The options that count ranks.

use std::num::NonZeroUsize;

use clap::Args;
use tools::cpus;

use crate::cli::count;

/// The number of ranks, in all or on each host, of the job or of one of several programs.
#[derive(Debug, Args)]
pub(super) struct RankCount {
    /// Start N ranks
    ///
    /// May be left out if --host or --hostfile counts slots or names several hosts, or with
    /// --per-host.
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = count)]
    #[arg(short_alias = 'c', alias = "n", allow_hyphen_values = true, help_heading = "Ranks")]
    pub(super) ranks: Option<NonZeroUsize>,

    /// Start N ranks on each host; on this one alone, "auto" means one per CPU
    #[arg(short = 'N', long = "per-host", value_name = "N|auto", value_parser = per_host)]
    #[arg(allow_hyphen_values = true)]
    #[arg(visible_aliases = ["nproc-per-node", "ppn"], aliases = ["npernode", "perhost"])]
    #[arg(help_heading = "Ranks")]
    pub(super) per_host: Option<PerHost>,
}

/// The value of `--per-host`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerHost {
    pub(super) ranks: NonZeroUsize,
    /// True for the CPUs of this host, which tell nothing of others.
    pub(super) is_of_this_host: bool,
}

pub(super) fn per_host(word: &str) -> Result<PerHost, String> {
    match word {
        "auto" | "cpu" => {
            let cpus =
                cpus::allowed().map_err(|cause| format!("cannot count the CPUs: {cause}"))?;
            let ranks = NonZeroUsize::new(cpus.len()).ok_or("there are no CPUs to count")?;
            Ok(PerHost { ranks, is_of_this_host: true })
        }
        "gpu" | "xpu" => Err("counting devices is not supported yet; give a number".into()),
        _ => Ok(PerHost { ranks: count(word)?, is_of_this_host: false }),
    }
}
