//! The ring over the hosts as SVG: a dot for each rank, or for each host where there are too many
//! ranks; links between hosts are thicker.

use std::f64::consts::TAU;
use std::fmt::Write;

use ringreduce::schedule::Ring;

const MAX_DOTS: usize = 64;
const RADIUS: f64 = 150.0;

struct Dot {
    label: String,
    host: usize,
    /// The link to the next dot leaves the host.
    leaves: bool,
}

pub(super) fn ring(ring: &Ring) -> String {
    let hosts: Vec<&[u32]> = ring.hosts().collect();
    let (dots, shown) = if ring.size() as usize <= MAX_DOTS {
        let ranks = |(host, ranks): (usize, &&[u32])| {
            let last = ranks.len() - 1;
            let leaves = |at| at == last && hosts.len() > 1;
            let dot = |(at, rank): (usize, &u32)| Dot {
                label: rank.to_string(),
                host,
                leaves: leaves(at),
            };
            ranks.iter().enumerate().map(dot).collect::<Vec<_>>()
        };
        let dots: Vec<_> = hosts.iter().enumerate().flat_map(ranks).collect();
        (dots, "a dot is a rank, a colour a host".to_owned())
    } else {
        let each = hosts.len().div_ceil(MAX_DOTS);
        let dot = |(at, some): (usize, &[&[u32]])| {
            let first = at * each;
            let label = match some.len() {
                1 => format!("h{first}"),
                _ => format!("h{first}-{}", first + some.len() - 1),
            };
            Dot { label, host: at, leaves: true }
        };
        let dots: Vec<_> = hosts.chunks(each).enumerate().map(dot).collect();
        let ranks = || hosts.iter().map(|host| host.len());
        let ranks = match (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0)) {
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        let many = if each == 1 { "a host".into() } else { format!("up to {each} hosts") };
        (dots, format!("a dot is {many}, of {ranks} ranks each"))
    };
    let at = |number: usize, radius: f64| {
        let angle = TAU * number as f64 / dots.len() as f64 - TAU / 4.0;
        (200.0 + radius * angle.cos(), 200.0 + radius * angle.sin())
    };
    let mut out = String::from("<svg viewBox=\"0 0 400 400\" class=\"ring small\" role=\"img\" ");
    let _ = writeln!(out, "aria-label=\"the ring over the hosts\">");
    for (number, dot) in dots.iter().enumerate() {
        let ((x, y), (to_x, to_y)) = (at(number, RADIUS), at((number + 1) % dots.len(), RADIUS));
        let class = if dot.leaves { "far" } else { "near" };
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" \
             y2=\"{to_y:.1}\"/>"
        );
    }
    for (number, Dot { label, host, .. }) in dots.iter().enumerate() {
        let ((x, y), (text_x, text_y)) = (at(number, RADIUS), at(number, RADIUS + 22.0));
        let hue = host * 137 % 360;
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"hsl({hue} 60% 50%)\"/>\
             <text x=\"{text_x:.1}\" y=\"{text_y:.1}\" text-anchor=\"middle\">{label}</text>"
        );
    }
    let _ = writeln!(out, "</svg>\n<p>The ring: {shown}.</p>");
    out
}
