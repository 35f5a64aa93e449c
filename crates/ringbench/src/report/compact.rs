//! The compact table: as wide as a terminal, with a line for each size.

use crate::report::table::{describe, micros, spread};
use crate::report::{Report, Row, hosts, regret};
use tools::columns::line;
use tools::sizes::human;

/// The widths of the columns.
const LAYOUT: &str = "10  8 6  7 7 7 7 6  7  9 5  5";
/// The widths of the columns of rows between hosts.
const HOSTS_LAYOUT: &str = "10  8 6  7 7 7 7 6  7  9 5  5  9 9";

pub(crate) fn header(report: &Report) -> String {
    let Report { collective, ranks, launched, transport, algorithm, memory, .. } = report;
    let mut text = format!(
        "{collective}, {ranks} ranks ({launched}), transport {transport}, algorithm {algorithm}, \
         {memory} memory\n"
    );
    if let Some(software) = &report.device {
        text += &format!("device: {}\n", software.text());
    }
    if let Some(probe) = report.trailer.probe.before {
        text += &format!("machine: {}\n", describe(&probe));
    }
    if report.trailer.regret.is_some() {
        return text + "\n" + &regret::header();
    }
    let calls = "time per call, us";
    text += &format!("\n{:29}{calls:^31}{:>16}  {:>9} {:>5}\n", "", "out of", "", "% of");
    let names = "size type op min median mean p99 busbw place predicted limit wrong";
    if report.has_hosts() {
        return text + &line(HOSTS_LAYOUT, names.split(' ').chain(["network", "sent"])) + "\n";
    }
    text + &line(LAYOUT, names.split(' ')) + "\n"
}

pub(crate) fn row(row: &Row) -> String {
    let absent = || "-".to_owned();
    let busbw = row.main().map_or_else(absent, |of| format!("{:.2}", of.busbw));
    let beside = row.out_of_place.as_ref().filter(|_| row.in_place.is_some());
    let apart = beside.map_or_else(absent, |half| micros(half.time_us));
    let wrong = row.figures().filter_map(|half| half.wrong).reduce(|a, b| a + b);
    let wrong = wrong.map_or_else(absent, |wrong| wrong.to_string());
    let call = [human(row.call.size), row.call.dtype.into(), row.call.redop.into()];
    let cells = call.into_iter().chain(spread(row)).chain([busbw, apart]);
    let cells = cells.chain(row.judgements("-")).chain([wrong]);
    match &row.network {
        Some(network) => line(HOSTS_LAYOUT, cells.chain(hosts::short_cells(network))) + "\n",
        None => line(LAYOUT, cells) + "\n",
    }
}

pub(crate) fn footer(report: &Report) -> String {
    let errors = report.errors();
    let verdict = match (errors, report.check) {
        (0, 0) => "results were not checked".to_owned(),
        (0, _) => "all results are right".to_owned(),
        _ => format!("FAILED: {errors} wrong elements or bytes out of bounds"),
    };
    let result = match &report.trailer.regret {
        Some(regrets) => regrets.summary(),
        None => format!("average busbw {:.2} GB/s; ", report.trailer.avg_busbw),
    };
    format!("\n{}{result}{verdict}\n", hosts::text(report, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use ringreduce::DataType;

    #[test]
    fn fits_a_terminal_and_has_a_cell_for_each_name() {
        let mut report = sample(&[DataType::F32]);
        let names = header(&report).lines().last().unwrap().split_whitespace().count();
        for one in &report.rows {
            let line = row(one);
            assert!(line.trim_end().len() <= 100, "{line}");
            // A size such as "8 B" is two words.
            assert_eq!(line.split_whitespace().count(), names + 1, "{line}");
        }
        assert!(footer(&report).contains("all results are right"));
        report.rows[0].in_place.as_mut().unwrap().wrong = Some(7);
        assert!(footer(&report).contains("FAILED: 7 wrong"));
    }

    #[test]
    fn missing_figures_are_dashes() {
        let mut report = sample(&[DataType::F32]);
        report.rows[0].in_place = None;
        let cells = row(&report.rows[0]);
        let cells: Vec<_> = cells.split_whitespace().collect();
        assert_eq!(cells[9..], ["-", "-", "-", "0"], "{cells:?}");
    }
}
