//! Measures the machine in about a tenth of a second: how fast one CPU gets a cache line from
//! another, and how fast two of them add. The CPUs of a virtual machine may be near or far and move
//! between runs, so that figures of two runs can be compared only with these.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::limits::memory;
use crate::machine;
use crate::measure::stats::percentile;

/// Two CPUs that share a cache hand over a line in less than this, ns.
const NEAR_NS: f64 = 110.0;
/// Above this, ns, other programs ran on the CPUs, so that their distance is unknown.
const DISTURBED_NS: f64 = 2000.0;
/// Round trips of one sample, few enough that most samples are not interrupted on a busy host.
const ROUND_TRIPS_PER_SAMPLE: u64 = 50;
const MAX_SAMPLES: usize = 1000;
const TIME_LIMIT: Duration = Duration::from_millis(100);
/// Polls of the other's line between two reads of the clock, which take longer than a hand-over.
const POLLS_PER_CLOCK_READ: u32 = 10_000;
/// Elements of each array that is added: 64 MiB.
const ELEMENTS: usize = 16 << 20;
const PASSES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distance {
    /// The CPUs share a cache.
    Near,
    Far,
    /// Other programs kept the CPUs busy.
    Disturbed,
}

impl Distance {
    fn of(hand_over_ns: f64) -> Self {
        match hand_over_ns {
            ns if ns < NEAR_NS => Self::Near,
            ns if ns <= DISTURBED_NS => Self::Far,
            _ => Self::Disturbed,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Disturbed => "disturbed",
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Probe {
    pub(crate) cpus: [usize; 2],
    /// The median time of one way.
    pub(crate) hand_over_ns: f64,
    pub(crate) distance: Distance,
    /// Result bytes of a += b at 64 MiB, two threads, the best pass.
    pub(crate) add_gb_per_s: f64,
}

impl Probe {
    /// Measures two CPUs. None if a thread failed.
    pub(crate) fn of(cpus: [usize; 2]) -> Option<Self> {
        let hand_over_ns = hand_over(cpus)?;
        let add_gb_per_s = add(cpus)?;
        Some(Self { cpus, hand_over_ns, distance: Distance::of(hand_over_ns), add_gb_per_s })
    }
}

/// A flag with a cache line of its own, and the line that is prefetched with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// The time in which one thread sees a write of the other, ns.
pub(crate) fn hand_over(cpus: [usize; 2]) -> Option<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut samples = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            machine::pin(cpus[1]);
            let mut last = 0;
            while last != u64::MAX {
                let now = ping.0.load(Acquire);
                if now == last {
                    std::hint::spin_loop();
                } else {
                    last = now;
                    pong.0.store(now, Release);
                }
            }
        });
        let samples = scope.spawn(|| {
            machine::pin(cpus[0]);
            let begin = Instant::now();
            let mut turn = 0;
            let mut samples = Vec::with_capacity(MAX_SAMPLES);
            while samples.len() < MAX_SAMPLES && begin.elapsed() < TIME_LIMIT {
                let start = Instant::now();
                // After a long interruption by another program, the sample is the last.
                let in_time = || begin.elapsed() < TIME_LIMIT;
                for _ in 0..ROUND_TRIPS_PER_SAMPLE {
                    turn += 1;
                    ping.0.store(turn, Release);
                    let mut looks = 0_u32;
                    while pong.0.load(Acquire) != turn
                        && (looks < POLLS_PER_CLOCK_READ || in_time())
                    {
                        std::hint::spin_loop();
                        looks = if looks < POLLS_PER_CLOCK_READ { looks + 1 } else { 0 };
                    }
                }
                samples.push(
                    start.elapsed().as_secs_f64() * 1e9 / (2 * ROUND_TRIPS_PER_SAMPLE) as f64,
                );
            }
            ping.0.store(u64::MAX, Release);
            samples
        });
        echo.join().ok()?;
        samples.join().ok()
    })?;
    samples.sort_by(f64::total_cmp);
    Some(percentile(&samples, 0.5))
}

/// The speed at which two threads add half an array each at the same time, GB/s.
fn add(cpus: [usize; 2]) -> Option<f64> {
    let times = machine::on_each(&cpus, |_, barrier| {
        let (mut a, b) = (vec![1.0f32; ELEMENTS / 2], vec![1.0f32; ELEMENTS / 2]);
        machine::best_pass(barrier, PASSES, || memory::add(black_box(&mut a), &b))
    })?;
    let slowest = times.into_iter().fold(0.0, f64::max);
    Some((ELEMENTS * size_of::<f32>()) as f64 / slowest / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_probe_is_neither_near_nor_far() {
        let names = [56.0, 500.0, 2000.0, 2001.0, 1_125_465.0].map(|ns| Distance::of(ns).name());
        assert_eq!(names, ["near", "far", "far", "disturbed", "disturbed"]);
        let json = serde_json::to_string(&Distance::Disturbed).unwrap();
        assert_eq!(json, "\"disturbed\"");
    }

    #[test]
    fn a_probe_measures_both_speeds() {
        let cpus = tools::cpus::allowed().unwrap();
        let Some(&second) = cpus.get(1) else {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIP a_probe_measures_both_speeds: one CPU");
            return;
        };
        let probe = Probe::of([cpus[0], second]).unwrap();
        assert!(probe.hand_over_ns > 0.0 && probe.add_gb_per_s > 0.0, "{probe:?}");
    }
}
