//! Charts as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::cli::name;
use crate::error::{Error, Result};
use crate::run::{EpochReport, Job};

/// Colours that differ for most eyes (Okabe and Ito, 2008).
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];

/// The error of a chart.
pub(crate) fn failed(what: &str, problem: impl std::fmt::Display) -> Error {
    Error::Chart { what: what.into(), problem: problem.to_string() }
}

/// Draws the loss of each step and the accuracy after each epoch.
pub(super) fn training(path: &Path, job: &Job, epochs: &[EpochReport]) -> Result<()> {
    let mut svg = String::new();
    let what = path.display().to_string();
    draw(&mut svg, job, epochs).map_err(|problem| failed(&what, problem))?;
    super::write_text(super::create(path)?, path, &svg)
}

fn draw(
    svg: &mut String,
    job: &Job,
    epochs: &[EpochReport],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, (900, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(450);
    let losses: Vec<f32> = epochs.iter().flat_map(|epoch| epoch.losses.iter().copied()).collect();
    let highest = losses.iter().copied().fold(0.1_f32, f32::max);
    let title = format!("{} by {}: loss", name(&job.settings.model), name(&job.settings.strategy));
    let mut chart = ChartBuilder::on(&left)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(46)
        .build_cartesian_2d(0..losses.len().max(1), 0_f32..highest * 1.05)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("step").draw()?;
    let points = losses.iter().copied().enumerate().filter(|(_, loss)| !loss.is_nan());
    chart.draw_series(LineSeries::new(points, &COLOURS[0]))?;
    let mut chart = ChartBuilder::on(&right)
        .caption("accuracy in %", ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(46)
        .build_cartesian_2d(0..epochs.len().max(1), 0_f64..100.0)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc("epoch").draw()?;
    let points = epochs.iter().map(|epoch| (epoch.epoch, epoch.accuracy * 100.0));
    let points = points.filter(|(_, accuracy)| !accuracy.is_nan());
    chart.draw_series(LineSeries::new(points, &COLOURS[2]))?;
    area.present()?;
    Ok(())
}
