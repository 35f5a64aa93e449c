//! The page's section on the choice of algorithms: a line for each, and the regret of each size.

use std::fmt::Write;

use super::time;
use crate::report::chart::{Point, Scale, Series, svg};
use crate::report::regret::{Regret, Regrets};
use crate::report::table::micros;
use tools::sizes::human;

const CLASSES: [&str; 10] = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];

pub(super) fn section(out: &mut String, regrets: &Regrets) {
    let same =
        |a: &Regret, b: &Regret| (a.call.dtype, a.call.redop) == (b.call.dtype, b.call.redop);
    for rows in regrets.rows.chunk_by(same) {
        let _ = writeln!(
            out,
            "<h2>{}, {}: choice of the algorithm</h2>",
            rows[0].call.dtype, rows[0].call.redop
        );
        chart(out, rows);
        table(out, rows);
    }
}

fn chart(out: &mut String, rows: &[Regret]) {
    let mut names: Vec<&str> = Vec::new();
    for timed in rows.iter().flat_map(|row| &row.algorithms) {
        if !names.contains(&timed.algorithm) {
            names.push(timed.algorithm);
        }
    }
    let lines = || CLASSES.into_iter().zip(&names);
    let series = lines().map(|(class, &name)| {
        let point = |row: &Regret| {
            let timed = row.algorithms.iter().find(|timed| timed.algorithm == name)?;
            let title = format!("{} {name}: {}", human(row.call.size), time(timed.time_us));
            Some(Point { bytes: row.call.size, value: timed.time_us, title })
        };
        let drawn = rows.iter().filter(|row| row.call.size > 0);
        Series { class, points: drawn.filter_map(point).collect() }
    });
    let drawing = svg("Time over size", Scale::LogMicros, &series.collect::<Vec<_>>(), &[]);
    *out += "<div class=\"card\"><div class=\"head\"><h3>Time per call</h3><div class=\"key\">";
    for (class, name) in lines() {
        let _ = write!(out, "<span class=\"{class}\"><i></i>{name}</span>");
    }
    let _ = writeln!(out, "</div></div>\n{drawing}</div>");
}

fn table(out: &mut String, rows: &[Regret]) {
    *out += "<div class=\"scroll\"><table><thead><tr><th>size</th><th>best</th><th>µs</th>\
             <th>chosen</th><th>µs</th><th>regret %</th></tr></thead><tbody>\n";
    for Regret { call, best, chosen, regret_percent, .. } in rows {
        let (best_us, chosen_us) = (micros(best.time_us), micros(chosen.time_us));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{best_us}</td><td>{}</td><td>{chosen_us}</td>\
             <td>{regret_percent:.1}</td></tr>",
            human(call.size),
            best.algorithm,
            chosen.algorithm
        );
    }
    *out += "</tbody></table></div>\n";
}
