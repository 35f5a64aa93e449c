//! Speeds of links in the units of data sheets, with defaults.

use clap::Args;
use ringreduce::plan::{Source, Speeds};
use ringreduce::sim::Speed;

/// How fast links are. The defaults are those of common machines, not of this one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speeds (ns, us, ms, s; MB/s, GB/s, Gbit/s)")]
pub(super) struct SpeedOptions {
    /// Time from a message's end until the peer sees it, between hosts [default: 20us]
    #[arg(long, value_name = "TIME", value_parser = time)]
    latency: Option<f64>,
    /// Bytes that a rank moves between hosts per second [default: 3GB/s]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    bandwidth: Option<f64>,
    /// Time that a message costs its rank, between hosts [default: 2us]
    #[arg(long, value_name = "TIME", value_parser = time)]
    step: Option<f64>,
    /// The latency within a host [default: 300ns]
    #[arg(long, value_name = "TIME", value_parser = time)]
    host_latency: Option<f64>,
    /// Bytes that a rank moves within a host per second [default: 10GB/s]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    host_bandwidth: Option<f64>,
    /// Time that a message costs its rank, within a host [default: 100ns]
    #[arg(long, value_name = "TIME", value_parser = time)]
    host_step: Option<f64>,
    /// Bytes that a rank reduces per second
    #[arg(long, value_name = "RATE", default_value = "20GB/s", value_parser = rate)]
    reduce: f64,
}

impl SpeedOptions {
    /// The speeds of a world with links within hosts, or between them, or both. Fails if a speed
    /// was given of links that the world does not have.
    pub(super) fn speeds(&self, inside: bool, across: bool) -> Result<Speeds, String> {
        let reduce = self.reduce;
        let given = |options: [(&'static str, Option<f64>); 3]| {
            options.into_iter().find(|(_, value)| value.is_some()).map(|(option, _)| option)
        };
        let between =
            [("latency", self.latency), ("bandwidth", self.bandwidth), ("step", self.step)];
        if let Some(option) = given(between).filter(|_| !across) {
            return Err(format!(
                "--{option} is of links between hosts, and there is one host: say --host-{option}, \
                 or how many --hosts"
            ));
        }
        let within = [
            ("host-latency", self.host_latency),
            ("host-bandwidth", self.host_bandwidth),
            ("host-step", self.host_step),
        ];
        if let Some(option) = given(within).filter(|_| across && !inside) {
            let other = option.trim_start_matches("host-");
            return Err(format!(
                "--{option} is of links within a host, and each host has one rank: say --{other}"
            ));
        }
        let near = Speed {
            latency: self.host_latency.unwrap_or(300e-9),
            step: self.host_step.unwrap_or(100e-9),
            byte: self.host_bandwidth.unwrap_or(0.1e-9),
            reduce,
        };
        let far = Speed {
            latency: self.latency.unwrap_or(20e-6),
            step: self.step.unwrap_or(2e-6),
            byte: self.bandwidth.unwrap_or(1.0 / 3e9),
            reduce,
        };
        let far = if across { far } else { near };
        Ok(Speeds { near, far, source: Source::Stated })
    }
}

fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().ok().filter(|number: &f64| number.is_finite())?;
    Some((number, unit.trim_start()))
}

/// Seconds.
fn time(text: &str) -> Result<f64, String> {
    let scale = |unit| match unit {
        "ns" => Some(1e-9),
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    let seconds = number(text).and_then(|(number, unit)| Some(number * scale(unit)?));
    seconds.ok_or_else(|| "expected a time, such as 300ns, 2.5us or 1ms".into())
}

/// Seconds per byte.
fn rate(text: &str) -> Result<f64, String> {
    let scale = |unit| match unit {
        "MB/s" => Some(1e6),
        "GB/s" => Some(1e9),
        "TB/s" => Some(1e12),
        "Mbit/s" => Some(1e6 / 8.0),
        "Gbit/s" => Some(1e9 / 8.0),
        _ => None,
    };
    let bytes = number(text).and_then(|(number, unit)| Some(number * scale(unit)?));
    let seconds = bytes.filter(|&bytes| bytes > 0.0).map(f64::recip);
    seconds.ok_or_else(|| "expected a rate above 0, such as 12.5GB/s or 100Gbit/s".into())
}

#[cfg(test)]
mod tests {
    use super::{rate, time};

    #[test]
    fn units_are_those_of_data_sheets() {
        let close = |got: Result<f64, String>, want: f64| (got.unwrap() / want - 1.0).abs() < 1e-12;
        assert!(close(time("300ns"), 3e-7) && close(time("2.5 us"), 2.5e-6));
        assert!(close(rate("100Gbit/s"), 0.08e-9) && close(rate("10GB/s"), 0.1e-9));
        assert_eq!(time("0s"), Ok(0.0));
        for wrong in ["", "5", "us", "-1us", "1h", "1..2us", "nan us"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0GB/s", "10", "10Gb/s", "-1GB/s", "GB/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
