//! Trials of algorithms, and the factors of closed-form prices that follow from them.

use crate::plan::{Factors, Request, Tuning};
use crate::schedule::Algorithm;

/// Seconds to spend on one try of an algorithm at a length.
const SECONDS_PER_TRY: f64 = 0.2e-3;
/// The fewest and the most calls in one try. A single call leaves work to the next one, which
/// matters less the longer the calls are.
const CALLS_PER_TRY: [f64; 2] = [1.0, 16.0];
/// The highest price, in seconds, of a call that is tried, in the region of a host and over links.
/// The shortest call in shared memory is tried at any price.
pub(super) const LONGEST_CALL_SECONDS: [f64; 2] = [5e-3, 20e-3];

/// The tries of an algorithm at a length.
pub(super) struct Trial {
    pub(super) algorithm: Algorithm,
    pub(super) request: Request,
    /// The index of the length in [`Tuning::POINTS`].
    pub(super) point: usize,
    /// Seconds of a call by the closed form, and as far as the factors were known.
    pub(super) price: f64,
    pub(super) expected: f64,
    /// Seconds of a call in each try.
    pub(super) tries: Vec<f64>,
}

impl Trial {
    pub(super) fn class(&self) -> usize {
        Tuning::class(self.request.collective)
    }

    /// The median; of an even number of tries the lower one, since disturbances only add time.
    pub(super) fn seconds(&self) -> f64 {
        let mut tries = self.tries.clone();
        tries.sort_by(f64::total_cmp);
        tries.get(tries.len().saturating_sub(1) / 2).copied().unwrap_or(self.expected)
    }

    /// The number of calls in a try.
    pub(super) fn calls(&self) -> usize {
        (SECONDS_PER_TRY / self.seconds()).clamp(CALLS_PER_TRY[0], CALLS_PER_TRY[1]) as usize
    }

    /// Seconds of a try, with the untimed call before it.
    pub(super) fn seconds_of_try(&self) -> f64 {
        (self.calls() + 1) as f64 * self.seconds()
    }
}

/// The factors of closed-form prices. A class that was not tried has those of all-reduce.
pub(super) fn tuning_of(trials: &[Trial]) -> Tuning {
    let mut tuning = Tuning::default();
    for class in 0..tuning.0.len() {
        let is_tried = trials.iter().any(|trial| trial.class() == class);
        tuning.0[class] = if is_tried { factors(trials, class) } else { tuning.0[0] };
    }
    tuning
}

/// The factors of a class. An algorithm that was not tried at a length gets the worst factor
/// measured there, if there is one of an algorithm that goes the same way, through shared memory or
/// over links: where the forms say too much of shared memory, links are no cheaper for that. At
/// lengths beyond those at which it was tried, it keeps its last factor, but after a call too long
/// for more trials one of at least 1, so that it is no cheaper than its form.
fn factors(trials: &[Trial], class: usize) -> Factors {
    let mut measured = [[None; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    let mut too_long_from = [Tuning::POINTS.len(); Algorithm::ALL.len()];
    for trial in trials.iter().filter(|trial| trial.class() == class) {
        let at = trial.algorithm as usize;
        measured[at][trial.point] = Some(trial.seconds() / trial.price);
        if trial.seconds() > LONGEST_CALL_SECONDS[0] {
            too_long_from[at] = too_long_from[at].min(trial.point);
        }
    }
    let mut found = [[1.0; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    for point in 0..Tuning::POINTS.len() {
        let worst_of = |is_like: &dyn Fn(Algorithm) -> bool| {
            let like = Algorithm::ALL.into_iter().filter(|&one| is_like(one));
            like.filter_map(|one| measured[one as usize][point]).reduce(f64::max)
        };
        let worst_of_all = worst_of(&|_| true).map(|worst| worst.max(1.0));
        let [over_links, in_memory] = [false, true]
            .map(|shared| worst_of(&|one| one.is_in_shared_memory() == shared).or(worst_of_all));
        for algorithm in Algorithm::ALL {
            let at = algorithm as usize;
            let before = if point > 0 { found[at][point - 1] } else { 1.0 };
            let tried_before = measured[at][..point].iter().any(Option::is_some);
            let worst = if algorithm.is_in_shared_memory() { in_memory } else { over_links };
            let least = if point > too_long_from[at] { 1.0 } else { 0.0 };
            let guess = worst.filter(|_| !tried_before).unwrap_or(before).max(least);
            found[at][point] = measured[at][point].unwrap_or(guess);
        }
    }
    slow_down_beyond_caches(&mut found, &measured);
    found
}

/// Lets all algorithms slow down at the longest length, beyond the caches, as the only one that was
/// tried there. If none was, a factor that was measured inside the caches favours no algorithm over
/// the ring.
fn slow_down_beyond_caches(
    found: &mut Factors,
    measured: &[[Option<f64>; Tuning::POINTS.len()]; Algorithm::ALL.len()],
) {
    let longest = Tuning::POINTS.len() - 1;
    let tried = (0..found.len()).find(|&algorithm| measured[algorithm][longest].is_some());
    if let Some(tried) = tried {
        let growth = found[tried][longest] / found[tried][longest - 1];
        found.iter_mut().for_each(|factors| factors[longest] = factors[longest - 1] * growth);
    } else {
        let ring = found[Algorithm::Ring as usize][longest];
        found.iter_mut().for_each(|factors| factors[longest] = factors[longest].max(ring));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Algorithm, Request, Trial, Tuning, tuning_of};
    use crate::element::DataType;
    use crate::schedule::Collective;

    pub(in crate::tuner) fn trial(algorithm: Algorithm, point: usize, factor: f64) -> Trial {
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
        let of = |algorithm: Algorithm| {
            tuning.0[class][algorithm as usize].map(|factor| (factor * 1e3).round())
        };
        assert_eq!(of(Ring)[..3], [5e3, 2e3, 2e3]);
        assert_eq!(of(TwoShot)[..3], [3e3; 3]);
        assert_eq!(of(RecursiveDoubling)[..3], [5e3; 3]);
        assert_eq!(of(Bruck)[..3], [5e3, 2e3, 2e3]);
        // No other class was tried, and none at the longest length.
        assert_eq!(tuning.0[0], Tuning::default().0[0]);
    }

    #[test]
    fn all_algorithms_slow_down_beyond_the_caches_as_the_one_that_was_tried() {
        use Algorithm::{Ring, Staged, TwoShot};
        let longest = Tuning::POINTS.len() - 1;
        let tried = [(Ring, longest - 1, 2.0), (Staged, longest - 1, 1.0), (Staged, longest, 1.5)];
        let tuning =
            tuning_of(&tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor)));
        let class = Tuning::class(Collective::AllGather);
        for (algorithm, factor) in [(Ring, 3.0), (Staged, 1.5), (TwoShot, 3.0)] {
            let found = tuning.0[class][algorithm as usize][longest];
            assert!((found - factor).abs() < 1e-9, "{algorithm} {found}");
        }
    }

    #[test]
    fn links_are_no_cheaper_than_their_form_where_shared_memory_is() {
        for (factor, expected) in [(0.01, 1.0), (20.0, 20.0)] {
            let tuning = tuning_of(&[trial(Algorithm::Staged, 0, factor)]);
            let factors = tuning.0[Tuning::class(Collective::AllGather)];
            let of = |algorithm: Algorithm| (factors[algorithm as usize][0] * 1e3).round() / 1e3;
            assert_eq!([of(Algorithm::Staged), of(Algorithm::Direct)], [factor; 2]);
            assert_eq!(of(Algorithm::Bruck), expected);
        }
    }

    #[test]
    fn a_call_too_long_for_more_trials_says_nothing_of_longer_ones() {
        let slow = Trial { price: 1.0, tries: vec![0.01], ..trial(Algorithm::Staged, 0, 1.0) };
        let tuning = tuning_of(&[slow, trial(Algorithm::Direct, 0, 0.5)]);
        let factors = tuning.0[Tuning::class(Collective::AllGather)];
        assert_eq!(factors[Algorithm::Staged as usize][..2], [0.01, 1.0]);
        assert_eq!(factors[Algorithm::Direct as usize][..2], [0.5; 2]);
    }
}
