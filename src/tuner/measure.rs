//! Measurements of algorithms: a few calls of each that could be the best at some length, within
//! a budget of time. The planner multiplies closed-form prices by the factors found here.
//! Law: the calls made, and the factors that follow from them, depend only on facts that all ranks
//! know. Times are facts once all ranks have the slowest rank's.

use std::time::Instant;

use bytemuck::cast_slice_mut;

use super::probe::{Prober, request};
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::plan::{Candidate, Factors, Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds for all trials, and those after which no further collective or length is tried for the
/// first time. The rest is for more tries of the algorithms that are close.
const BUDGET_SECONDS: f64 = 0.15;
const SURVEY_SECONDS: f64 = 0.09;
/// Seconds to spend on one try of an algorithm at a length.
const SECONDS_PER_TRY: f64 = 0.2e-3;
/// The fewest and the most calls in one try. A single call leaves work to the next one, which
/// matters less the longer the calls are.
const CALLS_PER_TRY: [f64; 2] = [1.0, 16.0];
/// The highest price, relative to the cheapest algorithm's, of an algorithm that is tried.
const HIGHEST_PRICE_RATIO: f64 = 6.0;
/// The highest price, in seconds, of a call that is tried.
const LONGEST_CALL_SECONDS: f64 = 5e-3;
/// The longest time, relative to the fastest algorithm's, of an algorithm that is tried again.
const HIGHEST_TIME_RATIO: f64 = 3.0;
/// The most tries of an algorithm at a length; their median counts. Each pass over the list makes
/// one. A disturbance of the machine then hits one try of each algorithm instead of all tries of
/// one, and so does luck, such as that of ranks that share a CPU with the rank they wait for.
const MAX_TRIES: usize = 7;

/// The tries of an algorithm at a length.
struct Trial {
    algorithm: Algorithm,
    request: Request,
    /// The index of the length in [`Tuning::POINTS`].
    point: usize,
    /// Seconds of a call by the closed form, and as far as the factors were known.
    price: f64,
    expected: f64,
    /// Seconds of a call in each try.
    tries: Vec<f64>,
}

impl Trial {
    fn class(&self) -> usize {
        Tuning::class(self.request.collective)
    }

    /// The median; of an even number of tries the lower one, since disturbances only add time.
    fn seconds(&self) -> f64 {
        let mut tries = self.tries.clone();
        tries.sort_by(f64::total_cmp);
        tries.get(tries.len().saturating_sub(1) / 2).copied().unwrap_or(self.expected)
    }

    /// The number of calls in a try.
    fn calls(&self) -> usize {
        (SECONDS_PER_TRY / self.seconds()).clamp(CALLS_PER_TRY[0], CALLS_PER_TRY[1]) as usize
    }

    /// Seconds of a try, with the untimed call before it.
    fn seconds_of_try(&self) -> f64 {
        (self.calls() + 1) as f64 * self.seconds()
    }
}

/// The factors of closed-form prices. A class that was not tried has those of all-reduce.
fn tuning_of(trials: &[Trial]) -> Tuning {
    let mut tuning = Tuning::default();
    for class in 0..tuning.0.len() {
        let is_tried = trials.iter().any(|trial| trial.class() == class);
        tuning.0[class] = if is_tried { factors(trials, class) } else { tuning.0[0] };
    }
    tuning
}

/// The factors of a class. An algorithm that was not tried at a length gets the worst factor
/// measured there; at lengths beyond those at which it was tried, it keeps its last factor.
fn factors(trials: &[Trial], class: usize) -> Factors {
    let mut measured = [[None; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    for trial in trials.iter().filter(|trial| trial.class() == class) {
        measured[trial.algorithm as usize][trial.point] = Some(trial.seconds() / trial.price);
    }
    let mut found = [[1.0; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    for point in 0..Tuning::POINTS.len() {
        let worst = measured.iter().filter_map(|factors| factors[point]).reduce(f64::max);
        for (factors, measured) in found.iter_mut().zip(&measured) {
            let before = if point > 0 { factors[point - 1] } else { 1.0 };
            let tried_before = measured[..point].iter().any(Option::is_some);
            let guess = worst.filter(|_| !tried_before).unwrap_or(before);
            factors[point] = measured[point].unwrap_or(guess);
        }
    }
    found
}

impl Prober<'_> {
    /// Measures the algorithms that could be the best at some length. The speeds of links are known
    /// by now.
    pub(super) fn tune(&mut self) -> Result<Tuning, Halt> {
        let began = Instant::now();
        let mut memory = Vec::new();
        let (mut trials, spent) = self.survey(began, &mut memory)?;
        let again = close_trials(&trials);
        let seconds_per_pass: f64 = again.iter().map(|&at| trials[at].seconds_of_try()).sum();
        let passes = (BUDGET_SECONDS - spent) / seconds_per_pass.max(f64::MIN_POSITIVE);
        let passes = passes.clamp(0.0, (MAX_TRIES - 1) as f64) as usize;
        let mut times = Vec::with_capacity(passes * again.len());
        for _ in 0..passes {
            for &at in &again {
                times.push(self.time_trial(&trials[at], &mut memory)?);
            }
        }
        self.take_slowest(&mut times)?;
        for (&seconds, &at) in times.iter().zip(again.iter().cycle()) {
            trials[at].tries.push(seconds);
        }
        Ok(tuning_of(&trials))
    }

    /// Tries each promising algorithm once, collective by collective and length by length, until
    /// the time for that is spent; returns also the seconds spent.
    fn survey(&mut self, began: Instant, memory: &mut Vec<u8>) -> Result<(Vec<Trial>, f64), Halt> {
        let (mut trials, mut spent) = (Vec::new(), 0.0);
        for collective in Tuning::CLASSES {
            // A barrier has no length.
            let points = if collective == Collective::Barrier { 1 } else { Tuning::POINTS.len() };
            for point in 0..points {
                let mut group = self.promising_trials(collective, point);
                if spent > SURVEY_SECONDS || group.len() < 2 {
                    continue;
                }
                // A rank that returns early has left work to others, so the slowest rank's time is
                // the call's.
                let mut times = Vec::with_capacity(group.len() + 1);
                for trial in &group {
                    times.push(self.time_trial(trial, memory)?);
                }
                times.push(began.elapsed().as_secs_f64());
                self.take_slowest(&mut times)?;
                spent = times[group.len()];
                group.iter_mut().zip(times).for_each(|(trial, time)| trial.tries.push(time));
                trials.append(&mut group);
                self.engine.planner.set_tuning(tuning_of(&trials));
            }
        }
        Ok((trials, spent))
    }

    /// Replaces each number by the greatest of all ranks' numbers at its place.
    fn take_slowest(&mut self, times: &mut [f64]) -> Result<(), Halt> {
        let (collective, dtype) = (Collective::AllReduce, DataType::F64);
        let op = Some(ReduceOp::Max.into());
        let request = Request { collective, count: times.len(), dtype, op };
        let buffer = Buffer::in_place(cast_slice_mut(times));
        self.call(None, Algorithm::Binomial, &request, &buffer)
    }

    /// The algorithms that could be the best for a call of a length.
    fn promising_trials(&mut self, collective: Collective, point: usize) -> Vec<Trial> {
        let size = self.rank_info.peers.len();
        let request = if collective == Collective::Barrier {
            request(collective, 1, Some(ReduceOp::Max))
        } else {
            let bytes = Tuning::POINTS[point].div_ceil(collective.blocks(size as u32) as usize);
            let op = collective.reduces().then(|| ReduceOp::Sum.into());
            let dtype = DataType::F32;
            Request { collective, count: bytes.div_ceil(dtype.size()), dtype, op }
        };
        let planner = &mut self.engine.planner;
        planner.set_rules(Rules::default());
        let bytes = request.longest(size as u32);
        let trial = |one: Candidate| {
            let Candidate { algorithm, seconds } = one;
            let expected = seconds.filter(|&seconds| seconds > 0.0)?;
            let price = expected / planner.tuning().factor(algorithm, collective, bytes);
            Some(Trial { algorithm, request, point, price, expected, tries: Vec::new() })
        };
        let mut trials: Vec<_> = planner.candidates(&request).filter_map(trial).collect();
        let least = trials.iter().fold(f64::INFINITY, |least, trial| least.min(trial.expected));
        let most = (HIGHEST_PRICE_RATIO * least).min(LONGEST_CALL_SECONDS);
        trials.retain(|trial| trial.expected <= most);
        trials
    }

    /// Seconds of one call of a trial, as the mean of a few calls.
    fn time_trial(&mut self, trial: &Trial, memory: &mut Vec<u8>) -> Result<f64, Halt> {
        let Trial { algorithm, request, .. } = trial;
        let (size, rank) = (self.rank_info.peers.len(), self.rank_info.rank);
        let len = request.longest(size as u32);
        memory.resize(memory.len().max(len), 0);
        let memory = &mut memory[..len];
        let [input, output] = request.collective.shape(size as u32).map(|blocks| {
            let is_whole = blocks == request.collective.blocks(size as u32);
            if is_whole { 0..len } else { rank * (len / size)..(rank + 1) * (len / size) }
        });
        let mut call = |prober: &mut Self| {
            let buffer = Buffer::in_one_memory(memory, input.clone(), output.clone());
            prober.call(None, *algorithm, request, &buffer)
        };
        // An untimed call first, because the call before was another algorithm's.
        call(self)?;
        self.seconds_per_call(trial.calls(), &mut call)
    }
}

/// The trials of algorithms that are close to the fastest one of their collective and length, if
/// there are several.
fn close_trials(trials: &[Trial]) -> Vec<usize> {
    let (mut close, mut start) = (Vec::new(), 0);
    let is_same_call =
        |one: &Trial, other: &Trial| (one.class(), one.point) == (other.class(), other.point);
    for group in trials.chunk_by(is_same_call) {
        let fastest = group.iter().map(Trial::seconds).fold(f64::INFINITY, f64::min);
        let is_close = |&at: &usize| group[at].seconds() <= HIGHEST_TIME_RATIO * fastest;
        let found: Vec<_> = (0..group.len()).filter(is_close).collect();
        if found.len() > 1 {
            close.extend(found.iter().map(|at| start + at));
        }
        start += group.len();
    }
    close
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Collective, Request, Trial, Tuning, close_trials, tuning_of};
    use crate::element::DataType;

    fn trial(algorithm: Algorithm, point: usize, factor: f64) -> Trial {
        let (collective, dtype) = (Collective::AllGather, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        // One try is too fast and one too slow; the median must ignore both.
        let tries = [1e-9, 1.0].into_iter().chain([factor * 1e-6; 3]).collect();
        Trial { algorithm, request, point, price: 1e-6, expected: 1e-6, tries }
    }

    #[test]
    fn an_untried_algorithm_is_priced_as_the_worst_measured_one() {
        use Algorithm::{Bruck, RecursiveDoubling, Ring, TwoShot};
        let tried = [(Ring, 1, 2.0), (RecursiveDoubling, 0, 5.0), (TwoShot, 0, 3.0)];
        let trials = tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor));
        let tuning = tuning_of(&trials);
        let class = Tuning::class(Collective::AllGather);
        let of =
            |algorithm: Algorithm| tuning.0[class][algorithm as usize].map(|it| (it * 1e3).round());
        assert_eq!(of(Ring)[..3], [5e3, 2e3, 2e3]);
        assert_eq!(of(TwoShot)[..3], [3e3; 3]);
        assert_eq!(of(RecursiveDoubling)[..3], [5e3; 3]);
        assert_eq!(of(Bruck)[..3], [5e3, 2e3, 2e3]);
        // No other class was tried.
        assert_eq!(tuning.0[0], Tuning::default().0[0]);
    }

    #[test]
    fn algorithms_that_are_close_are_tried_again() {
        use Algorithm::{Bruck, RecursiveDoubling, Ring, TwoShot};
        let tried =
            [(Ring, 0, 2.0), (TwoShot, 0, 3.0), (Bruck, 0, 7.0), (RecursiveDoubling, 1, 1.0)];
        let trials = tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor));
        assert_eq!(close_trials(&trials), [0, 1]);
    }
}
