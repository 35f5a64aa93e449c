//! The command line: ringrun's own options, and the request for a job that they make.

pub(crate) mod aliases;
pub(crate) mod elastic;
pub(crate) mod environment;
mod help;
pub(crate) mod hosts;
mod listen;
mod path_bytes;
mod programs;
mod python;
pub(crate) mod subcommands;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, FromArgMatches, Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::launch::job::DEFAULT_TERM_GRACE;
use crate::launch::message;
use crate::launch::output::Style;
use crate::status::tcp::Service;
use elastic::Elastic;
use environment::Variables;
use hosts::{ElasticRanks, Host, HostOptions, Launcher, Nodes, RankPlacement};
pub(crate) use programs::Program;
use programs::{ProgramOptions, Shared};
use ringreduce::config::variables::ENCRYPT;
use tools::sizes::{parse_grace, parse_seconds};

/// Start the ranks of a parallel job.
#[derive(Debug, Parser)]
#[command(
    name = "ringrun",
    version,
    override_usage = help::USAGE,
    long_about = help::ABOUT,
    after_help = help::SHORT_END,
    after_long_help = help::END,
    max_term_width = 100,
)]
struct Options {
    #[command(flatten)]
    hosts: HostOptions,

    /// Pin rank i to the i-th CPU that ringrun may use (core), or let the system move it (none)
    #[arg(long, value_name = "WHAT", default_value = "none", help_heading = "Ranks")]
    bind_to: Binding,

    /// Say which CPU each rank is bound to
    #[arg(long, help_heading = "Ranks")]
    report_bindings: bool,

    /// Start a job in each rank of srun, mpirun, torchrun or ringrun instead of refusing
    #[arg(long, help_heading = "Ranks")]
    nested: bool,

    /// Encrypt and authenticate what ranks send over TCP; what stays on a host in shared memory is
    /// not touched. The same as -x RINGREDUCE_ENCRYPT=1
    #[arg(long, help_heading = "Environment")]
    encrypt: bool,

    /// Rank that reads the standard input: 0, or none
    #[arg(long, value_name = "RANK", default_value = "0", help_heading = "Input and output")]
    stdin: Stdin,

    /// Begin each line with its rank and stream: [1,RANK]<stdout>:
    #[arg(long, help_heading = "Input and output")]
    tag_output: bool,

    /// Begin each line with [RANK]
    #[arg(short = 'l', long, conflicts_with = "tag_output", help_heading = "Input and output")]
    prepend_rank: bool,

    /// Begin each line with the time (UTC)
    #[arg(long, help_heading = "Input and output")]
    timestamp_output: bool,

    /// Also write DIR/rank.N/stdout and DIR/rank.N/stderr
    #[arg(long, value_name = "DIR", visible_alias = "log-dir", help_heading = "Input and output")]
    output_filename: Option<PathBuf>,

    /// torchrun's way to ask for both streams in files and here: 3, with --log-dir
    #[arg(short = 't', long, value_name = "STREAMS", help_heading = "Input and output")]
    tee: Option<String>,

    /// Open MPI 5's way to say so: tag, rank, timestamp, dir=DIR, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Input and output")]
    output: Vec<String>,

    /// Say nothing but why the job failed
    #[arg(short, long, help_heading = "Input and output")]
    quiet: bool,

    /// Serve metrics of all ranks at http://127.0.0.1:PORT/metrics (or ADDRESS:PORT) for Prometheus
    ///
    /// They say in which state each rank is, how many calls it has made, for how long it has been
    /// in its call, and for which rank the others wait. Port 0 takes a free port, and the first
    /// message has the address. All who reach it can read the metrics; 127.0.0.1 is reached by the
    /// users of this host.
    #[arg(long, value_name = "PORT", value_parser = listen::address)]
    #[arg(allow_hyphen_values = true, help_heading = "Input and output")]
    prometheus: Option<SocketAddr>,

    /// Answer clients of NCCL's RAS at 127.0.0.1:PORT (or ADDRESS:PORT); ncclras asks at port 28028
    ///
    /// They get the communicators of all ranks, the calls that each rank is in, and the ranks that
    /// are missing or stuck, as text or JSON. Port 0 takes a free port, and the first message has
    /// the address. All who reach it can read the status; 127.0.0.1 is reached by the users of this
    /// host.
    #[arg(long, value_name = "PORT", value_parser = listen::address)]
    #[arg(allow_hyphen_values = true, help_heading = "Input and output")]
    ras: Option<SocketAddr>,

    /// End the job after so many seconds (2.5 works), with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    #[arg(allow_hyphen_values = true, help_heading = "End of the job")]
    timeout: Option<Duration>,

    /// When the job ends early, ranks get SIGTERM, and SIGKILL so many seconds later (else 30)
    #[arg(long, value_name = "SECONDS", value_parser = parse_grace)]
    #[arg(allow_hyphen_values = true, help_heading = "End of the job")]
    kill_after: Option<Duration>,

    /// Start ranks that are lost again, and go on with the others while MIN are left
    ///
    /// The job begins with MAX ranks, so -n may be left out. A rank that exits with another status
    /// than 0, or is killed, is started again and waits until the others let it in: their program
    /// goes on by Communicator::shrink and lets it in by Communicator::grow. Slots of -H that MAX
    /// ranks do not need are for the ranks of a host that is lost.
    #[arg(long, value_name = "MIN:MAX", help_heading = "End of the job")]
    elastic: Option<Elastic>,

    /// With --elastic, start each rank again so many times at most (else 3)
    #[arg(long, value_name = "N", help_heading = "End of the job")]
    max_restarts: Option<usize>,

    /// Let ranks that crash write core files; these hold data and the keys of open connections
    #[arg(long, help_heading = "End of the job")]
    core_dumps: bool,

    #[command(flatten)]
    first: ProgramOptions,
}

/// The values of `--bind-to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Binding {
    /// The system chooses the CPU, and may move the rank.
    None,
    /// Each rank is bound to one CPU, which ranks share if there are more of them than CPUs.
    #[value(aliases = ["hwthread", "core:overload-allowed", "hwthread:overload-allowed"])]
    Core,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stdin {
    #[value(name = "0")]
    Zero,
    None,
}

/// A job to launch, with every default filled in. What the launcher alone needs is not passed on to
/// other hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) ranks: usize,
    /// The hosts of the job, at least one.
    pub(crate) hosts: Vec<Host>,
    /// The most ranks that each host may have. In an elastic job some may be free, for the ranks of
    /// a host that is lost.
    pub(crate) slots: Vec<usize>,
    /// The first place of each rank, in the order of the ranks; an agent has those of its host.
    pub(crate) placements: Vec<RankPlacement>,
    /// The programs of the ranks, at least one, in the order of the ranks.
    pub(crate) programs: Vec<Program>,
    /// The variables of all ranks.
    pub(crate) variables: Variables,
    pub(crate) binding: Binding,
    pub(crate) report_bindings: bool,
    pub(crate) stdin: bool,
    /// The prefix of each line of output.
    #[serde(skip)]
    pub(crate) style: Style,
    #[serde(skip)]
    pub(crate) files: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    /// The job runs within another one.
    pub(crate) is_nested: bool,
    /// The time from SIGTERM to SIGKILL.
    pub(crate) term_grace: Duration,
    pub(crate) core_dumps: bool,
    pub(crate) elastic: Option<Elastic>,
    /// How ranks on other hosts are started.
    #[serde(skip)]
    pub(crate) launcher: Launcher,
    /// The most agents that one host starts, if the user says so; 0 for no limit.
    #[serde(skip)]
    pub(crate) fanout: Option<usize>,
    /// The place of this ringrun among several, each of which was started on its host.
    #[serde(skip)]
    pub(crate) nodes: Option<Nodes>,
    /// Where the launcher serves the job's status to other programs.
    #[serde(skip)]
    pub(crate) services: Vec<(Service, SocketAddr)>,
    quiet: bool,
}

impl Request {
    /// The value that every rank has of a variable: the last of `-x`, or that of this process.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let given = self.variables.iter().rfind(|(given, _)| given == name);
        given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
    }

    /// True if the hosts have more slots than the job has ranks, for the ranks of a lost host.
    pub(crate) fn has_spare_slots(&self) -> bool {
        self.hosts.len() > 1 && self.slots.iter().sum::<usize>() > self.ranks
    }

    /// True if the job begins without a rank on this host.
    pub(crate) fn is_spare(&self, host_number: usize) -> bool {
        self.placements.iter().all(|rank| rank.host_number != host_number)
    }

    /// Warns the user, unless told to be quiet.
    pub(crate) fn warn(&self, what: &str) {
        if !self.quiet {
            message::say(what);
        }
    }
}

pub(crate) fn command() -> Command {
    subcommands::add_to(Options::command())
}

/// Reads the command line, without the program's own name. Help and version end the process.
pub(crate) fn read(words: Vec<OsString>) -> Result<Request, Failure> {
    let (words, mut warnings) = aliases::translate(words, &command())?;
    let starts_python = python::is_named(&words);
    let name = std::iter::once(OsString::from("ringrun"));
    let parsed = command().try_get_matches_from(name.chain(words));
    let options = parsed.and_then(|matches| Options::from_arg_matches(&matches));
    let options = options.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        ErrorKind::MissingRequiredArgument => Failure::Usage("no PROGRAM was given".into()),
        ErrorKind::UnknownArgument if starts_python => python::own_option(&message(&error)),
        _ => Failure::Usage(message(&error)),
    })?;
    let request = options.request(&mut warnings)?;
    warnings.iter().for_each(|warning| request.warn(warning));
    Ok(request)
}

/// clap's message without "error:" before it and the pointer to --help after it.
pub(crate) fn message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    text.trim_start_matches("error: ").trim_end().to_owned()
}

impl Options {
    fn request(mut self, warnings: &mut Vec<String>) -> Result<Request, Failure> {
        self.open_mpi_5()?;
        self.torchrun()?;
        let is_nested = environment::check_nesting(self.nested)?;
        let (later_hosts, later) = self.first.take_later(warnings)?;
        let start_again = self.max_restarts != Some(0);
        let elastic = self.elastic.map(|it| ElasticRanks { count: it.max, start_again });
        let placed = self.hosts.place(&later_hosts, is_nested, elastic)?;
        let placed = placed.ok_or_else(|| subcommands::no_ranks(self.first.program.first()))?;
        let ranks = placed.placements.len();
        let elastic = Elastic::of(self.elastic, self.max_restarts, ranks)?;
        let mut variables = self.first.variables(warnings)?;
        variables.extend(self.hosts.reach.variables());
        warnings.extend(self.hosts.warnings()?);
        let services = self.services();
        let warning = |&(service, address): &_| listen::warning(address, service);
        warnings.extend(services.iter().filter_map(warning));
        if self.encrypt {
            variables.push((ENCRYPT.into(), "1".into()));
        }
        let here = std::env::current_dir().map_err(Failure::system("find out where this is"))?;
        let shared = Shared { variables: &variables, here: &here };
        let programs = self.first.programs(later, &shared, warnings)?;
        Ok(Request {
            ranks,
            hosts: placed.hosts,
            slots: placed.slots,
            placements: placed.placements,
            programs,
            variables,
            binding: self.bind_to,
            report_bindings: self.report_bindings,
            stdin: self.stdin == Stdin::Zero,
            style: Style {
                tag: self.tag_output,
                rank: self.prepend_rank,
                timestamp: self.timestamp_output,
            },
            files: self.output_filename.map(|folder| here.join(folder)),
            is_nested,
            timeout: self.timeout,
            term_grace: self.kill_after.unwrap_or(DEFAULT_TERM_GRACE),
            core_dumps: self.core_dumps,
            elastic,
            launcher: self.hosts.launcher(is_nested)?,
            fanout: self.hosts.fanout(),
            nodes: self.hosts.nodes()?,
            services,
            quiet: self.quiet,
        })
    }

    /// The servers that the user wants.
    fn services(&self) -> Vec<(Service, SocketAddr)> {
        let all = [(Service::Prometheus, self.prometheus), (Service::Ras, self.ras)];
        all.into_iter().filter_map(|(service, address)| Some((service, address?))).collect()
    }

    /// `--output tag,dir=DIR` as ringrun's own options.
    fn open_mpi_5(&mut self) -> Result<(), Failure> {
        for word in std::mem::take(&mut self.output) {
            match word.split_once('=') {
                None if word == "tag" => self.tag_output = true,
                None if word == "rank" => self.prepend_rank = true,
                None if word == "timestamp" => self.timestamp_output = true,
                Some(("dir", folder)) if !folder.is_empty() => {
                    self.output_filename = Some(folder.into());
                }
                _ => {
                    let expected = "expected tag, rank, timestamp or dir=DIR";
                    return Err(Failure::Usage(format!("--output {word}: {expected}")));
                }
            }
        }
        Ok(())
    }

    /// `--tee 3` asks for the files of --log-dir.
    fn torchrun(&self) -> Result<(), Failure> {
        match self.tee.as_deref() {
            Some("3") if self.output_filename.is_none() => {
                Err(Failure::Usage("--tee 3: say where with --log-dir DIR".into()))
            }
            None | Some("0" | "3") => Ok(()),
            Some(other) => Err(Failure::Usage(format!(
                "--tee {other}: only 3 (both streams, of all ranks) works, or 0"
            ))),
        }
    }
}

pub(crate) fn count(word: &str) -> Result<NonZeroUsize, String> {
    match word.parse::<usize>() {
        Ok(count) => NonZeroUsize::new(count).ok_or_else(|| "a job has at least one rank".into()),
        Err(_) => Err("expected a number of ranks, such as 4".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_well_formed() {
        command().debug_assert();
        programs::LaterProgram::command().debug_assert();
    }

    #[test]
    fn counts_are_positive() {
        assert_eq!(count("12").map(NonZeroUsize::get), Ok(12));
        for wrong in ["0", "-1", "x", "", "4.0", "99999999999999999999999"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }
}
