//! A line chart over sizes as inline SVG. Classes of the page's style sheet give its colours.

use std::fmt::Write;

use tools::sizes::human;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
const MAX_LABELS: usize = 9;

pub(crate) struct Series {
    /// The line's class in the style sheet.
    pub(crate) class: &'static str,
    pub(crate) points: Vec<Point>,
}

pub(crate) struct Point {
    pub(crate) bytes: usize,
    pub(crate) value: f64,
    /// The text that a browser shows beside the mouse.
    pub(crate) title: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, with numbers as labels.
    Linear,
    /// Logarithmic, of microseconds.
    LogMicros,
}

/// A span of values at one size, drawn behind the lines.
pub(crate) struct Band {
    pub(crate) bytes: usize,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

struct Axes {
    scale: Scale,
    /// The range of the logarithm of bytes, base 2.
    x: [f64; 2],
    /// The range of values, or of their logarithm, base 10.
    y: [f64; 2],
}

impl Axes {
    fn around(scale: Scale, series: &[Series], band: &[Band]) -> Option<Self> {
        let points = || series.iter().flat_map(|s| &s.points);
        let values = points().map(|p| p.value).chain(band.iter().flat_map(|b| [b.low, b.high]));
        let [low, high] = span(values)?;
        let mut x = span(points().map(|p| (p.bytes as f64).log2()))?;
        if x[0] == x[1] {
            x = [x[0] - 1.0, x[1] + 1.0];
        }
        let y = match scale {
            Scale::Linear => {
                let step = round_up(high.max(f64::MIN_POSITIVE) / 6.0);
                [0.0, (high / step).ceil().max(1.0) * step]
            }
            // The margin is a tenth of a decade. The clock has no more digits than nanoseconds.
            Scale::LogMicros => [low.max(1e-3).log10() - 0.1, high.max(1e-3).log10() + 0.1],
        };
        Some(Self { scale, x, y })
    }

    fn x(&self, bytes: usize) -> f64 {
        let share = ((bytes as f64).log2() - self.x[0]) / (self.x[1] - self.x[0]);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::LogMicros => value.max(1e-3).log10(),
        };
        let share = (value - self.y[0]) / (self.y[1] - self.y[0]);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let step = round_up(self.y[1] / 6.0);
                let count = (self.y[1] / step).round() as i32;
                let digits = (-step.log10().floor()).max(0.0) as usize;
                let tick = |i| f64::from(i) * step;
                (0..=count).map(|i| (tick(i), format!("{:.digits$}", tick(i)))).collect()
            }
            Scale::LogMicros => {
                // Labels are whole decades, and 2 and 5 times them if there are few.
                let within = |log: f64| self.y[0] <= log && log <= self.y[1];
                let steps: &[f64] =
                    if self.y[1] - self.y[0] < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let decades = self.y[0].floor() as i32..=self.y[1].ceil() as i32;
                let all = decades.flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
                all.filter(|v| within(v.log10())).map(|v| (v, micros(v))).collect()
            }
        }
    }
}

/// The least 1, 2 or 5 times a power of ten that is not less than `value`.
fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0].into_iter().find(|f| f * decade >= value * 0.999_999);
    factors.unwrap_or(10.0) * decade
}

/// `200 ns`, `5 µs`, `10 ms`.
fn micros(value: f64) -> String {
    let (value, unit) = match value {
        v if v < 0.999 => (v * 1e3, "ns"),
        v if v < 999.0 => (v, "µs"),
        v if v < 999_000.0 => (v / 1e3, "ms"),
        v => (v / 1e6, "s"),
    };
    format!("{value:.0} {unit}")
}

fn span(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    values.fold(None, |span, v| {
        let [low, high] = span.unwrap_or([v, v]);
        Some([v.min(low), v.max(high)])
    })
}

/// The drawing; empty without values.
pub(crate) fn svg(name: &str, scale: Scale, series: &[Series], band: &[Band]) -> String {
    let Some(axes) = Axes::around(scale, series, band) else { return String::new() };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\" \
         preserveAspectRatio=\"xMidYMid meet\">\n"
    );
    frame(&mut out, &axes);
    if !band.is_empty() {
        let upper = band.iter().map(|b| (b.bytes, b.high));
        let lower = band.iter().rev().map(|b| (b.bytes, b.low));
        let path = path(&axes, upper.chain(lower));
        let _ = writeln!(out, "<path class=\"band\" d=\"{path}Z\"/>");
    }
    for Series { class, points } in series {
        let path = path(&axes, points.iter().map(|p| (p.bytes, p.value)));
        let _ = writeln!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
        for Point { bytes, value, title } in points {
            let (x, y) = (axes.x(*bytes), axes.y(*value));
            let _ = writeln!(
                out,
                "<g class=\"dot {class}\">\
                 <circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/><title>{title}</title></g>"
            );
        }
    }
    out + "</svg>\n"
}

fn frame(out: &mut String, axes: &Axes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (value, label) in axes.ticks() {
        let y = axes.y(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y + 4.0
        );
    }
    let powers: Vec<u32> = (axes.x[0].ceil() as u32..=axes.x[1].floor() as u32).collect();
    for power in powers.iter().step_by(powers.len().div_ceil(MAX_LABELS).max(1)) {
        let x = axes.x(1 << power);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            human(1 << power)
        );
    }
    let _ = writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">message size</text>",
        (LEFT + right) / 2.0,
        bottom + 36.0
    );
}

fn path(axes: &Axes, points: impl Iterator<Item = (usize, f64)>) -> String {
    let mut path = String::new();
    for (i, (bytes, value)) in points.enumerate() {
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", axes.x(bytes), axes.y(value));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(usize, f64)]) -> Vec<Series> {
        let point = |&(bytes, value)| Point { bytes, value, title: "here".into() };
        vec![Series { class: "a", points: points.iter().map(point).collect() }]
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [0.9, 1.0, 1.1, 2.2, 5.5, 70.0].map(round_up),
            [1.0, 1.0, 2.0, 5.0, 10.0, 100.0]
        );
    }

    #[test]
    fn every_point_is_inside_the_axes() {
        for scale in [Scale::Linear, Scale::LogMicros] {
            let series = line(&[(8, 0.1), (1 << 20, 40.0), (1 << 26, 4000.0)]);
            let axes = Axes::around(scale, &series, &[]).unwrap();
            for point in &series[0].points {
                let (x, y) = (axes.x(point.bytes), axes.y(point.value));
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{x}");
                assert!((TOP - 0.1..=HEIGHT - BOTTOM + 0.1).contains(&y), "{y}");
            }
            assert!(axes.ticks().len() >= 3);
            assert_eq!(svg("n", scale, &series, &[]).matches("<title>here").count(), 3);
        }
    }

    #[test]
    fn one_point_zero_and_no_points_are_drawn() {
        assert!(svg("n", Scale::Linear, &line(&[(64, 0.0)]), &[]).contains("<circle"));
        assert!(svg("n", Scale::LogMicros, &line(&[(64, 0.0)]), &[]).contains("<circle"));
        assert_eq!(svg("n", Scale::Linear, &line(&[]), &[]), "");
    }
}
