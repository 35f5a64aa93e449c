//! Times and speeds as text.

use core::fmt;

use super::Speed;

/// A time in seconds, displayed with a suitable unit: `1.25 us`.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
        let unit = units.into_iter().find(|(unit, _)| self.0 >= *unit);
        let (unit, name) = unit.unwrap_or((1e-9, "ns"));
        let value = self.0 / unit;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        f.pad(&format!("{value:.digits$} {name}"))
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { latency, step, byte, reduce } = *self;
        let rate = |seconds: f64| match seconds {
            0.0 => "free".to_owned(),
            seconds => format!("{:.1} GB/s", 1e-9 / seconds),
        };
        let (latency, step, byte, reduce) = (Time(latency), Time(step), rate(byte), rate(reduce));
        write!(f, "latency {latency}, a step {step}, moving {byte}, reducing {reduce}")
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_have_readable_units() {
        let times = [0.0, 2.5e-7, 1.25e-6, 33.33e-6, 4e-3, 700.0];
        let texts = times.map(|seconds| Time(seconds).to_string());
        assert_eq!(texts, ["0.00 ns", "250 ns", "1.25 us", "33.3 us", "4.00 ms", "700 s"]);
    }
}
