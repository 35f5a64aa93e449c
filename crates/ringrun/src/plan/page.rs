//! The plan as a page of HTML.

use std::fmt::Write;

use super::{Report, picture, table, timeline};
use tools::page::document;
use tools::sizes::human;

/// The columns of text: algorithm, transports and reason.
const TEXT_COLUMNS: [usize; 3] = [1, 2, 7];

/// The whole page. A timeline shows the first call of each algorithm that the table has.
pub(super) fn render(report: &Report) -> String {
    let title = table::heading(report);
    let mut out = format!("<h1>{title}</h1>\n");
    for line in table::speeds(report) {
        let _ = writeln!(out, "<p>{line}</p>");
    }
    out += &picture::ring(&report.ring);
    let line = |tag: &str, cells: [String; 8]| {
        let cells = cells.into_iter().enumerate().map(|(at, cell)| {
            let class = if TEXT_COLUMNS.contains(&at) { " class=\"text\"" } else { "" };
            format!("<{tag}{class}>{cell}</{tag}>")
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    out += "<div class=\"scroll\"><table><thead>\n";
    out += &line("th", table::TITLES.map(str::to_owned));
    out += "</thead><tbody>\n";
    report.rows.iter().for_each(|row| out += &line("td", table::cells(row)));
    out += "</tbody></table></div>\n<h2>Timelines</h2>\n";
    out += timeline::LEGEND;
    let mut drawn = Vec::new();
    for row in &report.rows {
        if drawn.contains(&row.algorithm) {
            continue;
        }
        drawn.push(row.algorithm);
        let bytes = human(row.request.longest(row.size));
        let _ = writeln!(out, "<h3>{bytes} by {}</h3>", row.algorithm);
        match timeline::draw(report, row) {
            Ok(picture) => out += &picture,
            Err(why) => out += &format!("<p>Not drawn: {why}.</p>\n"),
        }
    }
    document(&format!("{title}: ringrun plan"), &out)
}
