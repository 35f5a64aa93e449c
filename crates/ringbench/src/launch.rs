//! The ranks of a run: this process is one (a launcher started it), or becomes ringrun and launches
//! itself n times, or starts n threads.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use ringreduce::Communicator;

use crate::cli::Cli;
use crate::report::files;

/// Set by ringrun for each rank.
const RANK: &str = "RINGREDUCE_RANK";

/// Variables of launchers. A launcher may well have started one rank alone.
const LAUNCHERS: [&str; 6] =
    [RANK, "RINGREDUCE_LAUNCHER", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"];
/// Set for ranks whose table ringrun prints on a terminal.
const ON_TERMINAL: &str = "RINGBENCH_ON_TERMINAL";

/// True if the table goes to a terminal.
pub(crate) fn is_on_terminal() -> bool {
    io::stdout().is_terminal() || std::env::var_os(ON_TERMINAL).is_some()
}

pub(crate) enum Launch {
    /// The ranks run in this process.
    Here(Vec<Communicator>),
    /// This process becomes ringrun, with so many ranks.
    Ringrun(usize),
}

/// True if a launcher seems to have started this process as a rank.
pub(crate) fn is_launched() -> bool {
    LAUNCHERS.iter().any(|name| std::env::var_os(name).is_some())
}

/// The ranks that the command line and the environment ask for.
pub(crate) fn plan(cli: &Cli) -> Result<Launch> {
    let launched = std::env::var_os(RANK).is_some();
    if cli.threads {
        if launched {
            bail!("--threads: a launcher started this rank already ({RANK} is set)");
        }
        return Ok(Launch::Here(Communicator::local(cli.launch_ranks())?));
    }
    let mut builder = Communicator::builder();
    if let Some(transport) = cli.transport {
        builder = builder.transport(transport);
    }
    if let Some(timeout) = cli.timeout {
        builder = builder.timeout(timeout);
    }
    let comm = builder.build()?;
    let alone = !launched && comm.size() == 1;
    match cli.ranks {
        Some(ranks) if ranks == comm.size() => {}
        Some(ranks) if alone => return Ok(Launch::Ringrun(ranks)),
        Some(ranks) => {
            bail!("--ranks {ranks}: the launcher started {} ranks; leave it out", comm.size())
        }
        None if comm.size() > 1 || is_launched() => {}
        None if cli.launch_ranks() > 1 => return Ok(Launch::Ringrun(cli.launch_ranks())),
        None => files::warn("one rank alone, for there is one CPU; --ranks N launches more"),
    }
    Ok(Launch::Here(vec![comm]))
}

/// Runs ringrun in this process, with `ranks` ranks of this program and its arguments. Each rank
/// checks --ranks against its world.
pub(crate) fn run_ringrun(ranks: usize) -> Result<ExitCode> {
    let ours = std::env::current_exe().context("the path of this program")?;
    // All ranks are here, even within a job of Slurm that has several hosts.
    let mut words = ["-H", "localhost", "-n", &ranks.to_string()].map(OsString::from).to_vec();
    if io::stdout().is_terminal() {
        words.extend(["-x".into(), format!("{ON_TERMINAL}=1").into()]);
    }
    words.push(ours.into_os_string());
    Ok(ringrun::main(words.into_iter().chain(std::env::args_os().skip(1)).collect()))
}

/// Runs `rank` for each communicator, on a thread of its own. Gives the sum of the errors that the
/// ranks counted, or the error of the first rank that failed.
pub(crate) fn run_ranks(
    comms: Vec<Communicator>,
    rank: impl Fn(Communicator) -> Result<u64> + Sync,
) -> Result<u64> {
    let rank = &rank;
    let results: Vec<Result<u64>> = thread::scope(|scope| {
        let threads: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(anyhow!("panicked")))).collect()
    });
    results.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_all_ranks_are_added() {
        let ranks = || Communicator::local(3).unwrap();
        assert_eq!(run_ranks(ranks(), |comm| Ok(comm.rank() as u64)).unwrap(), 3);
        assert_eq!(run_ranks(ranks(), |_| Ok(0)).unwrap(), 0);
        let one_fails = |comm: Communicator| match comm.rank() {
            1 => bail!("lost"),
            _ => Ok(0),
        };
        assert_eq!(run_ranks(ranks(), one_fails).unwrap_err().to_string(), "lost");
    }
}
