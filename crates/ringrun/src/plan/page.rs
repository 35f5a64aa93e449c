//! The plan as one page that needs nothing else: no script, no font, no link. Pure: text.

use std::fmt::Write;

use super::{Report, picture, table, timeline};
use crate::sizes::human;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
td:nth-child(2), td:last-child, th:nth-child(2), th:last-child { text-align: left }
svg { width: 100%; height: auto } svg.ring { max-width: 26rem } svg text { font-size: 10px }
.near { stroke: #999 } .far { stroke: #c33; stroke-width: 2.5 }
.send { fill: #3b7dd8; background: #3b7dd8 } .reduce { fill: #d8733b; background: #d8733b }
.pass { fill: #4aa564; background: #4aa564 } .recv { fill: #9b6bc3; background: #9b6bc3 }
.copy { fill: #aaa; background: #aaa }
.legend i { display: inline-block; width: 1em; height: .8em; margin-left: 1em }
";

/// The whole page. A timeline shows the first call of each algorithm that the table has.
pub(super) fn render(report: &Report) -> String {
    let title = table::heading(report);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}: \
         ringrun plan</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n"
    );
    for line in table::speeds(report) {
        let _ = writeln!(out, "<p>{line}</p>");
    }
    out += &picture::ring(&report.ring);
    out += "<table>\n<tr>";
    table::TITLES.iter().for_each(|title| out += &format!("<th>{title}</th>"));
    out += "</tr>\n";
    for row in &report.rows {
        let cells = table::cells(row).map(|cell| format!("<td>{cell}</td>"));
        let _ = writeln!(out, "<tr>{}</tr>", cells.concat());
    }
    out += "</table>\n<h2>Timelines</h2>\n";
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
    out + "</main></body></html>\n"
}
