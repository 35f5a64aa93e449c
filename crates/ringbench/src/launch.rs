//! How ringbench becomes n ranks: it is one already (a launcher started it), it becomes ringrun
//! with n of itself, or it starts n threads.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use ringreduce::Communicator;

use crate::cli::Cli;
use crate::output;

/// Set by ringrun for each rank.
const RANK: &str = "RINGREDUCE_RANK";

/// Variables that tell of a launcher, of which one rank may well be all that it started.
const LAUNCHERS: [&str; 6] =
    [RANK, "RINGREDUCE_LAUNCHER", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"];
/// Set for ranks whose table ringrun brings to a terminal.
const ON_TERMINAL: &str = "RINGBENCH_ON_TERMINAL";

/// Is the table read on a terminal?
pub(crate) fn is_on_terminal() -> bool {
    io::stdout().is_terminal() || std::env::var_os(ON_TERMINAL).is_some()
}

/// How this process goes on.
pub(crate) enum Launch {
    /// As these ranks.
    Here(Vec<Communicator>),
    /// As ringrun, with so many of itself.
    Ringrun(usize),
}

/// What the command line and the environment make of this process.
pub(crate) fn plan(cli: &Cli) -> Result<Launch> {
    let launched = std::env::var_os(RANK).is_some();
    if cli.threads {
        if launched {
            bail!("--threads: a launcher started this rank already ({RANK} is set)");
        }
        return Ok(Launch::Here(Communicator::local(cli.launches())?));
    }
    let mut builder = Communicator::builder();
    if let Some(kind) = cli.transport {
        builder = builder.transport(kind.transport());
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
        None if comm.size() > 1 || LAUNCHERS.iter().any(|it| std::env::var_os(it).is_some()) => {}
        None if cli.launches() > 1 => return Ok(Launch::Ringrun(cli.launches())),
        None => output::complain("one rank alone, for there is one CPU; --ranks N launches more"),
    }
    Ok(Launch::Here(vec![comm]))
}

/// Is ringrun, in this very process, with `ranks` of itself. Our own arguments go along as they
/// are: each rank holds --ranks against its world.
pub(crate) fn be_ringrun(ranks: usize) -> Result<ExitCode> {
    let ours = std::env::current_exe().context("the path of this program")?;
    let mut words = vec!["-n".into(), ranks.to_string().into()];
    if io::stdout().is_terminal() {
        words.extend(["-x".into(), format!("{ON_TERMINAL}=1").into()]);
    }
    words.push(ours.into_os_string());
    Ok(ringrun::main(words.into_iter().chain(std::env::args_os().skip(1)).collect()))
}

/// Runs `rank` once for each communicator: here for one, else on a thread each. The sum of
/// what they found wrong, or the error of the first that failed.
pub(crate) fn each(
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
    fn what_any_rank_finds_wrong_counts() {
        let ranks = || Communicator::local(3).unwrap();
        assert_eq!(each(ranks(), |comm| Ok(comm.rank() as u64)).unwrap(), 3);
        assert_eq!(each(ranks(), |_| Ok(0)).unwrap(), 0);
        let one_fails = |comm: Communicator| match comm.rank() {
            1 => bail!("lost"),
            _ => Ok(0),
        };
        assert_eq!(each(ranks(), one_fails).unwrap_err().to_string(), "lost");
    }
}
