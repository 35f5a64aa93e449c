//! `ringbench limits`: the rates of this machine that bound every collective. `memory` measures
//! cores and caches, `network` loopback TCP and waits.

mod bound;
pub(crate) mod memory;
mod network;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use ringreduce::files::{OpenMode, open_for_writing};
use serde::Serialize;
use tools::cpus;
use tools::sizes::human;

use crate::machine::probe;
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
#[derive(Parser, Clone, Debug)]
pub(crate) struct Cli {
    /// The parts to measure [default: all]
    parts: Vec<Part>,
    /// Adds the bounds of these calls to --json, for benches/peers/run
    #[arg(long, hide = true, num_args = 1.., value_name = "CALL")]
    bounds: Vec<String>,
    /// Writes the figures to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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

/// Measures, prints and writes the limits that the command line asks for.
pub(crate) fn run(cli: &Cli) -> Result<()> {
    let cpus = cpus::allowed().context("the CPUs of this process")?;
    let mut limits = Limits::measure(&cli.parts, &cpus)?;
    let bound = |call: &String| Some((call.clone(), limits.bounds_of(call)?));
    limits.bounds = cli.bounds.iter().filter_map(bound).collect();
    if !limits.memory.is_empty() && cpus.len() > 1 {
        limits.memory.extend(memory::rates(&cpus[..1]));
        limits.memory.sort_by_key(|row| (row.bytes, row.cores));
    }
    if let Some(path) = &cli.json {
        let json = serde_json::to_string(&limits)? + "\n";
        let file = open_for_writing(path, OpenMode::Truncate);
        file.and_then(|mut file| file.write_all(json.as_bytes()))
            .with_context(|| format!("--json {}", path.display()))?;
    }
    files::say(&limits.table())
}
