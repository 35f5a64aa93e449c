//! The ranks of a run: this process is one (a launcher started it), or becomes ringrun and launches
//! itself n times, here or on other hosts, or starts n threads.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
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
/// Set for the ranks that ringbench itself has started on the hosts of its -H.
const ON_HOSTS: &str = "RINGBENCH_ON_HOSTS";

/// The hosts of the ranks that ringbench launches.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostFlags {
    /// Launches ranks on these hosts, as ringrun -H does: HOST or HOST:RANKS, separated by commas
    #[arg(short = 'H', long, value_name = "HOSTS")]
    host: Option<String>,
    /// Reaches these hosts by this command in place of ssh, as ringrun --rsh does
    #[arg(long, value_name = "CMD", requires = "host")]
    rsh: Option<String>,
}

impl HostFlags {
    pub(crate) fn are_given(&self) -> bool {
        self.host.is_some()
    }

    /// The options of the ringrun that starts `ranks` ranks, or one for each slot, on these hosts;
    /// none if no host is given, or if this process is such a rank.
    pub(crate) fn ringrun_options(&self, ranks: Option<usize>) -> Result<Option<Vec<OsString>>> {
        let is_set = |name| std::env::var_os(name).is_some();
        self.options_for(ranks, [is_set(RANK), is_set(ON_HOSTS)])
    }

    fn options_for(
        &self,
        ranks: Option<usize>,
        [is_rank, is_on_hosts]: [bool; 2],
    ) -> Result<Option<Vec<OsString>>> {
        let Some(hosts) = &self.host else { return Ok(None) };
        if is_rank && is_on_hosts {
            return Ok(None);
        }
        if is_rank {
            bail!("-H {hosts}: a launcher started this rank already ({RANK} is set); leave -H out");
        }
        let ranks = ranks.map(|ranks| ranks.to_string());
        let mark = format!("{ON_HOSTS}=1");
        let options = [
            ("-H", Some(hosts)),
            ("--rsh", self.rsh.as_ref()),
            ("-n", ranks.as_ref()),
            ("-x", Some(&mark)),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name, value?.as_str()]));
        Ok(Some(given.flatten().map(OsString::from).collect()))
    }
}

/// True if the table goes to a terminal.
pub(crate) fn is_on_terminal() -> bool {
    io::stdout().is_terminal() || std::env::var_os(ON_TERMINAL).is_some()
}

pub(crate) enum Launch {
    /// The ranks run in this process.
    Here(Vec<Communicator>),
    /// This process becomes ringrun, with so many ranks on this host.
    Ringrun(usize),
    /// This process becomes ringrun with these options, which name hosts.
    OnHosts(Vec<OsString>),
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
    if let Some(options) = cli.hosts.ringrun_options(cli.ranks)? {
        return Ok(Launch::OnHosts(options));
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
    // All ranks are here, even within a job of Slurm that has several hosts.
    run_ringrun_with(["-H", "localhost", "-n", &ranks.to_string()].map(OsString::from).to_vec())
}

/// As [`run_ringrun`], with these options of ringrun. Agents on other hosts are this program too.
pub(crate) fn run_ringrun_with(mut words: Vec<OsString>) -> Result<ExitCode> {
    let ours = std::env::current_exe().context("the path of this program")?;
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
    fn ranks_on_hosts_are_started_once() {
        let flags = |host: Option<&str>| HostFlags {
            host: host.map(str::to_owned),
            rsh: host.map(|_| "ssh -4".into()),
        };
        let words = |ranks, variables| {
            let found = flags(Some("a:2,b")).options_for(ranks, variables).unwrap();
            found.map(|words| words.join(" ".as_ref()).into_string().unwrap())
        };
        let line = |ranks| Some(format!("-H a:2,b --rsh ssh -4 {ranks}-x RINGBENCH_ON_HOSTS=1"));
        assert_eq!(words(None, [false, false]), line(""));
        assert_eq!(words(Some(3), [false, false]), line("-n 3 "));
        assert_eq!(words(Some(3), [true, true]), None);
        assert_eq!(flags(None).options_for(Some(3), [false, false]).unwrap(), None);
        let error = flags(Some("a")).options_for(None, [true, false]).unwrap_err();
        assert!(error.to_string().ends_with("leave -H out"), "{error}");
    }

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
