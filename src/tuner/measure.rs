//! Measurements of algorithms: a few calls of each that could be the best at some length, up to
//! some tenths of a second in all. The planner multiplies closed-form prices by the factors found
//! here.
//! Law: the calls made, and the factors that follow from them, depend only on facts that all ranks
//! know.

use bytemuck::cast_slice_mut;

use super::probe::Prober;
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::plan::{Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds to spend on one try of an algorithm at a length.
const SECONDS_PER_TRY: f64 = 0.25e-3;
/// The fewest and the most calls in one try. A single call would leave work to the next one.
const CALLS_PER_TRY: [f64; 2] = [3.0, 16.0];
/// The highest price, relative to the cheapest algorithm's, of an algorithm that is tried.
const HIGHEST_PRICE_RATIO: f64 = 6.0;
/// The highest price, in seconds, of a call that is tried.
const LONGEST_CALL_SECONDS: f64 = 2e-3;
/// Passes over the whole list; the median of a trial's times counts. A disturbance of the machine
/// then hits one try of each algorithm instead of all tries of one, and so does luck, such as that
/// of ranks that share a CPU with the rank they wait for.
const TRIES_PER_TRIAL: usize = 5;

/// The tries of an algorithm at a length.
struct Trial {
    algorithm: Algorithm,
    request: Request,
    /// The index of the length in [`Tuning::POINTS`].
    point: usize,
    /// Seconds of a call by the closed form.
    price: f64,
    /// Seconds of a call in each try.
    tries: [f64; TRIES_PER_TRIAL],
}

/// The factors of closed-form prices. An algorithm that was not tried at a length gets the worst
/// factor measured there; at lengths beyond those at which it was tried, it keeps its last factor.
fn factors(trials: Vec<Trial>) -> Tuning {
    let mut measured = [[None; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    for Trial { algorithm, point, price, mut tries, .. } in trials {
        tries.sort_by(f64::total_cmp);
        measured[algorithm as usize][point] = Some(tries[TRIES_PER_TRIAL / 2] / price);
    }
    let mut tuning = Tuning::default();
    for point in 0..Tuning::POINTS.len() {
        let worst = measured.iter().filter_map(|factors| factors[point]).reduce(f64::max);
        for (factors, measured) in tuning.0.iter_mut().zip(&measured) {
            let before = if point > 0 { factors[point - 1] } else { 1.0 };
            let tried_before = measured[..point].iter().any(Option::is_some);
            let guess = worst.filter(|_| !tried_before).unwrap_or(before);
            factors[point] = measured[point].unwrap_or(guess);
        }
    }
    // Dissemination makes barriers only, which cost as much as those of recursive doubling.
    let [barrier, like] = [Algorithm::Dissemination, Algorithm::RecursiveDoubling];
    tuning.0[barrier as usize] = tuning.0[like as usize];
    tuning
}

impl Prober<'_> {
    /// Measures all algorithms that could be the best at some length. The speeds of links are known
    /// by now.
    pub(super) fn tune(&mut self) -> Result<Tuning, Halt> {
        self.engine.planner.set_rules(Rules::default());
        let mut trials = self.trials();
        let size = self.rank_info.peers.len() as u32;
        let longest = trials.iter().map(|trial| trial.request.longest(size)).max();
        let mut memory = vec![0; longest.unwrap_or(0)];
        for pass in 0..TRIES_PER_TRIAL {
            for trial in &mut trials {
                trial.tries[pass] = self.time_trial(trial, &mut memory)?;
            }
        }
        // A rank that returns early has left work to others, so the slowest rank's time is the
        // call's.
        let mut tries: Vec<f64> = trials.iter().flat_map(|trial| trial.tries).collect();
        let (collective, dtype) = (Collective::AllReduce, DataType::F64);
        let op = Some(ReduceOp::Max.into());
        let slowest = Request { collective, count: tries.len(), dtype, op };
        let buffer = Buffer::in_place(cast_slice_mut(&mut tries));
        self.call(None, Algorithm::Ring, &slowest, &buffer)?;
        for (trial, slowest) in trials.iter_mut().zip(tries.chunks_exact(TRIES_PER_TRIAL)) {
            trial.tries.copy_from_slice(slowest);
        }
        Ok(factors(trials))
    }

    /// The trials that could find the best algorithm, by length.
    fn trials(&self) -> Vec<Trial> {
        let ring = self.engine.planner.ring();
        let mut trials = Vec::new();
        for (point, bytes) in Tuning::POINTS.into_iter().enumerate() {
            for collective in [Collective::AllReduce, Collective::AllGather] {
                let request = self.request(collective, bytes);
                let is_tried = |algorithm: Algorithm| {
                    collective == Collective::AllGather
                        && algorithm.makes(Collective::AllReduce, ring)
                };
                let promising = self.promising_algorithms(&request).into_iter();
                trials.extend(promising.filter(|&(algorithm, _)| !is_tried(algorithm)).map(
                    |(algorithm, price)| Trial {
                        algorithm,
                        request,
                        point,
                        price,
                        tries: [0.0; TRIES_PER_TRIAL],
                    },
                ));
            }
        }
        trials
    }

    /// A call on `bytes` bytes in all.
    fn request(&self, collective: Collective, bytes: usize) -> Request {
        let (size, dtype) = (self.rank_info.peers.len(), DataType::F32);
        let (bytes, op) = match collective {
            Collective::AllReduce => (bytes, Some(ReduceOp::Sum.into())),
            _ => (bytes.div_ceil(size), None),
        };
        Request { collective, count: bytes.div_ceil(dtype.size()), dtype, op }
    }

    /// The algorithms that could be the best for a call, with their closed-form prices.
    fn promising_algorithms(&self, request: &Request) -> Vec<(Algorithm, f64)> {
        let candidates = self.engine.planner.candidates(request);
        let priced = candidates.filter_map(|one| Some((one.algorithm, one.seconds?)));
        let mut priced: Vec<_> = priced.filter(|&(_, price)| price > 0.0).collect();
        let least = priced.iter().fold(f64::INFINITY, |least, &(_, price)| least.min(price));
        let most = (HIGHEST_PRICE_RATIO * least).min(LONGEST_CALL_SECONDS);
        priced.retain(|&(_, price)| price <= most);
        priced
    }

    /// Seconds of one call of a trial, as the mean of a few calls.
    fn time_trial(&mut self, trial: &Trial, memory: &mut [u8]) -> Result<f64, Halt> {
        let Trial { algorithm, request, price, .. } = trial;
        let size = self.rank_info.peers.len();
        let len = request.longest(size as u32);
        let memory = &mut memory[..len];
        let part = if request.op.is_some() { len } else { len / size };
        let mine = if request.op.is_some() { 0 } else { self.rank_info.rank * part };
        let calls = (SECONDS_PER_TRY / price).clamp(CALLS_PER_TRY[0], CALLS_PER_TRY[1]) as usize;
        let mut call = |prober: &mut Self| {
            let buffer = Buffer::in_one_memory(memory, mine..mine + part, 0..len);
            prober.call(None, *algorithm, request, &buffer)
        };
        // An untimed call first, because the call before was another algorithm's.
        call(self)?;
        self.seconds_per_call(calls, &mut call)
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Collective, Request, TRIES_PER_TRIAL, Trial, factors};
    use crate::element::DataType;

    fn trial(algorithm: Algorithm, point: usize, factor: f64) -> Trial {
        let (collective, dtype) = (Collective::AllGather, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let mut tries = [factor * 1e-6; TRIES_PER_TRIAL];
        // One try is too fast and one too slow; the median must ignore both.
        (tries[0], tries[1]) = (1e-9, 1.0);
        Trial { algorithm, request, point, price: 1e-6, tries }
    }

    #[test]
    fn an_untried_algorithm_is_priced_as_the_worst_measured_one() {
        use Algorithm::{Bruck, Dissemination, RecursiveDoubling, Ring, TwoShot};
        let tried = [(Ring, 1, 2.0), (RecursiveDoubling, 0, 5.0), (TwoShot, 0, 3.0)];
        let trials = tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor));
        let tuning = factors(trials.into());
        let of = |algorithm: Algorithm| tuning.0[algorithm as usize].map(|it| (it * 1e3).round());
        assert_eq!(of(Ring)[..3], [5e3, 2e3, 2e3]);
        assert_eq!(of(TwoShot)[..3], [3e3; 3]);
        assert_eq!(of(RecursiveDoubling)[..3], [5e3; 3]);
        assert_eq!(of(Dissemination), of(RecursiveDoubling));
        assert_eq!(of(Bruck)[..3], [5e3, 2e3, 2e3]);
    }
}
