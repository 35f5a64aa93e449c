//! The comparison as one picture (SVG), and as a page of HTML that needs no other file.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::bars::{self, Area, Bars, Drawn, style};
use super::table::{bytes, cells};
use super::{Comparison, Row};
use crate::cli::name;
use crate::error::Result;
use crate::report::chart::failed;

const WIDTH: u32 = 1060;
const HEAD: u32 = 44;
/// The size of a picture of a flow, and how many are in a row.
const PICTURE: (u32, u32) = (210, 225);
const IN_ROW: usize = 5;

/// Charts and pictures.
pub(super) fn svg(comparison: &Comparison) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, comparison).map_err(|problem| failed("the comparison", problem))?;
    Ok(svg)
}

/// The rows of each strategy, in order.
fn by_strategy(comparison: &Comparison) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in &comparison.rows {
        match groups.last_mut() {
            Some(group) if group[0].name == row.name => group.push(row),
            _ => groups.push(vec![row]),
        }
    }
    groups
}

/// A bar for each number of ranks.
fn by_ranks(
    comparison: &Comparison,
    title: &str,
    of: fn(&Row) -> f64,
    text: fn(f64) -> String,
) -> Bars {
    let mut worlds: Vec<usize> = comparison.rows.iter().map(|row| row.ranks).collect();
    worlds.sort_unstable();
    worlds.dedup();
    let group = |rows: &Vec<&Row>| {
        let value = |ranks: &usize| rows.iter().find(|row| row.ranks == *ranks).map(|row| of(row));
        (rows[0].name.clone(), worlds.iter().map(value).collect())
    };
    let groups = by_strategy(comparison).iter().map(group).collect();
    let series = worlds.iter().map(|ranks| format!("n = {ranks}")).collect();
    Bars { title: title.into(), series, groups, text }
}

/// Bars of the largest number of ranks.
fn of_largest(
    comparison: &Comparison,
    title: &str,
    series: &[&str],
    of: fn(&Row) -> Vec<Option<f64>>,
    text: fn(f64) -> String,
) -> Bars {
    let most = comparison.largest().next().map_or(0, |row| row.ranks);
    let groups = comparison.largest().map(|row| (row.name.clone(), of(row))).collect();
    let series = series.iter().map(|name| (*name).to_owned()).collect();
    Bars { title: format!("{title}, n = {most}"), series, groups, text }
}

/// The bytes of the rank that sends most.
fn most(sent: &[u64]) -> Option<f64> {
    sent.iter().max().map(|most| *most as f64)
}

fn charts(comparison: &Comparison) -> [Bars; 4] {
    let milliseconds = |value: f64| format!("{value:.1} ms");
    let text = |value: f64| bytes(value as u64);
    [
        by_ranks(comparison, "Time per step", |row| row.step, milliseconds),
        by_ranks(
            comparison,
            "Accuracy after equal samples",
            |row| row.accuracy * 100.0,
            |value| format!("{value:.1} %"),
        ),
        of_largest(
            comparison,
            "Bytes per step that the busiest rank sends",
            &["measured", "formula"],
            |row| vec![most(&row.sent), most(&row.formula)],
            text,
        ),
        of_largest(
            comparison,
            "Communication per step at rank 0",
            &["exposed", "hidden"],
            |row| vec![Some(row.exposed), Some(row.hidden)],
            milliseconds,
        ),
    ]
}

fn draw(svg: &mut String, comparison: &Comparison) -> Drawn {
    let charts = charts(comparison);
    let strategies = by_strategy(comparison);
    let heights = [0, 2].map(|at: usize| {
        bars::height(charts[at].groups.len().max(charts[at + 1].groups.len())) + 16
    });
    let pictures = strategies.len().div_ceil(IN_ROW) as u32 * PICTURE.1;
    let height = HEAD + heights[0] + heights[1] + 30 + pictures;
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = title(comparison);
    area.draw(&Text::new(title, (10, HEAD as i32 / 2), style(17, BLACK, HPos::Left)))?;
    let mut top = HEAD;
    for (row, height) in heights.into_iter().enumerate() {
        for (side, x) in [0, WIDTH / 2].into_iter().enumerate() {
            let part = part(&area, (x, top), (WIDTH / 2, height));
            bars::draw(&part, &charts[2 * row + side])?;
        }
        top += height;
    }
    bars::legend(&part(&area, (0, top), (WIDTH, 30)))?;
    top += 30;
    for (at, rows) in strategies.iter().enumerate() {
        let corner = ((at % IN_ROW) as u32 * PICTURE.0, top + (at / IN_ROW) as u32 * PICTURE.1);
        let Row { name, strategy, .. } = rows[0];
        bars::picture(&part(&area, corner, PICTURE), name, &strategy.way().flow)?;
    }
    area.present()?;
    Ok(())
}

fn part<'a>(area: &Area<'a>, (x, y): (u32, u32), (width, height): (u32, u32)) -> Area<'a> {
    area.clone().shrink((x, y), (width, height))
}

fn title(comparison: &Comparison) -> String {
    let settings = &comparison.settings;
    format!(
        "{}, {} of gradients, batch {}, {} epochs, {}",
        name(&settings.model),
        bytes(comparison.gradient_bytes),
        settings.batch,
        settings.epochs,
        comparison.data,
    )
}

/// The page, with the picture in it.
pub(super) fn html(comparison: &Comparison, svg: &str) -> String {
    let title = escape(&title(comparison));
    let heads = [
        "strategy",
        "ranks",
        "ms/step",
        "exposed ms",
        "hidden ms",
        "images/s",
        "accuracy",
        "sent by rank 0",
        "formula",
        "most sent",
        "formula",
    ];
    let heads: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
    let cell = |cell: &String| format!("<td>{cell}</td>");
    let cells = |row: &Row| cells(row).iter().map(cell).collect::<String>();
    let rows: String =
        comparison.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Strategies compared</title>\n<style>body{{font:15px sans-serif;margin:2em}}\
         td,th{{padding:2px 10px;text-align:right}}td:first-child,th:first-child{{text-align:left}}\
         tr:nth-child(even){{background:#f3f3f3}}svg{{max-width:100%;height:auto}}</style></head>\n\
         <body><h1>Strategies compared</h1>\n<p>{title}. Times are of ranks that are threads of \
         one process; bytes are counted on links, where each collective is a ring.</p>\n\
         {svg}\n<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table>\
         </body></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
