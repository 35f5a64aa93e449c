//! The report of a run as data: rows, and the machine and settings that they depend on. Its serde
//! form is the JSON file.

mod chart;
mod compact;
mod compare;
pub(crate) mod files;
mod hosts;
mod html;
pub(crate) mod regret;
pub(crate) mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::Cli;
use crate::device::Software;
use crate::limits::{Bounds, Limits};
use crate::machine::probe::Probe;
use crate::machine::{Machine, RankInfo, settings};
use crate::measure::case::Case;
use crate::measure::network::Network;
use crate::measure::stats::Spread;
use crate::report::regret::{Regret, Regrets};
use crate::report::table::micros;

/// The figures of a row for calls out of place or in place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The mean per call of the slowest rank.
    pub(crate) time_us: f64,
    /// GB/s.
    pub(crate) algbw: f64,
    pub(crate) busbw: f64,
    /// Wrong elements over all ranks; none if unchecked.
    pub(crate) wrong: Option<u64>,
    /// The spread of the slowest rank.
    #[serde(flatten)]
    pub(crate) spread: Spread,
}

impl Figures {
    pub(crate) fn new(case: &Case, time_us: f64, wrong: Option<u64>, spread: Spread) -> Self {
        let algbw = if case.bytes() == 0 { 0.0 } else { case.bytes() as f64 / 1e3 / time_us };
        let busbw = algbw * case.verb.bus_factor(case.ranks);
        Self { time_us, algbw, busbw, wrong, spread }
    }
}

/// The call of a row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RowCall {
    /// Bytes of the whole buffer.
    pub(crate) size: usize,
    pub(crate) count: usize,
    #[serde(rename = "type")]
    pub(crate) dtype: &'static str,
    /// "none" where nothing is reduced.
    pub(crate) redop: &'static str,
    /// Rank of the root; -1 if the call has none.
    pub(crate) root: i64,
    pub(crate) iterations: usize,
}

impl RowCall {
    pub(crate) fn new(case: &Case, iterations: usize) -> Self {
        Self {
            size: case.bytes(),
            count: case.count,
            dtype: case.type_name(),
            redop: case.op_name(),
            root: case.root_column(),
            iterations,
        }
    }

    /// The first columns of the tables of nccl-tests.
    pub(crate) fn cells(&self) -> [String; 5] {
        let Self { size, count, dtype, redop, root, .. } = self;
        [size.to_string(), count.to_string(), (*dtype).into(), (*redop).into(), root.to_string()]
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) call: RowCall,
    /// The time of a call that the library's planner predicts; none if the algorithm has no price.
    pub(crate) predicted_us: Option<f64>,
    /// The least time that the machine allows; none if its rates were not measured.
    pub(crate) limit_us: Option<f64>,
    /// None if all ranks are on one host, or the buffers on devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Network>,
    /// None if the call has no such placement.
    pub(crate) out_of_place: Option<Figures>,
    pub(crate) in_place: Option<Figures>,
}

impl Row {
    pub(crate) fn figures(&self) -> impl Iterator<Item = &Figures> {
        self.out_of_place.iter().chain(&self.in_place)
    }

    /// The predicted time, and the share of the machine's limit that the calls reach, in percent.
    pub(crate) fn judgements(&self, absent: &str) -> [String; 2] {
        let share = self.main().zip(self.limit_us).map(|(it, least)| 100.0 * least / it.time_us);
        let share = share.map(|percent| format!("{percent:.0}"));
        [self.predicted_us.map(micros), share].map(|cell| cell.unwrap_or_else(|| absent.into()))
    }

    /// The figures in place, or out of place if there are no others.
    pub(crate) fn main(&self) -> Option<&Figures> {
        self.in_place.as_ref().or(self.out_of_place.as_ref())
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Row(Row),
    Regret(Regret),
}

impl Line {
    pub(crate) fn wrong(&self) -> u64 {
        match self {
            Self::Row(row) => row.figures().filter_map(|figures| figures.wrong).sum(),
            Self::Regret(regret) => regret.wrong.unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Probes {
    pub(crate) before: Option<Probe>,
    pub(crate) after: Option<Probe>,
}

/// The number of the JSON file's layout.
pub(crate) const FORMAT: u32 = 2;

/// The report of a run. Fields that serde skips follow the rows: see [`Self::json_tail`].
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    pub(crate) version: &'static str,
    pub(crate) command: String,
    pub(crate) unix_time: u64,
    pub(crate) collective: &'static str,
    pub(crate) ranks: usize,
    /// `processes` or `threads`.
    pub(crate) launched: &'static str,
    pub(crate) transport: String,
    /// Its name, or `auto`.
    pub(crate) algorithm: &'static str,
    /// `plain`, `register` or `alloc`.
    pub(crate) memory: &'static str,
    pub(crate) settings: BTreeMap<String, String>,
    /// Bytes.
    pub(crate) unalign: usize,
    pub(crate) refill: bool,
    pub(crate) check: usize,
    pub(crate) warmup: usize,
    /// True if each call is waited for before the next.
    pub(crate) blocking: bool,
    pub(crate) machine: Machine,
    /// The driver of rank 0, if buffers are on devices.
    pub(crate) device: Option<Software>,
    /// The rates that bound calls, if they were asked for and all ranks are on one host.
    pub(crate) limits: Option<Limits>,
    #[serde(rename = "seats")]
    pub(crate) rank_infos: Vec<RankInfo>,
    #[serde(skip)]
    pub(crate) rows: Vec<Row>,
    #[serde(skip)]
    pub(crate) trailer: Trailer,
}

/// The part of the JSON file after the rows, which is known last.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Trailer {
    /// True once all rows were measured.
    pub(crate) complete: bool,
    pub(crate) probe: Probes,
    /// The rows of a run with `--regret`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) regret: Option<Regrets>,
    /// Bytes or elements written out of bounds.
    pub(crate) out_of_bounds: u64,
    /// The mean of all figures of all rows, GB/s.
    pub(crate) avg_busbw: f64,
}

impl Report {
    pub(crate) fn new(
        cli: &Cli,
        host: &str,
        rank_infos: Vec<RankInfo>,
        transport: String,
        before: Option<Probe>,
    ) -> Self {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let launched = if cli.threads { "threads" } else { "processes" };
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            command: command_line(std::env::args()),
            unix_time: since.as_secs(),
            collective: cli.collective.name(),
            ranks: rank_infos.len(),
            launched,
            transport,
            algorithm: cli.algorithm.name(),
            memory: cli.memory.name(),
            settings: settings::changed_settings(|name| std::env::var(name).ok()),
            unalign: cli.unalign,
            refill: cli.refill,
            check: cli.check,
            warmup: cli.warmup_iters,
            blocking: cli.gpu.device.is_none() || cli.gpu.blocking(),
            machine: Machine::look(host),
            device: None,
            limits: None,
            rank_infos,
            rows: Vec::new(),
            trailer: Trailer {
                probe: Probes { before, after: None },
                regret: cli.regret.then(Regrets::default),
                ..Trailer::default()
            },
        }
    }

    /// The JSON file up to its first row.
    pub(crate) fn json_head(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(self)?;
        Ok(text.trim_end_matches("\n}").to_owned() + ",\n  \"rows\": [")
    }

    /// The JSON file after its last row.
    pub(crate) fn json_tail(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&self.trailer)?;
        Ok("\n  ],".to_owned() + text.trim_start_matches('{') + "\n")
    }

    /// Adds the machine's limit to a row.
    pub(crate) fn set_limit(&self, line: &mut Line, bounds: &Bounds) {
        if let (Line::Row(row), Some(limits)) = (line, &self.limits) {
            row.limit_us = limits.least_us(bounds, row.call.size);
        }
    }

    pub(crate) fn push(&mut self, line: Line) {
        match line {
            Line::Row(row) => self.rows.push(row),
            Line::Regret(row) => self.trailer.regret.get_or_insert_default().rows.push(row),
        }
    }

    /// True if rows have the bytes between hosts.
    pub(crate) fn has_hosts(&self) -> bool {
        let mut hosts = self.rank_infos.iter().map(|rank| &rank.host);
        let first = hosts.next();
        self.device.is_none() && hosts.any(|host| Some(host) != first)
    }

    pub(crate) fn finish(&mut self, after: Option<Probe>, out_of_bounds: u64) {
        self.trailer.complete = true;
        self.trailer.probe.after = after;
        self.trailer.out_of_bounds = out_of_bounds;
        let all: Vec<f64> = self.rows.iter().flat_map(Row::figures).map(|h| h.busbw).collect();
        self.trailer.avg_busbw = crate::measure::stats::mean(&all);
        if let Some(regrets) = &mut self.trailer.regret {
            regrets.finish();
        }
    }

    /// The number of wrong elements and of writes out of bounds.
    pub(crate) fn errors(&self) -> u64 {
        let wrong = self.rows.iter().flat_map(Row::figures).filter_map(|figures| figures.wrong);
        let regrets =
            self.trailer.regret.iter().flat_map(|all| &all.rows).filter_map(|row| row.wrong);
        wrong.chain(regrets).sum::<u64>() + self.trailer.out_of_bounds
    }
}

/// The command line, quoted for a shell, with the program's bare name.
fn command_line(args: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
    let quoted = args.skip(1).map(|word| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    ["ringbench".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::probe::Distance;
    use crate::measure::case::{Placement, Verb};
    use clap::Parser;
    use ringreduce::schedule::Collective;
    use ringreduce::{DataType, ReduceOp};

    /// A report of four ranks, sizes 8 B to 64 MiB, for these types.
    pub(crate) fn sample(types: &[DataType]) -> Report {
        let cli = Cli::parse_from(["ringbench", "all_reduce", "--ranks", "4"]);
        let host = || String::from("<here>");
        let info = |rank| RankInfo { rank, pid: 100, cpu: rank % 2, host: host(), device: None };
        let add_gb_per_s = 24.0;
        let probe =
            Probe { cpus: [0, 1], hand_over_ns: 62.0, distance: Distance::Near, add_gb_per_s };
        let mut report =
            Report::new(&cli, "<here>", (0..4).map(info).collect(), "shm".into(), Some(probe));
        for &dtype in types {
            let (op, rank, ranks) = (ReduceOp::Sum, 0, 4);
            let verb = Verb::Of(Collective::AllReduce);
            let placement = Placement::InPlace;
            let case = Case { verb, dtype, op, count: 0, rank, ranks, placement };
            for power in 3..=26 {
                let case = case.of_size(1 << power);
                let time = 3.7 + f64::powf(2.0, f64::from(power)) / 7000.0;
                let [min_us, p50_us, mean_us, p99_us] = [0.7, 0.9, 1.0, 2.5].map(|by| by * time);
                let spread = Spread { min_us, p50_us, mean_us, p99_us };
                let apart = Figures::new(&case, time * 1.2, Some(0), spread);
                let in_place = Figures::new(&case, time, Some(0), spread);
                report.rows.push(Row {
                    call: RowCall::new(&case, 20),
                    predicted_us: None,
                    limit_us: None,
                    network: None,
                    out_of_place: Some(apart),
                    in_place: Some(in_place),
                });
            }
        }
        report.finish(Some(probe), 0);
        report
    }

    #[test]
    fn bandwidths_and_errors() {
        let mut report = sample(&[DataType::F32]);
        let last = report.rows[23].in_place.as_ref().unwrap();
        assert!((last.algbw - (1 << 26) as f64 / 1e3 / last.time_us).abs() < 1e-9);
        assert!((last.busbw - 1.5 * last.algbw).abs() < 1e-9);
        assert_eq!(report.errors(), 0);
        report.rows[3].in_place.as_mut().unwrap().wrong = Some(2);
        report.trailer.out_of_bounds = 1;
        assert_eq!(report.errors(), 3);
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["/x/ringbench", "all_reduce", "--json", "it's here", ""].map(str::to_owned);
        let line = command_line(words.into_iter());
        assert_eq!(line, r"ringbench all_reduce --json 'it'\''s here' ''");
    }
}
