//! Regret: how much more time the chosen algorithm takes than the best one, as data and as text.

use serde::Serialize;

use crate::measure::case::Case;
use crate::measure::stats::percentile;
use crate::report::RowCall;
use crate::report::table::{heading, micros, wrong};
use tools::columns::line;
use tools::sizes::human;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Timed {
    pub(crate) algorithm: &'static str,
    /// Time per call of the slowest rank, the median of several turns.
    pub(crate) time_us: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Regret {
    #[serde(flatten)]
    pub(crate) call: RowCall,
    pub(crate) best: Timed,
    pub(crate) chosen: Timed,
    /// The time of calls that leave the choice to the library.
    pub(crate) auto_us: f64,
    pub(crate) regret_percent: f64,
    /// Wrong elements over all ranks and algorithms; none if unchecked.
    pub(crate) wrong: Option<u64>,
    pub(crate) algorithms: Vec<Timed>,
}

impl Regret {
    /// `algorithms` are the ones that can make the call, `chosen` is the name of one of them.
    pub(crate) fn new(
        case: &Case,
        iterations: usize,
        chosen: &'static str,
        auto_us: f64,
        algorithms: Vec<Timed>,
        wrong: Option<u64>,
    ) -> Self {
        let auto = Timed { algorithm: chosen, time_us: auto_us };
        let own = algorithms.iter().find(|timed| timed.algorithm == chosen);
        let chosen = own.cloned().unwrap_or(auto);
        let best = algorithms.iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us));
        let best = best.unwrap_or(&chosen).clone();
        Self {
            call: RowCall::new(case, iterations),
            regret_percent: (chosen.time_us / best.time_us - 1.0) * 100.0,
            best,
            chosen,
            auto_us,
            wrong,
            algorithms,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Regrets {
    #[serde(skip)]
    pub(crate) rows: Vec<Regret>,
    pub(crate) median_percent: f64,
    pub(crate) worst_percent: f64,
    /// The size with the worst regret, in bytes.
    pub(crate) worst_size: usize,
}

impl Regrets {
    pub(crate) fn finish(&mut self) {
        let mut all: Vec<f64> = self.rows.iter().map(|row| row.regret_percent).collect();
        all.sort_by(f64::total_cmp);
        self.median_percent = percentile(&all, 0.5);
        let worst = self.rows.iter().max_by(|a, b| a.regret_percent.total_cmp(&b.regret_percent));
        if let Some(worst) = worst {
            (self.worst_percent, self.worst_size) = (worst.regret_percent, worst.call.size);
        }
    }

    pub(crate) fn summary(&self) -> String {
        let Self { median_percent, worst_percent, worst_size, .. } = self;
        let at = human(*worst_size);
        let spread = format!("median {median_percent:.1} %, worst {worst_percent:.1} % at {at}");
        format!("# Regret               : {spread}\n")
    }
}

/// The widths of the columns.
const LAYOUT: &str = "12  12  8  6  6  18  8  18  8  7  8  6";

pub(crate) fn header() -> String {
    let names = "size count type redop root best time chosen time regret auto #wrong";
    let units = ["(B)", "(elements)", "", "", "", "", "(us)", "", "(us)", "(%)", "(us)", ""];
    heading(LAYOUT, names.split(' ')) + &heading(LAYOUT, units)
}

pub(crate) fn row(regret: &Regret) -> String {
    let Regret { best, chosen, regret_percent, .. } = regret;
    let choice = |timed: &Timed| [timed.algorithm.into(), micros(timed.time_us)];
    let rest = [format!("{regret_percent:.1}"), micros(regret.auto_us), wrong(regret.wrong)];
    let cells = regret.call.cells().into_iter().chain(choice(best)).chain(choice(chosen));
    line(LAYOUT, cells.chain(rest)) + "\n"
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::case::{Placement, Verb};
    use ringreduce::schedule::Collective;
    use ringreduce::{DataType, ReduceOp};

    /// Two sizes: the first choice is the best, the second takes 1.5 times the best time.
    pub(crate) fn sample() -> Regrets {
        let case = |count| Case {
            verb: Verb::Of(Collective::AllReduce),
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            count,
            rank: 0,
            ranks: 4,
            placement: Placement::InPlace,
        };
        let timed = |[ring, pairs]: [f64; 2]| {
            let of = |algorithm, time_us| Timed { algorithm, time_us };
            vec![of("ring", ring), of("all_pairs", pairs)]
        };
        let near = Regret::new(&case(2), 9, "all_pairs", 1.1, timed([8.0, 1.0]), Some(0));
        let far = Regret::new(&case(1 << 20), 9, "all_pairs", 31.0, timed([20.0, 30.0]), Some(0));
        Regrets { rows: vec![near, far], ..Regrets::default() }
    }

    #[test]
    fn regret_compares_times_of_algorithms_asked_for_by_name() {
        let mut all = sample();
        let [near, far] = &all.rows[..] else { panic!() };
        assert_eq!((near.best.algorithm, near.regret_percent), ("all_pairs", 0.0));
        assert_eq!((far.best.algorithm, far.chosen.time_us), ("ring", 30.0));
        assert!((far.regret_percent - 50.0).abs() < 1e-9, "{far:?}");
        all.finish();
        assert_eq!((all.median_percent, all.worst_size), (0.0, 4 << 20));
        assert!(all.summary().ends_with("median 0.0 %, worst 50.0 % at 4 MiB\n"));
    }

    #[test]
    fn rows_have_a_cell_for_each_name() {
        let all = sample();
        assert_eq!(row(&all.rows[1]).split_whitespace().count(), 12);
        assert_eq!(header().lines().next().unwrap().split_whitespace().count(), 13);
    }
}
