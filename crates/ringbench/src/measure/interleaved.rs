//! Measures every algorithm that can make a call and the library's own choice, in turns, so that
//! disturbances of the machine slow all of them down.

use anyhow::Result;
use ringreduce::plan::Request;
use ringreduce::{Algorithm, Error};

use super::Bench;
use crate::measure::case::{Case, Placement};
use crate::measure::oracle::Oracle;
use crate::measure::stats::percentile;
use crate::report::regret::{Regret, Timed};

/// Turns of each algorithm at a size; their median counts.
const TURNS: usize = 5;

impl Bench<'_> {
    pub(super) fn regret(&mut self, case: &Case, oracle: &Oracle) -> Result<Regret> {
        let in_place = Case { placement: Placement::InPlace, ..*case };
        let out_of_place = Case { placement: Placement::OutOfPlace, ..*case };
        let case = if in_place.exists() { &in_place } else { &out_of_place };
        self.fill(case, oracle)?;
        let mut wrong = None;
        let mut candidates = Vec::new();
        // The library's own choice is first.
        for algorithm in [None].into_iter().chain(Algorithm::ALL.map(Some)) {
            self.algorithm = algorithm;
            match self.batch(case, 1) {
                Err(error) if is_unable(&error) => continue,
                tried => tried?,
            };
            self.checked(case, oracle, &mut wrong)?;
            candidates.push((algorithm, Vec::new()));
        }
        self.algorithm = None;
        self.fill(case, oracle)?;
        let iters = match self.cli.iters {
            Some(iters) => iters,
            None => self.agree(case, oracle)?.div_ceil(TURNS),
        };
        for turn in 0..=TURNS {
            for (algorithm, times) in &mut candidates {
                self.algorithm = *algorithm;
                if turn == 0 {
                    self.batch(case, self.cli.warmup_iters)?;
                } else {
                    times.push(self.time(case, oracle, iters)?);
                }
            }
        }
        self.algorithm = None;
        let mut timed = candidates.into_iter().map(|(algorithm, mut times)| {
            times.sort_by(f64::total_cmp);
            let algorithm = algorithm.map_or("auto", Algorithm::name);
            Timed { algorithm, time_us: percentile(&times, 0.5) }
        });
        let auto = timed.next().map_or(0.0, |auto| auto.time_us);
        let chosen = match case.request() {
            Some(Request { collective, count, dtype, .. }) => {
                self.comm.explain(collective, count, dtype)?.algorithm.name()
            }
            None => "auto",
        };
        Ok(Regret::new(case, iters, chosen, auto, timed.collect(), wrong))
    }
}

/// True if the library refused the call because the algorithm can't make it. All ranks get this
/// error.
fn is_unable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Argument { argument: "algorithm", .. }))
}
