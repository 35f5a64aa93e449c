//! The options that count ranks.

use std::env;
use std::num::NonZeroUsize;
use std::path::Path;

use clap::Args;
use tools::cpus;

use crate::cli::count;
use crate::topo::gpus;

/// The variable by which CUDA shows a program some of a host's GPUs.
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";

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

    /// Start N ranks on each host, or one for each of its CPUs (auto) or of its GPUs (gpu)
    ///
    /// auto and gpu count what this host has: they are for this host alone, and for --nnodes, where
    /// all hosts must have as many.
    #[arg(short = 'N', long = "per-host", value_name = "N|auto|gpu", value_parser = per_host)]
    #[arg(allow_hyphen_values = true)]
    #[arg(visible_aliases = ["nproc-per-node", "ppn"], aliases = ["npernode", "perhost"])]
    #[arg(help_heading = "Ranks")]
    pub(super) per_host: Option<PerHost>,
}

/// The value of `--per-host`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerHost {
    pub(super) ranks: NonZeroUsize,
    /// True for the CPUs or GPUs of this host, which tell nothing of others.
    pub(super) is_of_this_host: bool,
}

pub(super) fn per_host(word: &str) -> Result<PerHost, String> {
    let of_this_host = |count, none: &str| {
        let ranks = NonZeroUsize::new(count).ok_or_else(|| format!("{none}; give a number"))?;
        Ok(PerHost { ranks, is_of_this_host: true })
    };
    match word {
        "auto" | "cpu" => {
            let cpus =
                cpus::allowed().map_err(|cause| format!("cannot count the CPUs: {cause}"))?;
            of_this_host(cpus.len(), "there are no CPUs to count")
        }
        "gpu" => {
            let visible = env::var(VISIBLE_GPUS).ok();
            let gpus = count_gpus(Path::new("/"), visible.as_deref());
            let none = format!(
                "this host has no device file of an NVIDIA GPU (/dev/nvidia0), or {VISIBLE_GPUS} \
                 hides them"
            );
            of_this_host(gpus, &none)
        }
        "xpu" => Err("only NVIDIA's GPUs are counted; give a number".into()),
        _ => Ok(PerHost { ranks: count(word)?, is_of_this_host: false }),
    }
}

/// The GPUs that programs see on the host with this root folder. Of a list in the variable CUDA
/// takes the devices before the first wrong one.
fn count_gpus(root: &Path, visible: Option<&str>) -> usize {
    let devices = gpus::count_device_files(root).unwrap_or_default();
    let is_device = |word: &&str| !word.trim().is_empty() && word.trim() != "-1";
    let listed = |list: &str| list.split(',').take_while(is_device).count();
    visible.map_or(devices, |list| listed(list).min(devices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_programs_see_them() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(count_gpus(root.path(), None), 0);
        let devices = root.path().join("dev");
        std::fs::create_dir(&devices).unwrap();
        for name in ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"] {
            std::fs::write(devices.join(name), "").unwrap();
        }
        for (visible, count) in [
            (None, 3),
            (Some("0,1"), 2),
            (Some("GPU-0a"), 1),
            (Some("0,-1,1"), 1),
            (Some("0,1,2,3"), 3),
            (Some(""), 0),
            (Some("-1"), 0),
        ] {
            assert_eq!(count_gpus(root.path(), visible), count, "{visible:?}");
        }
    }

    #[test]
    fn a_word_that_counts_nothing_is_refused_with_a_remedy() {
        for wrong in ["xpu", "gpus", "0"] {
            assert!(per_host(wrong).is_err(), "{wrong}");
        }
        assert!(per_host("xpu").unwrap_err().ends_with("; give a number"));
        assert!(per_host("auto").unwrap().is_of_this_host);
    }
}
