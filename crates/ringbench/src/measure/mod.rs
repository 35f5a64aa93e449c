//! The measuring loop of every rank: check on fresh data, warm up, agree on a number of calls, time
//! them. Law: every rank makes the same calls in the same order; a number that depends on a clock
//! is agreed on by all ranks.

pub(crate) mod buffer;
pub(crate) mod case;
mod check;
mod interleaved;
pub(crate) mod network;
mod oracle;
pub(crate) mod stats;

use std::time::Instant;

use anyhow::Result;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, ReduceOp, With};

use crate::cli::{AlgorithmChoice, Cli, Memory};
use crate::device::Gpu;
use crate::measure::case::{Case, Placement};
use crate::measure::check::Buffers;
use crate::measure::network::{Counted, Hosts};
use crate::measure::oracle::Oracle;
use crate::measure::stats::{Spread, iterations, mean};
use crate::report::{Figures, Line, Row, RowCall};

/// Seconds for the timed calls of each half of a row.
const BUDGET_SECONDS: f64 = 0.1;
/// Seconds of a batch that is long enough to estimate the time of a call.
const MIN_BATCH_SECONDS: f64 = 0.004;
/// Calls shorter than this, in seconds, are timed a few at a time, so that reading the clock, about
/// 25 ns, is near one percent of the time.
const SHORT_CALL_SECONDS: f64 = 2e-6;
/// The most samples of one placement.
const MAX_SAMPLES: usize = 100_000;
/// Elements by which the pattern moves from one checked call to the next.
const PATTERN_SHIFT: usize = 977;

pub(crate) struct Bench<'a> {
    comm: &'a mut Communicator,
    cli: &'a Cli,
    buffers: Buffers,
    shift: usize,
    /// None for the library's own choice.
    algorithm: Option<Algorithm>,
    /// None if all ranks are on one host, or the buffers on devices.
    hosts: Option<Hosts>,
    /// The bytes that this host sent in the timed calls of the latest figures.
    counted: Option<Counted>,
    /// Bytes written out of bounds, over all ranks.
    pub(crate) out_of_bounds: u64,
}

impl<'a> Bench<'a> {
    /// Allocates for the largest size, on the device if there is one.
    pub(crate) fn new(comm: &'a mut Communicator, cli: &'a Cli, gpu: Option<&Gpu>) -> Result<Self> {
        let most = cli.sizes().last().copied().unwrap_or(0);
        let buffers = Buffers::new(comm, cli.memory, most, cli.unalign, gpu)?;
        let AlgorithmChoice(algorithm) = cli.algorithm;
        let hosts = Hosts::of(comm).filter(|_| gpu.is_none());
        let (shift, counted, out_of_bounds) = (0, None, 0);
        Ok(Self { comm, cli, buffers, shift, algorithm, hosts, counted, out_of_bounds })
    }

    /// Measures every type, reduction and size. `each` gets every line, on every rank; all ranks
    /// stop once it is false on one of them.
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
        Case { verb, dtype, op, count: 0, rank, ranks, placement: Placement::InPlace }
    }

    fn row(&mut self, case: &Case, oracle: &Oracle) -> Result<Row> {
        let mut iterations = 0;
        let mut figures = |placement| {
            let case = Case { placement, ..*case };
            if !self.buffers.support(&case) {
                return Ok(None);
            }
            let (figures, iters) = self.figures(&case, oracle)?;
            iterations = iters;
            anyhow::Ok(Some(figures))
        };
        let out_of_place = figures(Placement::OutOfPlace)?;
        let in_place = figures(Placement::InPlace)?;
        let (call, predicted_us) = (RowCall::new(case, iterations), self.predicted_us(case));
        let network = self.network(case, iterations)?;
        Ok(Row { call, predicted_us, limit_us: None, network, out_of_place, in_place })
    }

    /// The time that the library's planner predicts for a call; none for messages between two
    /// ranks, and for registered and device memory, of which it has no prices.
    fn predicted_us(&mut self, case: &Case) -> Option<f64> {
        let request = case.request()?;
        if self.cli.memory != Memory::Plain || self.cli.gpu.device.is_some() {
            return None;
        }
        let (mut comm, _) = self.with_algorithm();
        let explained = comm.explain(request.collective, request.count, request.dtype).ok()?;
        explained.seconds.map(|seconds| seconds * 1e6)
    }

    /// The figures of one placement, and the number of timed calls.
    fn figures(&mut self, case: &Case, oracle: &Oracle) -> Result<(Figures, usize)> {
        let mut wrong = None;
        self.checked(case, oracle, &mut wrong)?;
        self.fill(case, oracle)?;
        let warmup = self.cli.warmup_iters;
        let warm = self.batch(case, warmup)?;
        let iters = match self.cli.iters {
            Some(iters) => iters,
            None => self.agree(case, oracle)?,
        };
        let own = self.counting(|bench| match bench.cli.refill {
            true => {
                let samples = bench.refilled(case, oracle, iters)?;
                let mean_us = mean(&samples);
                Ok(Spread::of(samples, mean_us))
            }
            false => bench.samples(case, iters, warm / warmup.max(1) as f64),
        })?;
        let mut all = vec![0.0; 4 * case.ranks];
        self.comm.all_gather(&own.to_array(), &mut all)?;
        let spread = Spread::slowest(&all);
        // On a device, calls that are queued take less time than calls waited for one by one.
        let queued = self.cli.gpu.device.is_some() && !self.cli.gpu.blocking() && !self.cli.refill;
        let time_us = match queued {
            true => self.time(case, oracle, iters)?,
            false => spread.mean_us,
        };
        Ok((Figures::new(case, time_us, wrong, spread), iters))
    }

    fn fill(&mut self, case: &Case, oracle: &Oracle) -> Result<()> {
        self.buffers.fill(case, oracle, self.shift);
        self.buffers.upload(self.comm, case)
    }

    /// The communicator with the algorithm that is measured, and the buffers.
    fn with_algorithm(&mut self) -> (With<'_>, &mut Buffers) {
        let options = CallOptions::new();
        let options = match self.algorithm {
            Some(algorithm) => options.algorithm(algorithm),
            None => options,
        };
        (self.comm.with(options), &mut self.buffers)
    }

    /// Makes the checked calls, and adds the number of wrong elements to `wrong`.
    fn checked(&mut self, case: &Case, oracle: &Oracle, wrong: &mut Option<u64>) -> Result<()> {
        for _ in 0..self.cli.check {
            *wrong.get_or_insert(0) += self.check(case, oracle)?;
        }
        Ok(())
    }

    /// Mean microseconds per call of the slowest rank.
    fn time(&mut self, case: &Case, oracle: &Oracle, calls: usize) -> Result<f64> {
        self.slowest(|bench| match bench.cli.refill {
            true => Ok(mean(&bench.refilled(case, oracle, calls)?)),
            false => Ok(bench.batch(case, calls)? / calls as f64 * 1e6),
        })
    }

    /// One call on fresh data. Gives the number of wrong elements over all ranks.
    fn check(&mut self, case: &Case, oracle: &Oracle) -> Result<u64> {
        self.shift += PATTERN_SHIFT;
        self.buffers.prepare(case, oracle, self.shift);
        self.buffers.upload(self.comm, case)?;
        let (mut comm, buffers) = self.with_algorithm();
        buffers.call(&mut comm, case)?;
        drop(comm);
        self.finish_calls()?;
        self.buffers.download(case)?;
        let mine = self.buffers.errors(case, oracle, self.shift);
        let mut all = [mine.wrong, mine.out_of_bounds];
        self.comm.all_reduce(&mut all, ReduceOp::Sum)?;
        // A library that loses elements may lose these counts too, but not this rank's own.
        self.out_of_bounds += all[1].max(mine.out_of_bounds);
        Ok(all[0].max(mine.wrong))
    }

    /// The number of calls that fill the budget, the same on every rank.
    fn agree(&mut self, case: &Case, oracle: &Oracle) -> Result<usize> {
        let mut calls = 1;
        loop {
            let seconds = self.slowest(|bench| match bench.cli.refill {
                true => {
                    let start = Instant::now();
                    bench.refilled(case, oracle, calls)?;
                    Ok(start.elapsed().as_secs_f64())
                }
                false => bench.batch(case, calls),
            })?;
            if seconds > MIN_BATCH_SECONDS || calls > 1 << 20 {
                return Ok(iterations(BUDGET_SECONDS, seconds / calls as f64));
            }
            calls *= 4;
        }
    }

    /// Seconds for `calls` calls back to back. The buffers are reused, so that sums and products in
    /// place grow up to infinity, as in nccl-tests. Whole numbers never become subnormal, the one
    /// kind of float that is slow to add, so that this costs no time.
    fn batch(&mut self, case: &Case, calls: usize) -> Result<f64> {
        self.comm.barrier()?;
        let blocking = self.cli.gpu.blocking();
        let (mut comm, buffers) = self.with_algorithm();
        let start = Instant::now();
        for _ in 0..calls {
            buffers.call(&mut comm, case)?;
            if blocking {
                buffers.wait()?;
            }
        }
        buffers.wait()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(comm);
        self.finish_calls()?;
        Ok(seconds)
    }

    /// Waits for the calls so far, and reports their errors.
    fn finish_calls(&mut self) -> Result<()> {
        self.buffers.wait()?;
        self.buffers.checked(self.comm)
    }

    /// Times calls back to back, each of them, or a few at once if a call takes less than
    /// [`SHORT_CALL_SECONDS`]; `about` is the estimate.
    fn samples(&mut self, case: &Case, calls: usize, about: f64) -> Result<Spread> {
        let at_once = if about > 0.0 { (SHORT_CALL_SECONDS / about) as usize } else { 1 };
        let at_once = at_once.max(calls.div_ceil(MAX_SAMPLES)).clamp(1, calls);
        let mut samples = Vec::with_capacity(calls.div_ceil(at_once));
        self.comm.barrier()?;
        let (mut comm, buffers) = self.with_algorithm();
        let start = Instant::now();
        let (mut last, mut left) = (start, calls);
        while left > 0 {
            let some = at_once.min(left);
            for _ in 0..some {
                buffers.call(&mut comm, case)?;
                buffers.wait()?;
            }
            let now = Instant::now();
            samples.push((now - last).as_secs_f64() * 1e6 / some as f64);
            (last, left) = (now, left - some);
        }
        drop(comm);
        self.finish_calls()?;
        let mean_us = (last - start).as_secs_f64() * 1e6 / calls as f64;
        Ok(Spread::of(samples, mean_us))
    }

    /// Microseconds of each call, before which its rank has rewritten its whole input.
    fn refilled(&mut self, case: &Case, oracle: &Oracle, calls: usize) -> Result<Vec<f64>> {
        let mut samples = Vec::with_capacity(calls);
        for _ in 0..calls {
            self.fill(case, oracle)?;
            self.comm.barrier()?;
            let (mut comm, buffers) = self.with_algorithm();
            let start = Instant::now();
            buffers.call(&mut comm, case)?;
            buffers.wait()?;
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        self.finish_calls()?;
        Ok(samples)
    }

    /// The largest measurement of all ranks.
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

    /// True if the buffer is the result of one call on fresh input. A second call gives larger
    /// sums.
    fn is_fresh(bench: &Bench<'_>, case: &Case, oracle: &Oracle) -> bool {
        bench.buffers.errors(case, oracle, bench.shift).wrong == 0
    }

    #[test]
    fn refilled_calls_see_fresh_data() {
        on_two_ranks("--refill -n 3", |bench, case, oracle| {
            bench.batch(case, 3).unwrap();
            assert!(!is_fresh(bench, case, oracle));
            for calls in 1..4 {
                bench.refilled(case, oracle, calls).unwrap();
                assert!(is_fresh(bench, case, oracle), "{calls}");
            }
        });
    }

    #[test]
    fn buffers_are_refilled_only_if_asked() {
        for (line, refilled) in [("-n 3 --refill", true), ("-n 3", false), ("--refill", true)] {
            on_two_ranks(line, |bench, case, oracle| {
                bench.figures(case, oracle).unwrap();
                assert_eq!(is_fresh(bench, case, oracle), refilled, "{line}");
            });
        }
    }

    #[test]
    fn figures_are_ordered_and_over_all_calls() {
        for line in ["-n 3", "-n 1000", "", "-n 5 --refill", "-n 7 -w 0"] {
            on_two_ranks(line, |bench, case, oracle| {
                let (half, iters) = bench.figures(case, oracle).unwrap();
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
            // The result over three ranks is wrong for two.
            let oracle = Oracle::new(&Case { ranks: 3, ..*case });
            let case = Case { placement: Placement::OutOfPlace, ..*case };
            let (half, _) = bench.figures(&case, &oracle).unwrap();
            assert!(half.wrong > Some(64), "{half:?}");
        });
    }
}
