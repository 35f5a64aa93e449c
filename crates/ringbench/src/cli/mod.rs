//! The command line: the flags of nccl-tests, further flags, and the checks that their values go
//! together.

mod help;
mod nccl;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use ringreduce::{Algorithm, DataType, ReduceOp, Reduction, Transport};

use crate::device;
use crate::launch;
use crate::measure::case::Verb;
use nccl::Accepted;
use tools::cpus;
use tools::sizes::{Step, parse_seconds, parse_size, walk};

/// The most ranks that are launched if the user gives no number.
const MAX_DEFAULT_RANKS: usize = 4;

/// Measures the collectives of ringreduce, and checks every result.
#[derive(Parser, Clone, Debug)]
#[command(name = "ringbench", version, args_override_self = true, max_term_width = 100)]
#[command(after_help = help::SHORT_END, after_long_help = help::END)]
pub(crate) struct Cli {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, all_to_all,
    /// scan, exscan, send_recv or barrier
    ///
    /// As MPI, NCCL and nccl-tests spell them, too: allreduce, all-reduce, MPI_Allreduce,
    /// all_reduce_perf.
    pub(crate) collective: Verb,
    /// Smallest size in bytes; K, M, G are binary
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) minbytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long, default_value = "64M", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) maxbytes: usize,
    /// Bytes from one size to the next, instead of a factor
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = parse_size,
        conflicts_with = "stepfactor")]
    stepbytes: Option<usize>,
    /// Factor from one size to the next [default: 2]
    #[arg(short = 'f', long, value_name = "N")]
    stepfactor: Option<usize>,
    /// Timed calls per figure [default: enough for about 0.2 s per row, at least 5]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) iters: Option<usize>,
    /// Untimed calls before them
    #[arg(short = 'w', long, alias = "warmup_iters", default_value_t = 5, value_name = "N")]
    pub(crate) warmup_iters: usize,
    /// Calls on fresh data whose results are checked; 0 checks nothing
    #[arg(short = 'c', long, default_value_t = 1, value_name = "N")]
    pub(crate) check: usize,
    /// int8, uint8, ..., half, bfloat16, float, double, f8e4m3, f8e5m2, complex64, complex128,
    /// float_loc, double_loc, int32_loc, int64_loc (or i8, f16, bf16, ...), or all
    #[arg(short = 'd', long, default_value = "float", value_name = "TYPE",
        value_parser = |name: &str| one_or_all(name, &DataType::ALL, nccl::datatype))]
    pub(crate) datatype: Choice<DataType>,
    /// sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor, minloc, maxloc, or all
    #[arg(short = 'o', long, default_value = "sum", value_name = "OP",
        value_parser = |name: &str| one_or_all(name, &ReduceOp::ALL, str::parse))]
    pub(crate) op: Choice<ReduceOp>,
    /// The root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK")]
    pub(crate) root: usize,
    /// Bytes by which buffers are off alignment
    #[arg(short = 'u', long, default_value_t = 0, value_name = "BYTES")]
    pub(crate) unalign: usize,
    /// Seconds that any wait may last [default: RINGREDUCE_TIMEOUT, or 300]
    #[arg(short = 'T', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Launches this many ranks, on this host or those of -H [default: one for each CPU, 4 at most,
    /// or one for each slot of -H; one under a launcher]
    #[arg(long, value_name = "N", alias = "np")]
    pub(crate) ranks: Option<usize>,
    #[command(flatten)]
    pub(crate) hosts: launch::HostFlags,
    /// Ranks are threads of this process instead of processes
    #[arg(long)]
    pub(crate) threads: bool,
    /// Transport between ranks [default: RINGREDUCE_TRANSPORT, or auto]
    #[arg(long, value_name = "KIND", value_parser = transport())]
    pub(crate) transport: Option<Transport>,
    /// Memory of buffers: plain, registered in place, or allocated by the communicator
    #[arg(long, default_value = "plain", value_name = "KIND")]
    pub(crate) memory: Memory,
    /// Algorithm of calls: ring, all_pairs, two_shot, recursive_doubling, halving_doubling,
    /// two_rings, binomial, double_tree, bruck, circulant, hierarchical, dissemination, direct,
    /// staged, single_copy, or auto, which is RINGREDUCE_ALGO or the cheapest
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = algorithm)]
    pub(crate) algorithm: AlgorithmChoice,
    /// Measures every algorithm that can make the call, in turns, and how much slower than the best
    /// of them the library's choice is
    #[arg(long)]
    pub(crate) regret: bool,
    /// Measures first what the machine allows (some seconds), and says what share of it each figure
    /// reaches; ranks on one host only
    #[arg(long, conflicts_with = "regret")]
    pub(crate) limits: bool,
    /// Every rank rewrites its buffer before each timed call, untimed (else buffers are reused)
    #[arg(long)]
    pub(crate) refill: bool,
    /// Table: compact on a terminal, else nccl, the columns of nccl-tests
    #[arg(long, default_value = "auto", value_name = "KIND")]
    format: Format,
    /// Writes all figures to this file while they are measured
    #[arg(short = 'J', long, alias = "output_file", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Compares with the earlier run of which --json wrote this file
    #[arg(long, value_name = "FILE", conflicts_with = "regret")]
    pub(crate) compare: Option<PathBuf>,
    /// Writes a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) gpu: device::Flags,
    #[command(flatten)]
    _accepted: Accepted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Auto,
    Compact,
    Nccl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    Plain,
    Register,
    Alloc,
}

impl Memory {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Register => "register",
            Self::Alloc => "alloc",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Choice<T>(pub(crate) Vec<T>);

fn transport() -> impl TypedValueParser<Value = Transport> {
    PossibleValuesParser::new(["auto", "shm", "tcp"]).map(|name| match &*name {
        "shm" => Transport::Shm,
        "tcp" => Transport::Tcp,
        _ => Transport::Auto,
    })
}

fn one_or_all<T: Copy, E: Display>(
    name: &str,
    all: &[T],
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Choice<T>, String> {
    match name {
        "all" => Ok(Choice(all.to_vec())),
        one => parse(one).map(|it| Choice(vec![it])).map_err(|e| format!("{e}, or all")),
    }
}

/// An algorithm, or the library's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlgorithmChoice(pub(crate) Option<Algorithm>);

impl AlgorithmChoice {
    pub(crate) fn name(self) -> &'static str {
        self.0.map_or("auto", Algorithm::name)
    }
}

fn algorithm(name: &str) -> Result<AlgorithmChoice, String> {
    match name {
        "auto" => Ok(AlgorithmChoice(None)),
        name => {
            name.parse().map(|it| AlgorithmChoice(Some(it))).map_err(|e| format!("{e}, or auto"))
        }
    }
}

impl Cli {
    /// Refuses values that do not go together.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let Self { minbytes, maxbytes, .. } = self;
        if maxbytes < minbytes {
            return Err(format!(
                "-e/--maxbytes ({maxbytes}) is less than -b/--minbytes ({minbytes})"
            ));
        }
        match (self.stepbytes, self.stepfactor) {
            (Some(0), _) => return Err("-i/--stepbytes must be at least 1".into()),
            (_, Some(0 | 1)) => return Err("-f/--stepfactor must be at least 2".into()),
            (None, _) if *minbytes == 0 => {
                return Err("-b 0 stays 0 when multiplied: give a step with -i".into());
            }
            _ => {}
        }
        if self.iters == Some(0) {
            return Err("-n/--iters must be at least 1".into());
        }
        if self.ranks == Some(0) {
            return Err("--ranks must be at least 1".into());
        }
        if let ([dtype, ..], [op, ..]) = (&self.datatype.0[..], &self.op.0[..])
            && self.kinds().is_empty()
        {
            if !self.collective.supports(*op) {
                return Err(format!("-o/--op {op}: {} has none", self.collective));
            }
            let defined = Reduction::defined_for(*dtype);
            return Err(format!("-o/--op {op}: not defined for {dtype}, which has {defined}"));
        }
        self.validate_algorithm()?;
        self.gpu.validate(self)?;
        if self.threads && self.transport == Some(Transport::Tcp) {
            return Err("--transport tcp: ranks that are threads share memory; \
                        leave out --threads"
                .into());
        }
        if self.threads && self.hosts.are_given() {
            return Err("-H/--host: ranks that are threads are all in this process; \
                        leave out --threads"
                .into());
        }
        if self.threads && self.timeout.is_some() {
            return Err("-T/--timeout: with --threads, set RINGREDUCE_TIMEOUT instead".into());
        }
        self.ranks.map_or(Ok(()), |ranks| self.validate_for(ranks))
    }

    /// True if all ranks map the buffers and nobody rewrites them between calls, so that a part of
    /// all of them stays in the cache of the core that works on it.
    pub(crate) fn stays_in_caches(&self) -> bool {
        self.memory != Memory::Plain && !self.refill
    }

    /// The flag that asks for an algorithm or for all of them.
    pub(crate) fn algorithm_flag(&self) -> Option<&'static str> {
        let named = self.algorithm.0.map(|_| "--algorithm");
        named.or_else(|| self.regret.then_some("--regret"))
    }

    fn validate_algorithm(&self) -> Result<(), String> {
        let Some(flag) = self.algorithm_flag() else { return Ok(()) };
        if self.regret && self.algorithm.0.is_some() {
            return Err("--regret measures all: leave out --algorithm".into());
        }
        if self.collective == Verb::SendRecv {
            return Err(format!("{flag}: messages between two ranks have no algorithms"));
        }
        if self.memory != Memory::Plain {
            let why =
                "calls on registered memory have an algorithm of their own; leave out --memory";
            return Err(format!("{flag}: {why}"));
        }
        Ok(())
    }

    /// Refuses values that the world size rules out.
    pub(crate) fn validate_for(&self, ranks: usize) -> Result<(), String> {
        let root = self.root;
        if root >= ranks {
            return Err(format!("-r/--root {root}: there are {ranks} ranks, counted from 0"));
        }
        if self.regret && ranks == 1 {
            return Err("--regret: one rank alone has nothing to choose; --ranks N".into());
        }
        Ok(())
    }

    /// The number of ranks to launch: as given, or one for each CPU up to a few.
    pub(crate) fn launch_ranks(&self) -> usize {
        self.ranks.unwrap_or_else(|| {
            cpus::allowed().map_or(1, |cpus| cpus.len()).clamp(1, MAX_DEFAULT_RANKS)
        })
    }

    /// True if the table is the compact one.
    pub(crate) fn is_compact(&self) -> bool {
        match self.format {
            Format::Auto => launch::is_on_terminal(),
            Format::Compact => true,
            Format::Nccl => false,
        }
    }

    pub(crate) fn step(&self) -> Step {
        self.stepbytes.map_or(Step::Factor(self.stepfactor.unwrap_or(2)), Step::Bytes)
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        if self.collective.is_barrier() {
            return vec![0];
        }
        walk(self.minbytes, self.maxbytes, self.step()).collect()
    }

    /// The types and reductions to measure that the collective has.
    pub(crate) fn kinds(&self) -> Vec<(DataType, ReduceOp)> {
        let ops = if self.collective.reduces() { &self.op.0[..] } else { &[ReduceOp::Sum] };
        let types = &self.datatype.0[..];
        let types = if self.collective.is_barrier() { &types[..1] } else { types };
        let kinds = types.iter().flat_map(|&t| ops.iter().map(move |&op| (t, op)));
        let reduces = self.collective.reduces();
        let supports = |op: ReduceOp| self.collective.supports(op);
        kinds.filter(|&(t, op)| !reduces || (op.is_defined_for(t) && supports(op))).collect()
    }
}

#[cfg(test)]
mod tests;
