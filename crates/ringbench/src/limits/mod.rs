//! `ringbench limits`: the rates of this machine that bound every collective. `memory` measures
//! cores and caches, `network` loopback TCP and waits, and `hosts` the network between hosts.

mod bound;
mod hosts;
pub(crate) mod memory;
mod network;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use ringreduce::Communicator;
use ringreduce::files::{OpenMode, open_for_writing};
use serde::Serialize;
use tools::cpus;
use tools::sizes::human;

use crate::launch;
use crate::machine::probe;
use crate::measure::network::Hosts;
use crate::report::files;

pub(crate) use bound::Bounds;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Part {
    HandOver,
    Wake,
    Memory,
    Tcp,
}

/// Measures what this machine allows: memory, caches, loopback TCP, waits
///
/// By ranks on several hosts it measures the network between them: for each host and the next one
/// the round trip of a byte, and the rate of one and of several TCP streams, with the CPU that they
/// take. One link is measured at a time.
#[derive(Parser, Clone, Debug)]
#[command(after_long_help = "JSON of several hosts: {congestion, links: [{from, to, address, \
    round_trip_us, round_trip_p99_us, rates: [{streams, gbit_per_s, sender_cpu_percent, \
    receiver_cpu_percent}]}]}")]
pub(crate) struct Cli {
    /// The parts to measure [default: all]
    parts: Vec<Part>,
    /// Adds the bounds of these calls to --json, for benches/peers/run
    #[arg(long, hide = true, num_args = 1.., value_name = "CALL")]
    bounds: Vec<String>,
    /// Writes the figures to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a page with a picture of the ring and a chart to this file; of several hosts only
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    hosts: launch::HostFlags,
}

/// The rates of a machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Limits {
    cpus: usize,
    /// One way of a cache line between the first two CPUs, spinning.
    hand_over_ns: Option<f64>,
    /// From a wake-up by futex to the thread that runs on another CPU.
    wake_us: Option<f64>,
    /// Bytes that other cores wrote and each core reads, of all cores.
    dirty_lines_gb_per_s: Option<f64>,
    memory: Vec<memory::Rates>,
    /// One way of a byte on loopback TCP, spinning.
    tcp_one_way_us: Option<f64>,
    tcp: Vec<network::Rates>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    bounds: BTreeMap<String, [Option<f64>; 2]>,
}

impl Limits {
    /// The rates that bound calls of ranks on these CPUs, over loopback TCP or in shared memory.
    pub(crate) fn of_calls(cpus: &[usize], is_tcp: bool) -> Result<Self> {
        let parts = if is_tcp { &[Part::Tcp][..] } else { &[Part::HandOver, Part::Memory] };
        Self::measure(parts, cpus)
    }

    fn measure(parts: &[Part], cpus: &[usize]) -> Result<Self> {
        let has = |part| parts.is_empty() || parts.contains(&part);
        let mut limits = Self { cpus: cpus.len(), ..Self::default() };
        if let &[first, second, ..] = cpus {
            if has(Part::HandOver) {
                limits.hand_over_ns = probe::hand_over([first, second]);
            }
            if has(Part::Wake) {
                limits.wake_us =
                    thread::spawn(move || network::wake_us([first, second])).join().ok();
            }
            if has(Part::Memory) {
                limits.dirty_lines_gb_per_s = memory::dirty_lines(cpus);
            }
        }
        if has(Part::Memory) {
            limits.memory = memory::rates(cpus);
        }
        if has(Part::Tcp) {
            limits.tcp_one_way_us = Some(network::one_way_us().context("loopback TCP")?);
            limits.tcp = network::rates().context("loopback TCP")?;
        }
        Ok(limits)
    }

    fn table(&self) -> String {
        let mut out = format!("{} CPUs\n", self.cpus);
        let mut line = |what: &str, value: Option<f64>, unit: &str| {
            if let Some(value) = value {
                let _ = writeln!(out, "{what:<52} {value:>9.2} {unit}");
            }
        };
        line("cache line from CPU to CPU, one way, spinning", self.hand_over_ns, "ns");
        line("futex wake of a thread on another CPU", self.wake_us, "us");
        line("reads of lines that other cores wrote, all cores", self.dirty_lines_gb_per_s, "GB/s");
        line("a byte over loopback TCP, one way, spinning", self.tcp_one_way_us, "us");
        if !self.memory.is_empty() {
            out +=
                "\nGB/s of results: a buffer of each core copied, copied past the cache, a += b\n";
            out += "     bytes  cores      copy streaming       add\n";
        }
        for memory::Rates { bytes, cores, copy, streaming, add } in &self.memory {
            let bytes = human(*bytes);
            let _ = writeln!(out, "{bytes:>10} {cores:>6} {copy:>9.1} {streaming:>9.1} {add:>9.1}");
        }
        if !self.tcp.is_empty() {
            out += "\nGB/s of loopback TCP that two threads receive from each other, together\n";
        }
        for network::Rates { congestion, sockets, both_ways } in &self.tcp {
            let _ = writeln!(out, "{congestion:>10} {sockets:>2} sockets {both_ways:>9.2}");
        }
        out
    }
}

/// Measures, prints and writes the limits that the command line asks for: those of the network if
/// this process is a rank of a job on several hosts, or starts it, else those of the host of rank
/// 0.
pub(crate) fn run(cli: &Cli) -> Result<ExitCode> {
    match cli.hosts.ringrun_options(None)? {
        Some(options) => launch::run_ringrun_with(options),
        None => measure(cli).map(|()| ExitCode::SUCCESS),
    }
}

fn measure(cli: &Cli) -> Result<()> {
    if !launch::is_launched() {
        return of_machine(cli);
    }
    let mut comm = Communicator::from_env()?;
    if let Some(several) = Hosts::of(&comm) {
        return hosts::run(&mut comm, &several, cli);
    }
    let measured = if comm.rank() == 0 { of_machine(cli) } else { Ok(()) };
    // Ranks that were not waited for would seem lost, and a failure ends all by the launcher.
    measured.and_then(|()| Ok(comm.barrier()?))
}

fn of_machine(cli: &Cli) -> Result<()> {
    if cli.html.is_some() {
        bail!("--html shows links between hosts: name several, as in -H node1,node2");
    }
    let cpus = cpus::allowed().context("the CPUs of this process")?;
    let mut limits = Limits::measure(&cli.parts, &cpus)?;
    let bound = |call: &String| Some((call.clone(), limits.bounds_of(call)?));
    limits.bounds = cli.bounds.iter().filter_map(bound).collect();
    if !limits.memory.is_empty() && cpus.len() > 1 {
        limits.memory.extend(memory::rates(&cpus[..1]));
        limits.memory.sort_by_key(|row| (row.bytes, row.cores));
    }
    if let Some(path) = &cli.json {
        write("--json", path, &(serde_json::to_string(&limits)? + "\n"))?;
    }
    files::say(&limits.table())
}

/// Writes a file that a flag names.
fn write(flag: &str, path: &Path, text: &str) -> Result<()> {
    let file = open_for_writing(path, OpenMode::Truncate);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("{flag} {}", path.display()))
}
