//! Trials of algorithms, and the factors of closed-form prices that follow from them.

use super::cable::{CableBytes, CableRate};
use crate::plan::{Factors, Planner, Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds to spend on one try of an algorithm at a length.
const SECONDS_PER_TRY: f64 = 0.2e-3;
/// The fewest and the most calls in one try. A single call leaves work to the next one, which
/// matters less the longer the calls are.
const CALLS_PER_TRY: [f64; 2] = [1.0, 16.0];
/// The highest price, in seconds, of a call that is tried, in the region of a host and over links.
/// The shortest call in shared memory is tried at any price.
pub(super) const LONGEST_CALL_SECONDS: [f64; 2] = [5e-3, 20e-3];

/// The least growth of a call with its length, relative to that of its form: where disturbed short
/// calls hide all growth, long calls would cost as little.
const LEAST_GROWTH: f64 = 0.25;

/// The number of lengths with factors.
const POINTS: usize = Tuning::POINTS.len();

/// The tries of an algorithm at a length.
pub(super) struct Trial {
    pub(super) algorithm: Algorithm,
    pub(super) request: Request,
    /// The index of the length in [`Tuning::POINTS`].
    pub(super) point: usize,
    /// Seconds of a call, as far as the factors were known.
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

    /// The fastest try.
    pub(super) fn fastest(&self) -> f64 {
        self.tries.iter().copied().reduce(f64::min).unwrap_or(self.expected)
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

/// The closed forms of a world.
pub(super) struct Forms {
    /// Seconds of a call, by class, algorithm and point; 0 without a price.
    seconds: [Factors; Tuning::CLASSES.len()],
    /// True if all ranks share the region of one host.
    shares_host: bool,
    /// The bytes of an all-reduce on the busiest cable.
    pub(super) cable_bytes: CableBytes,
}

impl Forms {
    pub(super) fn of(
        planner: &mut Planner,
        requests: impl Fn(Collective, usize) -> Request,
    ) -> Self {
        planner.set_rules(Rules::default());
        planner.set_tuning(Tuning::UNMEASURED);
        let mut seconds = [[[0.0; _]; _]; _];
        for (class, forms) in seconds.iter_mut().enumerate() {
            for (point, _) in Tuning::POINTS.iter().enumerate() {
                for candidate in planner.candidates(&requests(Tuning::CLASSES[class], point)) {
                    forms[candidate.algorithm as usize][point] = candidate.seconds.unwrap_or(0.0);
                }
            }
        }
        Self { seconds, shares_host: planner.shares_host(), cable_bytes: [0.0; _] }
    }

    /// The factors of closed-form prices. A class that was not tried has those of all-reduce.
    pub(super) fn tuning(&self, trials: &[Trial]) -> Tuning {
        let mut tuning = Tuning::default();
        let growth = self.growth_beyond_caches(trials);
        for class in 0..tuning.0.len() {
            let is_tried = trials.iter().any(|trial| trial.class() == class);
            tuning.0[class] =
                if is_tried { self.factors(trials, class, growth) } else { tuning.0[0] };
        }
        tuning
    }

    /// The factors of a class. An algorithm that was not tried at a length gets the worst factor
    /// measured there, if there is one of an algorithm that goes the same way, through shared
    /// memory or over links: where the forms say too much of shared memory, links are no cheaper
    /// for that. At lengths beyond those at which it was tried, it keeps its last factor, but after
    /// a call too long for more trials one of at least 1, so that it is no cheaper than its form.
    /// The longest call was tried by few algorithms, if at all: beyond the caches the others slow
    /// down as one of these.
    fn factors(&self, trials: &[Trial], class: usize, growth: f64) -> Factors {
        if !self.shares_host {
            return self.over_links(trials, class);
        }
        let measured = self.measured(trials, class);
        let mut too_long_from = [POINTS; Algorithm::ALL.len()];
        let too_long = |trial: &&Trial| trial.seconds() > LONGEST_CALL_SECONDS[0];
        for trial in trials.iter().filter(|trial| trial.class() == class).filter(too_long) {
            let from = &mut too_long_from[trial.algorithm as usize];
            *from = trial.point.min(*from);
        }
        let mut found = [[1.0; POINTS]; Algorithm::ALL.len()];
        for point in 0..POINTS {
            let worst_of = |is_like: &dyn Fn(Algorithm) -> bool| {
                let like = Algorithm::ALL.into_iter().filter(|&one| is_like(one));
                like.filter_map(|one| measured[one as usize][point]).reduce(f64::max)
            };
            let worst_of_all = worst_of(&|_| true).map(|worst| worst.max(1.0));
            let [over_links, in_memory] = [false, true].map(|shared| {
                worst_of(&|one| one.is_in_shared_memory() == shared).or(worst_of_all)
            });
            for algorithm in Algorithm::ALL {
                let at = algorithm as usize;
                let before = if point > 0 { found[at][point - 1] } else { 1.0 };
                let tried_before = measured[at][..point].iter().any(Option::is_some);
                let worst = if algorithm.is_in_shared_memory() { in_memory } else { over_links };
                let least = if point > too_long_from[at] { 1.0 } else { 0.0 };
                let guess = match point == POINTS - 1 {
                    true => before * growth,
                    false => worst.filter(|_| !tried_before).unwrap_or(before),
                };
                found[at][point] = measured[at][point].unwrap_or(guess.max(least));
            }
        }
        found
    }

    /// The factor of the longest call over that of the one before, as measured; 1 if the longest
    /// was not tried.
    fn growth_beyond_caches(&self, trials: &[Trial]) -> f64 {
        let growth = |of: &[Option<f64>; POINTS]| Some(of[POINTS - 1]? / of[POINTS - 2]?);
        let of_class = |class| self.measured(trials, class).iter().find_map(growth);
        (0..Tuning::CLASSES.len()).find_map(of_class).unwrap_or(1.0)
    }

    /// The least seconds that a call of a length may take by each algorithm, by its form and its
    /// own tries: a disturbed try says nothing here. None of an algorithm that was not tried.
    pub(super) fn least(&self, trials: &[Trial], class: usize, point: usize) -> Least {
        let forms = &self.seconds[class];
        let correction = corrections(&self.measured(trials, class), forms)[point];
        let mut found = [None; Algorithm::ALL.len()];
        for trial in trials.iter().filter(|trial| trial.class() == class) {
            let at = trial.algorithm as usize;
            let growth = correction * (forms[at][point] - forms[at][trial.point]);
            let least = trial.seconds() + growth;
            found[at] = Some(found[at].map_or(least, |found: f64| found.min(least)));
        }
        found
    }

    fn measured(&self, trials: &[Trial], class: usize) -> Measured {
        let mut measured: Measured = [[None; _]; _];
        for trial in trials.iter().filter(|trial| trial.class() == class) {
            let at = trial.algorithm as usize;
            measured[at][trial.point] =
                Some(trial.seconds() / self.seconds[class][at][trial.point]);
        }
        measured
    }

    /// The factors of a class over links alone. An algorithm that was not tried has the ring's,
    /// since the forms err by orders of magnitude where ranks share a cable, and the worst factor
    /// would keep the other algorithms from ever being tried. After a try, a call grows with its
    /// length as its form says, corrected as the growth of those that were tried, and no less than
    /// it did between the longest try and one that is shorter by its form too, if the longest took
    /// long: the rate of a cable shows in long calls alone, and what short calls take besides is
    /// not to be multiplied. Where all-reduces went at the rate of the busiest cable, longer ones
    /// grow by their bytes on that cable.
    fn over_links(&self, trials: &[Trial], class: usize) -> Factors {
        let (forms, measured) = (&self.seconds[class], self.measured(trials, class));
        let corrections = corrections(&measured, forms);
        let ring = Algorithm::Ring as usize;
        let of_ring = grown(&measured[ring], &forms[ring], (&[1.0; POINTS], &corrections));
        let mut found = [of_ring; Algorithm::ALL.len()];
        for at in (0..found.len()).filter(|&at| at != ring) {
            found[at] = grown(&measured[at], &forms[at], (&of_ring, &corrections));
        }
        let of_class: Vec<_> = trials.iter().filter(|trial| trial.class() == class).collect();
        if let Some(rate) = CableRate::of(&of_class, &self.cable_bytes) {
            rate.set_long_calls(&mut found, forms, &of_class);
        }
        found
    }
}

/// The measured growth of calls with their length, relative to that of their forms, by point: the
/// median of the algorithms that were tried there, or else at the last point with such tries. An
/// algorithm that was not tried with a long call must not seem faster than those that were.
fn corrections(measured: &Measured, forms: &Factors) -> [f64; POINTS] {
    let mut found = [1.0; POINTS];
    for point in 0..POINTS {
        let growth = |at: usize| {
            let form = forms[at][point];
            let is_shorter = |&before: &usize| forms[at][before] <= form / 2.0;
            let before = (0..point)
                .rev()
                .filter(is_shorter)
                .find_map(|before| Some((measured[at][before]? * forms[at][before], before)));
            let (seconds, before) = before?;
            Some((measured[at][point]? * form - seconds) / (form - forms[at][before]))
        };
        let mut all: Vec<f64> = (0..measured.len()).filter_map(growth).collect();
        all.sort_by(f64::total_cmp);
        let before = if point > 0 { found[point - 1] } else { 1.0 };
        let median = all.get(all.len().saturating_sub(1) / 2);
        found[point] = median.map_or(before, |&median| median.max(LEAST_GROWTH));
    }
    found
}

/// The factors of one algorithm over links, from those that were measured; before its first try
/// the `usual` ones. The growth of its form is multiplied by the corrections.
fn grown(
    measured: &[Option<f64>],
    forms: &[f64],
    (usual, corrections): (&[f64; POINTS], &[f64; POINTS]),
) -> [f64; POINTS] {
    let mut found = *usual;
    let mut tries: Vec<(usize, f64)> = Vec::new();
    for point in (0..found.len()).filter(|&point| forms[point] > 0.0) {
        if let Some(factor) = measured[point] {
            found[point] = factor;
            tries.push((point, factor * forms[point]));
        } else if let Some(seconds) = prolonged(&tries, forms, (point, corrections[point])) {
            found[point] = seconds / forms[point];
        }
    }
    found
}

/// Seconds of a call that is longer than all tries of its algorithm, if there are any.
fn prolonged(
    tries: &[(usize, f64)],
    forms: &[f64],
    (point, correction): (usize, f64),
) -> Option<f64> {
    let &(last, longest) = tries.last()?;
    let bytes = |point: usize| Tuning::POINTS[point] as f64;
    // Calls that take about as long by their form: of these the least disturbed one counts.
    let as_long = tries.partition_point(|&(at, _)| forms[at] <= forms[last] / 2.0);
    let (shorter, as_long) = tries.split_at(as_long);
    let by_form =
        as_long.iter().map(|&(at, seconds)| seconds + correction * (forms[point] - forms[at]));
    // Of two short calls a disturbance of one would count for every byte.
    let least_disturbed = shorter.iter().min_by(|one, other| one.1.total_cmp(&other.1));
    let shorter = least_disturbed.filter(|_| longest > LONGEST_CALL_SECONDS[0]);
    let by_rate = shorter.map_or(0.0, |&(at, seconds)| {
        let per_byte = (longest - seconds) / (bytes(last) - bytes(at));
        longest + per_byte * (bytes(point) - bytes(last))
    });
    Some(by_form.fold(f64::INFINITY, f64::min).max(by_rate))
}

/// Seconds by algorithm.
type Least = [Option<f64>; Algorithm::ALL.len()];

/// The measured factors by algorithm and point.
type Measured = [[Option<f64>; POINTS]; Algorithm::ALL.len()];

#[cfg(test)]
pub(super) mod tests {
    use super::{Algorithm, Forms, POINTS, Request, Trial, Tuning};
    use crate::element::DataType;
    use crate::schedule::Collective;

    pub(in crate::tuner) fn trial(algorithm: Algorithm, point: usize, factor: f64) -> Trial {
        let (collective, dtype) = (Collective::AllGather, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        // One try is too fast and one too slow; the median must ignore both.
        let tries = [1e-9, 1.0].into_iter().chain([factor * 1e-6; 3]).collect();
        Trial { algorithm, request, point, expected: 1e-6, tries }
    }

    /// The factors where all forms are of so many seconds.
    fn tuning_of(trials: &[Trial], seconds: f64) -> Tuning {
        Forms { seconds: [[[seconds; _]; _]; _], shares_host: true, cable_bytes: [0.0; _] }
            .tuning(trials)
    }

    #[test]
    fn an_untried_algorithm_is_priced_as_the_worst_measured_one() {
        use Algorithm::{Bruck, RecursiveDoubling, Ring, TwoShot};
        let tried = [(Ring, 1, 2.0), (RecursiveDoubling, 0, 5.0), (TwoShot, 0, 3.0)];
        let trials = tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor));
        let tuning = tuning_of(&trials, 1e-6);
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
        let longest = POINTS - 1;
        let tried = [(Ring, longest - 1, 2.0), (Staged, longest - 1, 1.0), (Staged, longest, 1.5)];
        let tuning = tuning_of(
            &tried.map(|(algorithm, point, factor)| trial(algorithm, point, factor)),
            1e-6,
        );
        let class = Tuning::class(Collective::AllGather);
        for (algorithm, factor) in [(Ring, 3.0), (Staged, 1.5), (TwoShot, 3.0)] {
            let found = tuning.0[class][algorithm as usize][longest];
            assert!((found - factor).abs() < 1e-9, "{algorithm} {found}");
        }
    }

    #[test]
    fn links_are_no_cheaper_than_their_form_where_shared_memory_is() {
        for (factor, expected) in [(0.01, 1.0), (20.0, 20.0)] {
            let tuning = tuning_of(&[trial(Algorithm::Staged, 0, factor)], 1e-6);
            let factors = tuning.0[Tuning::class(Collective::AllGather)];
            let of = |algorithm: Algorithm| (factors[algorithm as usize][0] * 1e3).round() / 1e3;
            assert_eq!([of(Algorithm::Staged), of(Algorithm::Direct)], [factor; 2]);
            assert_eq!(of(Algorithm::Bruck), expected);
        }
    }

    #[test]
    fn a_call_too_long_for_more_trials_says_nothing_of_longer_ones() {
        let slow = Trial { tries: vec![0.01], ..trial(Algorithm::Staged, 0, 1.0) };
        let quick = Trial { tries: vec![0.001], ..trial(Algorithm::Direct, 0, 1.0) };
        let tuning = tuning_of(&[slow, quick], 1.0);
        let factors = tuning.0[Tuning::class(Collective::AllGather)];
        assert_eq!(factors[Algorithm::Staged as usize][..2], [0.01, 1.0]);
        assert_eq!(factors[Algorithm::Direct as usize][..2], [0.001; 2]);
    }

    #[test]
    fn a_long_call_over_links_grows_as_the_longest_tries_did() {
        use Algorithm::{Bruck, Ring};
        let bytes = Tuning::POINTS.map(|bytes| bytes as f64);
        // One takes long to begin, the other half as long for a byte.
        let call = |algorithm, point: usize, begin: f64, rate: f64| Trial {
            tries: vec![begin + bytes[point] / rate],
            ..trial(algorithm, point, 1.0)
        };
        let tries = [5, 6].map(|point| call(Ring, point, 1e-3, 1e8));
        let trials = tries.into_iter().chain([5, 6].map(|point| call(Bruck, point, 1e-5, 5e7)));
        let trials: Vec<_> = trials.collect();
        let mut forms =
            Forms { seconds: [[[0.0; _]; _]; _], shares_host: false, cable_bytes: [0.0; _] };
        let class = Tuning::class(Collective::AllGather);
        forms.seconds[class] = [bytes.map(|bytes| bytes / 1e9); _];
        let factors = forms.tuning(&trials).0[class];
        for (algorithm, begin, rate) in [(Ring, 1e-3, 1e8), (Bruck, 1e-5, 5e7)] {
            for point in 7..bytes.len() {
                let seconds = factors[algorithm as usize][point] * bytes[point] / 1e9;
                let expected = begin + bytes[point] / rate;
                assert!((seconds / expected - 1.0).abs() < 1e-9, "{algorithm} {seconds}");
            }
        }
        // An algorithm that was not tried is priced as the ring is.
        assert_eq!(factors[Algorithm::AllPairs as usize], factors[Ring as usize]);
        // One that was tried with shorter calls alone is no cheaper for that.
        let short = [call(Bruck, 4, 1e-5, 1e9)];
        let trials: Vec<_> =
            [4, 7].map(|point| call(Ring, point, 1e-5, 1e8)).into_iter().chain(short).collect();
        let factors = forms.tuning(&trials).0[class];
        let [ring, bruck] = [Ring, Bruck].map(|algorithm| factors[algorithm as usize][8]);
        assert!((bruck / ring - 1.0).abs() < 0.05, "{bruck} {ring}");
        // Of two tries a disturbed one says nothing of longer calls, where the form says that few
        // of their bytes matter.
        forms.seconds[class] = [bytes.map(|bytes| 1e-3 + bytes / 1e9); _];
        for tries in [[(0, 1e-5), (1, 4e-3)], [(0, 7e-3), (1, 45e-3)]] {
            let least = tries[0].1;
            let disturbed = tries
                .map(|(point, seconds)| Trial { tries: vec![seconds], ..trial(Bruck, point, 1.0) });
            let found = forms.tuning(&disturbed).0[class][Bruck as usize];
            let seconds = found[8] * forms.seconds[class][Bruck as usize][8];
            assert!((seconds - least - bytes[8] / 1e9).abs() < 1e-3, "{seconds}");
        }
    }
}
