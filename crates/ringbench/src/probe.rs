//! The machine on trial: how fast one CPU takes a cache line from another, and how fast two of
//! them add. A virtual machine's two CPUs are near or far, and change it between runs: figures
//! are worth comparing only beside this. Takes about a tenth of a second.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::machine;
use crate::stats::percentile;

/// Handing over a line takes less than this when two CPUs share a cache, ns.
const NEAR: f64 = 110.0;
/// And with more than this, ns, something else ran on them: it says nothing of where they are.
const DISTURBED: f64 = 2000.0;
/// Round trips in one sample: so few that most samples see no interruption, even on a busy host.
const BATCH: u64 = 50;
const BATCHES: usize = 1000;
const PATIENCE: Duration = Duration::from_millis(100);
/// Looks at the other's line between two at the clock, which takes longer than handing over does.
const LOOKS: u32 = 10_000;
/// Elements of each array that is added: 64 MiB.
const ELEMENTS: usize = 16 << 20;
const PASSES: usize = 8;

/// How the two CPUs lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distance {
    /// They share a cache.
    Near,
    Far,
    /// Too busy to tell.
    Disturbed,
}

impl Distance {
    fn of(hand_over_ns: f64) -> Self {
        match hand_over_ns {
            ns if ns < NEAR => Self::Near,
            ns if ns <= DISTURBED => Self::Far,
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

/// What the machine could do at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Probe {
    /// The two CPUs.
    pub(crate) cpus: [usize; 2],
    /// One way, median.
    pub(crate) hand_over_ns: f64,
    pub(crate) distance: Distance,
    /// Result bytes of a += b at 64 MiB, two threads, the best pass.
    pub(crate) add_gb_per_s: f64,
}

impl Probe {
    /// Measures two CPUs. None if a thread of it failed.
    pub(crate) fn of(cpus: [usize; 2]) -> Option<Self> {
        let hand_over_ns = hand_over(cpus)?;
        let add_gb_per_s = add(cpus)?;
        Some(Self { cpus, hand_over_ns, distance: Distance::of(hand_over_ns), add_gb_per_s })
    }
}

/// A flag on a line of its own (and of the line that is fetched with it).
#[repr(align(128))]
struct Line(AtomicU64);

/// Two threads write to each other in turn.
fn hand_over(cpus: [usize; 2]) -> Option<f64> {
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
            let mut samples = Vec::with_capacity(BATCHES);
            while samples.len() < BATCHES && begin.elapsed() < PATIENCE {
                let start = Instant::now();
                // One that another program interrupts for long is the last.
                let in_time = || begin.elapsed() < PATIENCE;
                for _ in 0..BATCH {
                    turn += 1;
                    ping.0.store(turn, Release);
                    let mut looks = 0_u32;
                    while pong.0.load(Acquire) != turn && (looks < LOOKS || in_time()) {
                        std::hint::spin_loop();
                        looks = if looks < LOOKS { looks + 1 } else { 0 };
                    }
                }
                samples.push(start.elapsed().as_secs_f64() * 1e9 / (2 * BATCH) as f64);
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

/// Two threads add half an array each, repeatedly and at the same time.
fn add(cpus: [usize; 2]) -> Option<f64> {
    let gate = std::sync::Barrier::new(cpus.len());
    let times = thread::scope(|scope| {
        let halves = cpus.map(|cpu| {
            let gate = &gate;
            scope.spawn(move || {
                machine::pin(cpu);
                let (mut a, b) = (vec![1.0f32; ELEMENTS / 2], vec![1.0f32; ELEMENTS / 2]);
                let mut pass = || {
                    gate.wait();
                    let start = Instant::now();
                    a.iter_mut().zip(&b).for_each(|(a, b)| *a += *b);
                    std::hint::black_box(&mut a);
                    gate.wait();
                    start.elapsed().as_secs_f64()
                };
                (0..PASSES).map(|_| pass()).fold(f64::INFINITY, f64::min)
            })
        });
        halves.into_iter().map(|half| half.join().ok()).collect::<Option<Vec<f64>>>()
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
    fn measures_something() {
        let cpus = machine::cpus();
        let Some(&second) = cpus.get(1) else {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIP measures_something: one CPU");
            return;
        };
        let probe = Probe::of([cpus[0], second]).unwrap();
        assert!(probe.hand_over_ns > 0.0 && probe.add_gb_per_s > 0.0, "{probe:?}");
    }
}
