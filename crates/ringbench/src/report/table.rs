//! The table as nccl-tests prints it, so that tools which read one read the other.

use crate::cli::Cli;
use crate::machine::probe::Probe;
use crate::measure::stats::Spread;
use crate::report::{Figures, Line, Report, Row, compact, hosts, regret};
use tools::columns;
use tools::sizes::Step;

/// The widths of the columns.
const LAYOUT: &str = "12  12  8  6  6  8  6  6  6  8  6  6  6  8  8  8  8  9  5";
/// The widths of the columns of rows between hosts.
const HOSTS_LAYOUT: &str = "12  12  8  6  6  8  6  6  6  8  6  6  6  8  8  8  8  9  5  12  12";

pub(crate) fn header(cli: &Cli, report: &Report) -> String {
    if cli.is_compact() {
        return compact::header(report);
    }
    let Report { version, collective, ranks, launched, transport, .. } = report;
    let (min, max) = (cli.minbytes, cli.maxbytes);
    let step = match cli.step() {
        Step::Factor(factor) => format!("{factor}(factor)"),
        Step::Bytes(bytes) => format!("{bytes}(bytes)"),
    };
    let iters = cli.iters.map_or("auto".to_owned(), |n| n.to_string());
    let buffers = if cli.refill { "refilled" } else { "reused" };
    let mut text = format!(
        "# ringbench version {version}\n\
         # Collective test starting: {collective}\n\
         # ranks {ranks} ({launched}) transport: {transport} minBytes {min} maxBytes {max} \
         step: {step} warmup iters: {} iters: {iters} validation: {} unalign: {} \
         buffers: {buffers} memory: {} algorithm: {}\n\
         #\n# Using ranks\n",
        cli.warmup_iters, cli.check, cli.unalign, report.memory, report.algorithm,
    );
    for info in &report.rank_infos {
        let (rank, pid, host, cpu) = (info.rank, info.pid, &info.host, info.cpu);
        let device = info.device.as_ref().map_or(String::new(), |device| {
            format!(" device {:2} [{}]", device.index, device.name)
        });
        text += &format!("#  Rank {rank:2} Pid {pid:6} on {host:>10} cpu {cpu:3}{device}\n");
    }
    if let Some(software) = &report.device {
        let how = if report.blocking { "each call" } else { "the last call" };
        text += &format!("# device: {}, {how} is waited for\n", software.text());
    }
    text += &format!("#\n{}#\n", machine(report.trailer.probe.before));
    if report.trailer.regret.is_some() {
        return text + &regret::header();
    }
    let half = "time algbw busbw #wrong";
    let names =
        format!("size count type redop root {half} {half} min p50 mean p99 predicted limit");
    let half = ["(us)", "(GB/s)", "(GB/s)", ""];
    let first = ["(B)", "(elements)", "", "", ""].into_iter().chain(half).chain(half);
    let units = first.chain(["(us)"; 5]).chain(["(%)"]);
    text += &format!("# {:54}  {:^33}  {:^33}\n", "", "out-of-place", "in-place");
    if report.has_hosts() {
        let (names, units) = (names.split(' ').chain(["network", "sent"]), units.chain(["(B)"; 2]));
        return text + &heading(HOSTS_LAYOUT, names) + &heading(HOSTS_LAYOUT, units);
    }
    text + &heading(LAYOUT, names.split(' ')) + &heading(LAYOUT, units)
}

/// A comment of the names or units of columns.
pub(crate) fn heading<'a>(layout: &str, cells: impl IntoIterator<Item = &'a str>) -> String {
    format!("#{}\n", columns::line(layout, cells)[1..].trim_end())
}

pub(crate) fn line(cli: &Cli, line: &Line) -> String {
    match line {
        Line::Row(of) if cli.is_compact() => compact::row(of),
        Line::Row(of) => row(of),
        Line::Regret(of) => regret::row(of),
    }
}

fn row(row: &Row) -> String {
    let halves = [&row.out_of_place, &row.in_place].map(|half| figure_cells(half.as_ref()));
    let cells = row.call.cells().into_iter().chain(halves.into_iter().flatten());
    let cells = cells.chain(spread(row)).chain(row.judgements("N/A"));
    match &row.network {
        Some(network) => columns::line(HOSTS_LAYOUT, cells.chain(hosts::cells(network))) + "\n",
        None => columns::line(LAYOUT, cells) + "\n",
    }
}

/// The least, the median, the mean and the 99th percentile of a row's calls.
pub(crate) fn spread(row: &Row) -> [String; 4] {
    let none = || ["N/A"; 4].map(str::to_owned);
    row.main().map_or_else(none, |half| {
        let Spread { min_us, p50_us, mean_us, p99_us } = half.spread;
        [min_us, p50_us, mean_us, p99_us].map(micros)
    })
}

fn figure_cells(figures: Option<&Figures>) -> [String; 4] {
    let none = || ["N/A"; 4].map(str::to_owned);
    figures.map_or_else(none, |half| {
        let [algbw, busbw] = [half.algbw, half.busbw].map(|rate| format!("{rate:.2}"));
        [micros(half.time_us), algbw, busbw, wrong(half.wrong)]
    })
}

/// The number of wrong elements, if they were counted.
pub(crate) fn wrong(wrong: Option<u64>) -> String {
    wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string())
}

/// Microseconds with the digits of nccl-tests, and one more below 1 us.
pub(crate) fn micros(time: f64) -> String {
    let digits = [10_000.0, 100.0, 1.0].iter().filter(|&&limit| time < limit).count();
    format!("{time:.digits$}")
}

pub(crate) fn footer(cli: &Cli, report: &Report) -> String {
    if cli.is_compact() { compact::footer(report) } else { nccl_footer(report) }
}

fn nccl_footer(report: &Report) -> String {
    let errors = report.errors();
    let verdict = if errors == 0 { "OK" } else { "FAILED" };
    let result = match &report.trailer.regret {
        Some(regrets) => regrets.summary(),
        None => format!("# Avg bus bandwidth    : {:.4}\n", report.trailer.avg_busbw),
    };
    format!(
        "{}{}# Out of bounds values : {errors} {verdict}\n{result}#\n\
         # Collective test concluded: {}\n",
        machine(report.trailer.probe.after),
        hosts::text(report, "# "),
        report.collective
    )
}

fn machine(probe: Option<Probe>) -> String {
    let Some(probe) = probe else {
        return "# machine: not probed: it takes two CPUs, this process may use one\n".into();
    };
    format!("# machine: {}\n", describe(&probe))
}

pub(crate) fn describe(probe: &Probe) -> String {
    let Probe { cpus: [first, second], hand_over_ns, distance, add_gb_per_s } = probe;
    let distance = distance.name();
    format!(
        "hand-over {hand_over_ns:.0} ns ({distance}), a += b of 64 MiB {add_gb_per_s:.1} GB/s \
         (cpus {first} and {second})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use ringreduce::DataType;

    #[test]
    fn rows_parse_like_those_of_nccl_tests() {
        let report = sample(&[DataType::F32]);
        let line = row(&report.rows[17]);
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[..5], ["1048576", "262144", "float", "sum", "-1"]);
        assert_eq!(cells.len(), 5 + 4 + 4 + 4 + 2);
        assert_eq!([cells[8], cells[12]], ["0", "0"]);
        assert!(
            nccl_footer(&report)
                .contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : ")
        );
    }

    #[test]
    fn wrong_elements_are_a_failure() {
        let mut report = sample(&[DataType::F32]);
        report.rows[0].in_place.as_mut().unwrap().wrong = Some(7);
        assert!(nccl_footer(&report).contains("Out of bounds values : 7 FAILED"));
    }

    #[test]
    fn times_as_in_nccl_tests() {
        assert_eq!(
            [0.144, 99.5, 100.04, 12345.6].map(micros),
            ["0.144", "99.50", "100.0", "12346"]
        );
    }
}
