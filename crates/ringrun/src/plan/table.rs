//! The plan as a table, and as JSON.

use std::fmt::Write;

use ringreduce::plan::Explanation;
use ringreduce::sim::Time;
use serde::Serialize;

use super::Report;
use tools::sizes::human;

/// The table's line on the world.
pub(super) fn heading(report: &Report) -> String {
    let row = &report.rows[0];
    let (name, ranks, hosts) = (row.request.collective.name(), row.size, row.ring.len());
    let hosts = if hosts == 1 { "one host".into() } else { format!("{hosts} hosts") };
    format!("{name} of {} among {ranks} ranks on {hosts}", row.request.dtype)
}

/// The table's lines on the speeds.
pub(super) fn speeds(report: &Report) -> Vec<String> {
    let row = &report.rows[0];
    let Some(speeds) = &row.speeds else { return Vec::new() };
    let mut lines = vec![format!("within hosts (shm): {}", speeds.near)];
    if row.ring.len() > 1 {
        lines.push(format!("between hosts (tcp): {}", speeds.far));
    }
    lines
}

pub(super) fn cells(row: &Explanation) -> [String; 8] {
    let bytes = |bytes: u64| usize::try_from(bytes).map_or_else(|_| bytes.to_string(), human);
    [
        human(row.request.longest(row.size)),
        row.algorithm.to_string(),
        row.transports.join("+"),
        row.seconds.map_or_else(|| "?".into(), |seconds| Time(seconds).to_string()),
        bytes(row.sent()),
        bytes(row.busiest()),
        row.hops.map_or_else(|| "?".into(), |hops| format!("{hops:.0}")),
        row.why(),
    ]
}

pub(super) const TITLES: [&str; 8] =
    ["size", "algorithm", "over", "predicted", "rank 0 sends", "over one link", "hops", "why"];

pub(super) fn text(report: &Report) -> String {
    let mut out = format!("# {}\n", heading(report));
    for line in speeds(report) {
        let _ = writeln!(out, "# {line}");
    }
    let titles = TITLES.map(str::to_owned);
    for row in std::iter::once(titles).chain(report.rows.iter().map(cells)) {
        let [size, algorithm, over, seconds, sent, link, hops, why] = row;
        let _ = writeln!(
            out,
            "{size:>10}  {algorithm:<18}  {over:<7}  {seconds:>9}  {sent:>12}  {link:>13}  \
             {hops:>6}  {why}"
        );
    }
    out
}

#[derive(Serialize)]
struct Row {
    bytes: usize,
    count: usize,
    algorithm: &'static str,
    seconds: Option<f64>,
    bytes_sent: u64,
    bytes_over_one_link: u64,
    hops: Option<f64>,
    rounds: usize,
    why: String,
    candidates: Vec<(&'static str, Option<f64>)>,
}

#[derive(Serialize)]
struct Plan {
    collective: &'static str,
    dtype: &'static str,
    ranks: u32,
    hosts: usize,
    transports: Vec<&'static str>,
    rows: Vec<Row>,
}

/// The plan as JSON: times in seconds, and the bytes that rank 0 sends.
pub(super) fn document(report: &Report) -> impl Serialize {
    let row = |row: &Explanation| Row {
        bytes: row.request.longest(row.size),
        count: row.request.count,
        algorithm: row.algorithm.name(),
        seconds: row.seconds,
        bytes_sent: row.sent(),
        bytes_over_one_link: row.busiest(),
        hops: row.hops,
        rounds: row.rounds,
        why: row.why(),
        candidates: row.candidates.iter().map(|one| (one.algorithm.name(), one.seconds)).collect(),
    };
    let first = &report.rows[0];
    Plan {
        collective: first.request.collective.name(),
        dtype: first.request.dtype.name(),
        ranks: first.size,
        hosts: first.ring.len(),
        transports: first.transports.clone(),
        rows: report.rows.iter().map(row).collect(),
    }
}
