//! The steps of one call over time, as the simulator times them: a line for each rank, a bar for
//! each slice.

use std::fmt::Write;

use ringreduce::Algorithm;
use ringreduce::plan::{Explanation, Rules};
use ringreduce::schedule::{Op, Step};
use ringreduce::sim::{Shape, Span, Time, timeline};

use super::Report;

/// The most ranks and bars that are drawn.
const MAX_RANKS: u32 = 32;
const MAX_BARS: usize = 20_000;
const WIDTH: f64 = 860.0;
const LINE: f64 = 16.0;
const LEFT: f64 = 50.0;

/// The picture of a row's call, or the reason why there is none.
pub(super) fn draw(report: &Report, row: &Explanation) -> Result<String, String> {
    if row.size > MAX_RANKS {
        return Err(format!("timelines are drawn for at most {MAX_RANKS} ranks"));
    }
    if row.algorithm.is_in_shared_memory() {
        return Err("ranks read each other's memory, and no messages are sent".into());
    }
    let spans = walk(report, row).ok_or("there is nothing to draw")?;
    if spans.len() > MAX_BARS {
        return Err(format!("{} steps are too many to draw", spans.len()));
    }
    let end = spans.iter().map(|span| span.time[1]).fold(0.0, f64::max);
    if end <= 0.0 {
        return Err("nothing takes any time".into());
    }
    let height = LINE * f64::from(row.size) + 24.0;
    let mut out = String::new();
    if row.algorithm != drawn(row.algorithm) {
        out += "<p class=\"legend\">Within hosts, ranks read each other's memory; drawn are the \
            messages of hierarchical, which move the same bytes.</p>\n";
    }
    let _ = writeln!(
        out,
        "<svg class=\"small\" viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"timeline\">",
        WIDTH + LEFT
    );
    for rank in 0..row.size {
        let y = LINE * f64::from(rank) + 12.0;
        let _ = writeln!(out, "<text x=\"0\" y=\"{y}\">rank {rank}</text>");
    }
    for Span { rank, step, time: [from, to], bytes } in spans {
        let (x, y) = (LEFT + WIDTH * from / end, LINE * f64::from(rank) + 2.0);
        let width = (WIDTH * (to - from) / end).max(0.5);
        let _ = writeln!(
            out,
            "<rect class=\"{}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"12\"><title>\
             {}: {bytes} bytes, {} to {}</title></rect>",
            class(step.op),
            description(&step),
            Time(from),
            Time(to)
        );
    }
    let y = height - 6.0;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{y}\">0</text>");
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>\n</svg>",
        LEFT + WIDTH,
        Time(end)
    );
    Ok(out)
}

fn walk(report: &Report, row: &Explanation) -> Option<Vec<Span>> {
    let (ring, speeds) = (&report.ring, row.speeds?);
    let mut planner = Report::planner(ring, report.slots, report.least_chunk);
    planner.set_speeds(speeds);
    let algorithm = drawn(row.algorithm);
    planner.set_rules(Rules { forced: Some(algorithm), ..Rules::default() });
    let slots = planner.least_slots();
    let plan = planner.plan(&row.request);
    let collective = row.request.collective;
    let schedules = algorithm.schedules(collective, ring)?;
    let partition = [plan.partition];
    let host = |rank| ring.hosts().position(|host| host.contains(&rank));
    let speed = |from, to| if host(from) == host(to) { speeds.near } else { speeds.far };
    timeline(collective, &schedules, &Shape::of(&partition, slots.capacity), speed).ok()
}

/// The algorithm whose messages are drawn: within hosts, two-level sends none, but moves the bytes
/// that hierarchical sends.
fn drawn(algorithm: Algorithm) -> Algorithm {
    if algorithm == Algorithm::TwoLevel { Algorithm::Hierarchical } else { algorithm }
}

fn class(op: Op) -> &'static str {
    match (op.reduces(), op.receives(), op.sends()) {
        (true, ..) => "reduce",
        (false, true, true) => "pass",
        (false, true, false) => "recv",
        (false, false, true) => "send",
        (false, false, false) => "copy",
    }
}

pub(super) const LEGEND: &str = "<p class=\"legend\"><i class=\"send\"></i> send \
    <i class=\"reduce\"></i> receive and reduce <i class=\"pass\"></i> pass on \
    <i class=\"recv\"></i> receive <i class=\"copy\"></i> copy</p>\n";

fn description(step: &Step) -> String {
    let mut text = format!("{:?}", step.op);
    if step.op.receives() {
        let _ = write!(text, " from {}", step.from);
    }
    if step.op.sends() {
        let _ = write!(text, " to {}", step.to);
    }
    text
}
