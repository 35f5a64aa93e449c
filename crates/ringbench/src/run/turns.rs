//! Every algorithm that can make a call, measured in turns with the library's own choice: what
//! the machine does meanwhile is done to all of them.

use anyhow::Result;
use ringreduce::plan::Request;
use ringreduce::{Algorithm, Error};

use super::Bench;
use crate::collective::{Case, Form};
use crate::expect::Oracle;
use crate::regret::{Regret, Timed};
use crate::stats::percentile;

/// Turns of each at a size; the median of them counts.
const TURNS: usize = 5;

impl Bench<'_> {
    /// One size: what each algorithm takes, and which one is chosen.
    pub(super) fn regret(&mut self, case: &Case, oracle: &Oracle) -> Result<Regret> {
        let form = if case.has(Form::InPlace) { Form::InPlace } else { Form::OutOfPlace };
        self.fill(case, oracle, form)?;
        let mut wrong = None;
        let mut ways = Vec::new();
        // The library's own choice first, and once more at the end, where it is left.
        for way in [None].into_iter().chain(Algorithm::ALL.map(Some)) {
            self.algorithm = way;
            match self.batch(case, form, 1) {
                Err(error) if is_unable(&error) => continue,
                tried => tried?,
            };
            self.checked(case, oracle, form, &mut wrong)?;
            ways.push((way, Vec::new()));
        }
        self.algorithm = None;
        self.fill(case, oracle, form)?;
        let iters = match self.cli.iters {
            Some(iters) => iters,
            None => self.agree(case, oracle, form)?.div_ceil(TURNS),
        };
        for turn in 0..=TURNS {
            for (way, times) in &mut ways {
                self.algorithm = *way;
                if turn == 0 {
                    self.batch(case, form, self.cli.warmup_iters)?;
                } else {
                    times.push(self.time(case, oracle, form, iters)?);
                }
            }
        }
        self.algorithm = None;
        let mut timed = ways.into_iter().map(|(way, mut times)| {
            times.sort_by(f64::total_cmp);
            let algorithm = way.map_or("auto", Algorithm::name);
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

/// Was the call refused because the algorithm can't make it? All ranks are told so alike.
fn is_unable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Argument { argument: "algorithm", .. }))
}
