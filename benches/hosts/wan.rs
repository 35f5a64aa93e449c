//! An all-reduce over a wide-area network, against raw rings over one, two and four streams, each
//! with a part of the buffer and a thread, by the congestion control of most systems and by bbr.

use std::time::Duration;

use harness::wan::Wan;
use serde::{Deserialize, Serialize};

use super::figures::{Choice, Job, human, median, percent, range};

/// The raw rings: how many of them, by which congestion control.
pub(crate) const RAW: [(usize, &str); 6] =
    [(1, "cubic"), (2, "cubic"), (4, "cubic"), (1, "bbr"), (2, "bbr"), (4, "bbr")];
/// The congestion control of each ring that a rank has.
pub(crate) const RINGS: [&str; 8] =
    ["cubic", "cubic", "cubic", "cubic", "bbr", "bbr", "bbr", "bbr"];

/// A network whose cables have a rate in Mbit/s, its round-trip time in ms, and the share of
/// packets that it loses.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Network {
    pub(crate) rate: u32,
    pub(crate) round_trip_ms: u32,
    pub(crate) loss: f64,
}

impl Network {
    pub(crate) fn wan(self) -> Wan {
        Wan { delay: Duration::from_millis(self.round_trip_ms.into()) / 2, loss: self.loss }
    }
}

/// Seconds of calls of raw rings, by [`RAW`], and of the library.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WanRace {
    pub(crate) job: Job,
    pub(crate) network: Network,
    pub(crate) bytes: usize,
    pub(crate) choice: Choice,
    pub(crate) raw: [Vec<f64>; RAW.len()],
    pub(crate) ours: Vec<f64>,
}

impl WanRace {
    pub(crate) fn row(&self) -> Vec<String> {
        let raw = self.raw.each_ref().map(|seconds| median(seconds));
        let (ours, (low, high)) = (median(&self.ours), range(&self.ours));
        let ms = |seconds: f64| format!("{:.0}", seconds * 1e3);
        let best = raw.iter().copied().fold(f64::INFINITY, f64::min);
        vec![
            self.job.shape(),
            self.job.rate(),
            format!("{} ms", self.network.round_trip_ms),
            format!("{:.1} %", self.network.loss * 100.0),
            human(self.bytes),
            raw[..3].iter().copied().map(ms).collect::<Vec<_>>().join(", "),
            raw[3..].iter().copied().map(ms).collect::<Vec<_>>().join(", "),
            format!("{} ({} to {})", ms(ours), ms(low), ms(high)),
            percent(best / ours),
            self.choice.name.clone(),
        ]
    }
}
