//! How soon the last survivor was told, by what happened, the number of ranks and the transport.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::trial::{Fault, Trial, Way};

/// So many times have a median that a busy moment of the machine does not move.
const MANY: usize = 20;

#[derive(Default)]
pub(crate) struct Table {
    times: BTreeMap<(Fault, Way, usize), Vec<Duration>>,
    /// Where all went on to the right end.
    right: BTreeMap<Fault, usize>,
}

impl Table {
    pub(crate) fn add(&mut self, trial: &Trial, told: Option<Duration>) {
        match told {
            Some(time) => {
                self.times.entry((trial.fault, trial.way, trial.n)).or_default().push(time);
            }
            None => *self.right.entry(trial.fault).or_default() += 1,
        }
    }
}

/// What is aimed at, in ms, for 99 of 100; none where nothing is promised.
fn goal(fault: Fault, way: Way) -> Option<u32> {
    match (fault, way) {
        (Fault::Mismatch, _) => Some(100),
        // The time that a call may take in such trials, and half a second.
        (Fault::Stop, _) => Some(4_500),
        (Fault::Close | Fault::Pause | Fault::Drops, _) => None,
        // After what passes without a sign before a host counts as lost, and half a second.
        (Fault::Cut, _) => Some(5_500),
        (_, Way::Mixed) => Some(1_000),
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
    /// Of which faults the last survivor is usually told later than is aimed at? None of a few.
    pub(crate) fn late(&self) -> Vec<String> {
        let all = self.of_all_sizes().into_iter().filter(|(_, times)| times.len() >= MANY);
        let late = all.filter_map(|((fault, way), mut times)| {
            times.sort_unstable();
            let (median, goal) = (times[times.len() / 2], goal(fault, way)?);
            let is_late = median > Duration::from_millis(goal.into());
            is_late.then(|| format!("{fault:?} {way:?}: {median:.1?}, not {goal} ms"))
        });
        late.collect()
    }

    fn of_all_sizes(&self) -> BTreeMap<(Fault, Way), Vec<Duration>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (&(fault, way, _), times) in &self.times {
            all.entry((fault, way)).or_default().extend_from_slice(times);
        }
        all
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "the last survivor was told after ms:\n{:24} {:>5} {:>9} {:>9} {:>9} {:>6}",
            "what, way, ranks", "count", "p50", "p99", "max", "goal"
        )?;
        for (&(fault, way, n), times) in &self.times {
            line(f, &format!("{fault:?} {way:?} {n}"), goal(fault, way), times.clone())?;
        }
        for ((fault, way), times) in self.of_all_sizes() {
            line(f, &format!("{fault:?} {way:?} all"), goal(fault, way), times)?;
        }
        for (fault, count) in &self.right {
            writeln!(f, "{fault:?}: {count} went on to the right end")?;
        }
        Ok(())
    }
}
