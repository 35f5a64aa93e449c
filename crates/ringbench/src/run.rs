//! The measuring loop, on every rank alike: warm up, check on fresh data, agree how often, time.
//! Law: every rank makes the same calls in the same order; whatever decides how many (a clock) is
//! agreed on first, through the very collectives that are measured.

mod turns;

use std::time::Instant;

use anyhow::Result;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, ReduceOp, With};

use crate::cli::{Cli, Way};
use crate::collective::{Case, Form};
use crate::device::Gpu;
use crate::expect::Oracle;
use crate::report::{Half, Line, Row};
use crate::stats::{Spread, iterations, mean};
use crate::verify::Buffers;

/// Seconds for the timed calls of each half of a row.
const BUDGET: f64 = 0.1;
/// A batch this long, in seconds, tells how long a call takes.
const TELLING: f64 = 0.004;
/// To read the clock takes about 25 ns. Calls shorter than this, in seconds, are timed a few at a
/// time, so that it stays near one percent of what is timed.
const SHORT: f64 = 2e-6;
/// Samples of a half, at most.
const MOST_SAMPLES: usize = 100_000;
/// From one checked call to the next the pattern moves by this many elements.
const SHIFT: usize = 977;
/// One rank's buffers and its place in the pattern.
pub(crate) struct Bench<'a> {
    comm: &'a mut Communicator,
    cli: &'a Cli,
    buffers: Buffers,
    shift: usize,
    /// By which calls are made, if not by the automatic choice.
    algorithm: Option<Algorithm>,
    /// Bytes written where none should be, over all ranks.
    pub(crate) out_of_bounds: u64,
}

impl<'a> Bench<'a> {
    /// Allocates for the largest size, on the device if there is one.
    pub(crate) fn new(comm: &'a mut Communicator, cli: &'a Cli, gpu: Option<&Gpu>) -> Result<Self> {
        let most = cli.sizes().last().copied().unwrap_or(0);
        let buffers = Buffers::new(comm, cli.memory, most, cli.unalign, gpu)?;
        let Way(algorithm) = cli.algorithm;
        Ok(Self { comm, cli, buffers, shift: 0, algorithm, out_of_bounds: 0 })
    }

    /// Measures every type, reduction and size; `each` sees every line, on every rank, and says
    /// whether to go on. All end where one of them does not.
    pub(crate) fn run(&mut self, mut each: impl FnMut(Line) -> bool) -> Result<()> {
        for (dtype, op) in self.cli.kinds() {
            let mut case = self.case(dtype, op);
            let oracle = Oracle::new(&case);
            for bytes in self.cli.sizes() {
                case = case.of_size(bytes);
                let on = each(match self.cli.regret {
                    true => Line::Regret(self.regret(&case, &oracle)?),
                    false => Line::Row(self.row(&case, &oracle)?),
                });
                let mut all = [u8::from(on)];
                self.comm.all_reduce(&mut all, ReduceOp::Min)?;
                if all == [0] {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn case(&self, dtype: DataType, op: ReduceOp) -> Case {
        let verb = self.cli.collective.with_root(self.cli.root);
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        Case { verb, dtype, op, count: 0, rank, ranks }
    }

    fn row(&mut self, case: &Case, oracle: &Oracle) -> Result<Row> {
        let mut iterations = 0;
        let mut half = |form| match self.buffers.has(case, form) {
            true => self.half(case, oracle, form).map(|(half, iters)| {
                iterations = iters;
                Some(half)
            }),
            false => Ok(None),
        };
        let (apart, in_place) = (half(Form::OutOfPlace)?, half(Form::InPlace)?);
        Ok(Row::new(case, iterations, apart, in_place))
    }

    fn half(&mut self, case: &Case, oracle: &Oracle, form: Form) -> Result<(Half, usize)> {
        let mut wrong = None;
        self.checked(case, oracle, form, &mut wrong)?;
        self.fill(case, oracle, form)?;
        let warmup = self.cli.warmup_iters;
        let warm = self.batch(case, form, warmup)?;
        let iters = match self.cli.iters {
            Some(iters) => iters,
            None => self.agree(case, oracle, form)?,
        };
        let own = match self.cli.refill {
            true => {
                let samples = self.refilled(case, oracle, form, iters)?;
                let mean_us = mean(&samples);
                Spread::of(samples, mean_us)
            }
            false => self.samples(case, form, iters, warm / warmup.max(1) as f64)?,
        };
        let mut all = vec![0.0; 4 * case.ranks];
        self.comm.all_gather(&own.words(), &mut all)?;
        let spread = Spread::slowest(&all);
        // On a device, calls that are waited for one by one take longer than those that are not.
        let queued = self.cli.gpu.device.is_some() && !self.cli.gpu.blocking() && !self.cli.refill;
        let time_us = match queued {
            true => self.time(case, oracle, form, iters)?,
            false => spread.mean_us,
        };
        Ok((Half::new(case, time_us, wrong, spread), iters))
    }

    fn fill(&mut self, case: &Case, oracle: &Oracle, form: Form) -> Result<()> {
        self.buffers.fill(case, oracle, form, self.shift);
        self.buffers.settle(self.comm, case, form)
    }

    /// The communicator for calls by the algorithm that is measured, and their buffers.
    fn way(&mut self) -> (With<'_>, &mut Buffers) {
        let options = CallOptions::new();
        let options = match self.algorithm {
            Some(algorithm) => options.algorithm(algorithm),
            None => options,
        };
        (self.comm.with(options), &mut self.buffers)
    }

    /// As many checked calls as asked for.
    fn checked(
        &mut self,
        case: &Case,
        oracle: &Oracle,
        form: Form,
        wrong: &mut Option<u64>,
    ) -> Result<()> {
        for _ in 0..self.cli.check {
            *wrong.get_or_insert(0) += self.check(case, oracle, form)?;
        }
        Ok(())
    }

    /// Mean time per call (us), of the slowest rank.
    fn time(&mut self, case: &Case, oracle: &Oracle, form: Form, calls: usize) -> Result<f64> {
        self.slowest(|bench| match bench.cli.refill {
            true => Ok(mean(&bench.refilled(case, oracle, form, calls)?)),
            false => Ok(bench.batch(case, form, calls)? / calls as f64 * 1e6),
        })
    }

    /// One call on fresh data. Wrong elements, over all ranks.
    fn check(&mut self, case: &Case, oracle: &Oracle, form: Form) -> Result<u64> {
        self.shift += SHIFT;
        self.buffers.prepare(case, oracle, form, self.shift);
        self.buffers.settle(self.comm, case, form)?;
        let (mut comm, buffers) = self.way();
        buffers.call(&mut comm, case, form)?;
        drop(comm);
        self.done()?;
        self.buffers.fetch(case, form)?;
        let mine = self.buffers.judge(case, oracle, form, self.shift);
        let mut all = [mine.wrong, mine.stray];
        self.comm.all_reduce(&mut all, ReduceOp::Sum)?;
        // A library that loses elements may lose these counts as well: never below our own.
        self.out_of_bounds += all[1].max(mine.stray);
        Ok(all[0].max(mine.wrong))
    }

    /// How many calls fill the budget: the same on every rank.
    fn agree(&mut self, case: &Case, oracle: &Oracle, form: Form) -> Result<usize> {
        let mut calls = 1;
        loop {
            let seconds = self.slowest(|bench| match bench.cli.refill {
                true => {
                    let start = Instant::now();
                    bench.refilled(case, oracle, form, calls)?;
                    Ok(start.elapsed().as_secs_f64())
                }
                false => bench.batch(case, form, calls),
            })?;
            if seconds > TELLING || calls > 1 << 20 {
                return Ok(iterations(BUDGET, seconds / calls as f64));
            }
            calls *= 4;
        }
    }

    /// Seconds for `calls` calls back to back. The buffers are used again and again: what an
    /// in-place sum or product leaves in them grows, up to infinity, as it does in nccl-tests.
    /// That costs no time: all values are whole numbers at first, so that subnormals, the one
    /// kind of float that is slow to add, never come of them.
    fn batch(&mut self, case: &Case, form: Form, calls: usize) -> Result<f64> {
        self.comm.barrier()?;
        let blocking = self.cli.gpu.blocking();
        let (mut comm, buffers) = self.way();
        let start = Instant::now();
        for _ in 0..calls {
            buffers.call(&mut comm, case, form)?;
            if blocking {
                buffers.wait()?;
            }
        }
        buffers.wait()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(comm);
        self.done()?;
        Ok(seconds)
    }

    /// Until the calls so far are done. Did they all do well?
    fn done(&mut self) -> Result<()> {
        self.buffers.wait()?;
        self.buffers.checked(self.comm)
    }

    /// Calls back to back, with the clock read after each, or after a few if a call takes `about`
    /// so few seconds that reading it would show.
    fn samples(&mut self, case: &Case, form: Form, calls: usize, about: f64) -> Result<Spread> {
        let at_once = if about > 0.0 { (SHORT / about) as usize } else { 1 };
        let at_once = at_once.max(calls.div_ceil(MOST_SAMPLES)).clamp(1, calls);
        let mut samples = Vec::with_capacity(calls.div_ceil(at_once));
        self.comm.barrier()?;
        let (mut comm, buffers) = self.way();
        let start = Instant::now();
        let (mut last, mut left) = (start, calls);
        while left > 0 {
            let some = at_once.min(left);
            for _ in 0..some {
                buffers.call(&mut comm, case, form)?;
                buffers.wait()?;
            }
            let now = Instant::now();
            samples.push((now - last).as_secs_f64() * 1e6 / some as f64);
            (last, left) = (now, left - some);
        }
        drop(comm);
        self.done()?;
        let mean_us = (last - start).as_secs_f64() * 1e6 / calls as f64;
        Ok(Spread::of(samples, mean_us))
    }

    /// Each call timed by itself (us), after its rank has written its whole input anew.
    fn refilled(
        &mut self,
        case: &Case,
        oracle: &Oracle,
        form: Form,
        calls: usize,
    ) -> Result<Vec<f64>> {
        let mut samples = Vec::with_capacity(calls);
        for _ in 0..calls {
            self.fill(case, oracle, form)?;
            self.comm.barrier()?;
            let (mut comm, buffers) = self.way();
            let start = Instant::now();
            buffers.call(&mut comm, case, form)?;
            buffers.wait()?;
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        self.done()?;
        Ok(samples)
    }

    /// The largest of what every rank measures.
    fn slowest(&mut self, measure: impl FnOnce(&mut Self) -> Result<f64>) -> Result<f64> {
        let mut value = [measure(self)?];
        self.comm.all_reduce(&mut value, ReduceOp::Max)?;
        Ok(value[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::thread;

    /// Runs `body` on two ranks, each with a bench of `line`, a case of 64 elements and its oracle.
    fn on_two_ranks(line: &str, body: impl Fn(&mut Bench<'_>, &Case, &Oracle) + Sync) {
        let words = format!("ringbench all_reduce -b 256 -e 256 -w 1 {line}");
        let cli = Cli::parse_from(words.split_whitespace());
        let (cli, body) = (&cli, &body);
        thread::scope(|scope| {
            for mut comm in Communicator::local(2).unwrap() {
                scope.spawn(move || {
                    let mut bench = Bench::new(&mut comm, cli, None).unwrap();
                    let case = bench.case(DataType::F32, ReduceOp::Sum).of_size(256);
                    body(&mut bench, &case, &Oracle::new(&case));
                });
            }
        });
    }

    /// Is the buffer what one call makes of fresh input? A call on old input leaves larger sums.
    fn fresh(bench: &Bench<'_>, case: &Case, oracle: &Oracle) -> bool {
        bench.buffers.judge(case, oracle, Form::InPlace, bench.shift).wrong == 0
    }

    #[test]
    fn refilled_calls_see_fresh_data() {
        on_two_ranks("--refill -n 3", |bench, case, oracle| {
            bench.batch(case, Form::InPlace, 3).unwrap();
            assert!(!fresh(bench, case, oracle));
            for calls in 1..4 {
                bench.refilled(case, oracle, Form::InPlace, calls).unwrap();
                assert!(fresh(bench, case, oracle), "{calls}");
            }
        });
    }

    #[test]
    fn buffers_are_refilled_only_if_asked() {
        for (line, refilled) in [("-n 3 --refill", true), ("-n 3", false), ("--refill", true)] {
            on_two_ranks(line, |bench, case, oracle| {
                bench.half(case, oracle, Form::InPlace).unwrap();
                assert_eq!(fresh(bench, case, oracle), refilled, "{line}");
            });
        }
    }

    #[test]
    fn no_call_is_shorter_than_the_least_and_none_is_left_out() {
        for line in ["-n 3", "-n 1000", "", "-n 5 --refill", "-n 7 -w 0"] {
            on_two_ranks(line, |bench, case, oracle| {
                let (half, iters) = bench.half(case, oracle, Form::InPlace).unwrap();
                let Spread { min_us, p50_us, mean_us, p99_us } = half.spread;
                assert!(min_us <= p50_us && p50_us <= p99_us, "{line}: {half:?}");
                assert!(min_us <= mean_us && half.time_us == mean_us, "{line}: {half:?}");
                assert!(bench.cli.iters.is_none_or(|given| given == iters));
            });
        }
    }

    #[test]
    fn wrong_results_are_counted_over_all_ranks() {
        on_two_ranks("-n 1", |bench, case, _| {
            // What three ranks would get is wrong for two.
            let oracle = Oracle::new(&Case { ranks: 3, ..*case });
            let (half, _) = bench.half(case, &oracle, Form::OutOfPlace).unwrap();
            assert!(half.wrong > Some(64), "{half:?}");
        });
    }
}
