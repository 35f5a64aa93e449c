//! The time until the last survivor has its error, by fault, links and number of ranks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::trial::{Fault, Links, Trial};

/// Times enough for a median that a busy moment of the machine does not change.
const ENOUGH: usize = 20;

#[derive(Default)]
pub(crate) struct Table {
    times: BTreeMap<(Fault, Links, usize), Vec<Duration>>,
    /// Trials that completed without an error.
    completed: BTreeMap<Fault, usize>,
}

impl Table {
    pub(crate) fn add(&mut self, trial: &Trial, latest: Option<Duration>) {
        match latest {
            Some(time) => {
                self.times.entry((trial.fault, trial.links, trial.n)).or_default().push(time);
            }
            None => *self.completed.entry(trial.fault).or_default() += 1,
        }
    }
}

/// The goal for 99 of 100 trials in ms; none where nothing is promised.
fn goal(fault: Fault, links: Links) -> Option<u32> {
    match (fault, links) {
        (Fault::Mismatch, _) => Some(100),
        // The timeout of such trials, and half a second.
        (Fault::Stop, Links::Threads) => Some(2_000),
        (Fault::Stop, _) => Some(4_500),
        (Fault::Close | Fault::Pause | Fault::Drops, _) => None,
        // The silence after which a host counts as lost, and half a second.
        (Fault::Cut, _) => Some(5_500),
        (_, Links::Mixed) => Some(1_000),
        // A rank that closes its communicator may have a cause: others wait 50 ms to hear of it.
        (Fault::Panic, _) | (Fault::Exit, Links::Threads) => Some(100),
        _ => Some(50),
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    goal: Option<u32>,
    mut times: Vec<Duration>,
) -> fmt::Result {
    times.sort_unstable();
    let ms = |part: f64| {
        let at = (part * (times.len() - 1) as f64).round() as usize;
        times[at].as_secs_f64() * 1000.0
    };
    let [p50, p99, max] = [ms(0.5), ms(0.99), ms(1.0)];
    let goal = goal.map_or("-".into(), |goal| goal.to_string());
    writeln!(f, "{name:24} {:5} {p50:9.1} {p99:9.1} {max:9.1} {goal:>6}", times.len())
}

impl Table {
    /// The faults whose median is later than the goal, among those with enough trials.
    pub(crate) fn late(&self) -> Vec<String> {
        let all = self.of_all_sizes().into_iter().filter(|(_, times)| times.len() >= ENOUGH);
        let late = all.filter_map(|((fault, links), mut times)| {
            times.sort_unstable();
            let (median, goal) = (times[times.len() / 2], goal(fault, links)?);
            let is_late = median > Duration::from_millis(goal.into());
            is_late.then(|| format!("{fault:?} {links:?}: {median:.1?}, not {goal} ms"))
        });
        late.collect()
    }

    fn of_all_sizes(&self) -> BTreeMap<(Fault, Links), Vec<Duration>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (&(fault, links, _), times) in &self.times {
            all.entry((fault, links)).or_default().extend_from_slice(times);
        }
        all
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "ms until the last survivor had its error:\n{:24} {:>5} {:>9} {:>9} {:>9} {:>6}",
            "fault, links, ranks", "count", "p50", "p99", "max", "goal"
        )?;
        for (&(fault, links, n), times) in &self.times {
            line(f, &format!("{fault:?} {links:?} {n}"), goal(fault, links), times.clone())?;
        }
        for ((fault, links), times) in self.of_all_sizes() {
            line(f, &format!("{fault:?} {links:?} all"), goal(fault, links), times)?;
        }
        for (fault, count) in &self.completed {
            writeln!(f, "{fault:?}: {count} completed without an error")?;
        }
        Ok(())
    }
}
