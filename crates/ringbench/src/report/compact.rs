//! The compact table: as wide as a terminal, with a line for each size.

use crate::report::regret;
use crate::report::table::{describe, micros, spread};
use crate::report::{Report, Row};
use tools::sizes::human;

pub(crate) fn header(report: &Report) -> String {
    let Report { collective, ranks, launched, transport, algorithm, memory, .. } = report;
    let mut text = format!(
        "{collective}, {ranks} ranks ({launched}), transport {transport}, algorithm {algorithm}, \
         {memory} memory\n"
    );
    if let Some(software) = &report.device {
        text += &format!("device: {}\n", software.text());
    }
    if let Some(probe) = report.probe.before {
        text += &format!("machine: {}\n", describe(&probe));
    }
    if report.regret.is_some() {
        return text + "\n" + &regret::header();
    }
    text += &format!(
        "\n{:29}{:^31}{:>16}  {:>9} {:>5}\n",
        "", "time per call, us", "out of", "", "% of"
    );
    text + &format!(
        "{:>10}  {:>8} {:>6}  {:>7} {:>7} {:>7} {:>7} {:>6}  {:>7}  {:>9} {:>5}  {:>5}\n",
        "size",
        "type",
        "op",
        "min",
        "median",
        "mean",
        "p99",
        "busbw",
        "place",
        "predicted",
        "limit",
        "wrong"
    )
}

pub(crate) fn row(row: &Row) -> String {
    let [min, median, mean, p99] = spread(row);
    let busbw = row.main().map_or("-".into(), |of| format!("{:.2}", of.busbw));
    let beside = row.out_of_place.as_ref().filter(|_| row.in_place.is_some());
    let apart = beside.map_or("-".into(), |half| micros(half.time_us));
    let wrong = row.figures().filter_map(|half| half.wrong).reduce(|a, b| a + b);
    let wrong = wrong.map_or("-".into(), |wrong| wrong.to_string());
    format!(
        "{:>10}  {:>8} {:>6}  {min:>7} {median:>7} {mean:>7} {p99:>7} {busbw:>6}  {apart:>7}  \
         {:>9} {:>5}  {wrong:>5}\n",
        human(row.size),
        row.dtype,
        row.redop,
        row.predicted_us.map_or("-".into(), micros),
        row.limit_percent().map_or("-".into(), |percent| format!("{percent:.0}")),
    )
}

pub(crate) fn footer(report: &Report) -> String {
    let errors = report.errors();
    let verdict = match (errors, report.check) {
        (0, 0) => "results were not checked".to_owned(),
        (0, _) => "all results are right".to_owned(),
        _ => format!("FAILED: {errors} wrong elements or bytes out of bounds"),
    };
    let result = match &report.regret {
        Some(regrets) => regrets.summary(),
        None => format!("average busbw {:.2} GB/s; ", report.avg_busbw),
    };
    format!("\n{result}{verdict}\n")
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
