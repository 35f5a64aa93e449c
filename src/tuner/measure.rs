//! Measurements of algorithms: a few calls of each that could be the best at some length, within
//! a budget of time. The planner multiplies closed-form prices by the factors found here.
//! Law: the calls made, and the factors that follow from them, depend only on facts that all ranks
//! know. Times are facts once all ranks have shared theirs.

use std::time::Instant;

use super::cable::{CableBytes, chunks_of_hosts};
use super::probe::{Prober, request};
use super::trial::{Forms, LONGEST_CALL_SECONDS, Trial};
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::plan::{Candidate, Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds for all trials, in the region of a host and over links: calls over TCP take longer, and
/// so does the start of jobs with several hosts.
const BUDGET_SECONDS: [f64; 2] = [0.15, 0.5];
/// The part of the budget after which no further collective or length is tried for the first time.
/// The rest is for more tries of the algorithms that are close.
const SURVEY_PART: f64 = 0.7;
/// The highest price, relative to the cheapest algorithm's, of an algorithm that is tried.
const HIGHEST_PRICE_RATIO: f64 = 6.0;
/// The most algorithms that make the longest all-reduce of the survey: between two ranks stages,
/// single copy and links may be the fastest.
const MOST_LONGEST_TRIALS: usize = 3;
/// The most algorithms that make a longer all-reduce over links.
const MOST_LONG_TRIALS: usize = 4;
/// The most tries of each.
const MOST_LONG_TRIES: f64 = 3.0;
/// The longest expected time of one try, in seconds.
const LONGEST_ONCE_SECONDS: f64 = 0.1;
/// The expected time of all tries together, in seconds, unless each is made once. The untimed calls
/// before them do not count.
const LONG_TRIALS_SECONDS: f64 = 0.3;
/// Seconds of all these calls, untimed ones included; the two algorithms that promise most are
/// tried once in any case. 64 ranks on two CPUs took 1.1 s for calls that should have taken 0.3 s.
const LONG_TRIALS_LIMIT: f64 = 0.5;
/// The longest time, relative to the fastest algorithm's, of an algorithm that is tried again, or
/// with a longer call.
const HIGHEST_TIME_RATIO: f64 = 3.0;
/// The most tries of an algorithm at a length; their median counts. Each pass over the list makes
/// one. A disturbance of the machine then hits one try of each algorithm instead of all tries of
/// one, and so does luck, such as that of ranks that share a CPU with the rank they wait for.
const MAX_TRIES: usize = 7;

impl Prober<'_> {
    /// Measures the algorithms that could be the best at some length. The speeds of links are known
    /// by now.
    pub(super) fn tune(&mut self) -> Result<Tuning, Halt> {
        let began = Instant::now();
        let mut memory = Vec::new();
        let size = self.rank_info.peers.len() as u32;
        let mut forms =
            Forms::of(&mut self.engine.planner, |it, point| request_of(it, point, size));
        let (mut trials, spent) = self.survey(began, &forms, &mut memory)?;
        self.try_longer(&forms, &mut trials, &mut memory)?;
        if self.engine.planner.ring().crossings() > 0 {
            forms.cable_bytes = self.cable_bytes()?;
        }
        let left = self.budget_seconds() - spent;
        let (again, seconds_per_pass) = affordable(&trials, close_trials(&trials), left);
        let passes = left / seconds_per_pass.max(f64::MIN_POSITIVE);
        let passes = passes.clamp(0.0, (MAX_TRIES - 1) as f64) as usize;
        let mut times = Vec::with_capacity(passes * again.len());
        for _ in 0..passes {
            for &at in &again {
                times.push(self.time_trial(&trials[at], &mut memory)?);
            }
        }
        let is_rooted =
            again.iter().cycle().map(|&at| trials[at].request.collective.root().is_some());
        let is_rooted: Vec<_> = is_rooted.take(times.len()).collect();
        self.share_times(&mut times, &is_rooted)?;
        for (&seconds, &at) in times.iter().zip(again.iter().cycle()) {
            trials[at].tries.push(seconds);
        }
        Ok(forms.tuning(&trials))
    }

    fn budget_seconds(&self) -> f64 {
        BUDGET_SECONDS[usize::from(!self.engine.planner.shares_host())]
    }

    /// Tries each promising algorithm once, collective by collective and length by length, until
    /// the time for that is spent; returns also the seconds spent.
    fn survey(
        &mut self,
        began: Instant,
        forms: &Forms,
        memory: &mut Vec<u8>,
    ) -> Result<(Vec<Trial>, f64), Halt> {
        let (mut trials, mut spent) = (Vec::new(), 0.0);
        self.touch_stages(memory)?;
        self.meeting_seconds = self.seconds_of_meeting()?;
        for collective in Tuning::CLASSES {
            // A barrier has no length, and the longest call is made once, by few algorithms.
            let points = match collective {
                Collective::Barrier => 1,
                Collective::AllReduce => Tuning::POINTS.len(),
                _ => Tuning::POINTS.len() - 1,
            };
            for point in 0..points {
                let mut group = self.promising_trials(&trials, collective, point);
                let is_longest = point + 1 == Tuning::POINTS.len();
                if is_longest {
                    group.sort_by(|one, other| one.expected.total_cmp(&other.expected));
                    group.truncate(MOST_LONGEST_TRIALS);
                }
                // The shortest call in shared memory is tried even if no other algorithm is: its
                // closed form overestimates the time, so links would seem cheaper.
                let fewest = if is_longest || point == 0 { 1 } else { 2 };
                if spent > SURVEY_PART * self.budget_seconds() || group.len() < fewest {
                    continue;
                }
                let mut times = Vec::with_capacity(group.len() + 1);
                for trial in &group {
                    times.push(self.time_trial(trial, memory)?);
                }
                times.push(began.elapsed().as_secs_f64());
                let is_rooted = vec![collective.root().is_some(); times.len()];
                self.share_times(&mut times, &is_rooted)?;
                spent = times[group.len()];
                group.iter_mut().zip(times).for_each(|(trial, time)| trial.tries.push(time));
                trials.append(&mut group);
                self.engine.planner.set_tuning(forms.tuning(&trials));
            }
        }
        Ok((trials, spent))
    }

    /// Over links, makes a longer all-reduce by each of the algorithms that promise most for it,
    /// the longest for which there is time: what follows for lengths beyond depends on its time,
    /// and the rate of a cable does not show in short calls.
    fn try_longer(
        &mut self,
        forms: &Forms,
        trials: &mut Vec<Trial>,
        memory: &mut Vec<u8>,
    ) -> Result<(), Halt> {
        let class = Tuning::class(Collective::AllReduce);
        let reduces = |trial: &&Trial| trial.class() == class;
        let tried = trials.iter().filter(reduces).map(|trial| trial.point).max();
        let Some(tried) = tried.filter(|_| !self.engine.planner.shares_host()) else {
            return Ok(());
        };
        let mut group = Vec::new();
        for point in tried + 1..Tuning::POINTS.len() - 1 {
            let least = forms.least(trials, class, point);
            let mut longer = self.trials(Collective::AllReduce, point);
            longer.iter_mut().for_each(|trial| {
                trial.expected = least[trial.algorithm as usize].unwrap_or(trial.expected);
            });
            longer.sort_by(|one, other| one.expected.total_cmp(&other.expected));
            longer.truncate(MOST_LONG_TRIALS);
            longer.retain(|trial| trial.expected <= LONGEST_ONCE_SECONDS);
            group = if longer.len() > 1 { longer } else { group };
        }
        let seconds: f64 = group.iter().map(|trial| trial.expected).sum();
        let tries = (LONG_TRIALS_SECONDS / seconds).clamp(1.0, MOST_LONG_TRIES) as usize;
        let began = Instant::now();
        let mut spent = 0.0;
        for pass in 0..tries {
            // A pass that has begun is ended, so that all algorithms have as many tries. The next
            // one takes as long as those before.
            let after = spent * (1.0 + 1.0 / pass.max(1) as f64);
            if pass > 0 && after > LONG_TRIALS_LIMIT {
                break;
            }
            for (at, trial) in group.iter_mut().enumerate() {
                if pass == 0 && at > 1 && spent > LONG_TRIALS_LIMIT {
                    break;
                }
                let seconds = self.time_trial(trial, memory)?;
                let mut times = [seconds, began.elapsed().as_secs_f64()];
                self.share_times(&mut times, &[false; 2])?;
                trial.tries.push(times[0]);
                spent = times[1];
            }
        }
        group.retain(|trial| !trial.tries.is_empty());
        trials.append(&mut group);
        Ok(())
    }

    /// The bytes on the busiest cable of an all-reduce by each algorithm. A rank counts the steps
    /// of its own schedules, since a large world has too many for one rank.
    fn cable_bytes(&mut self) -> Result<CableBytes, Halt> {
        let (size, me) = (self.rank_info.peers.len() as u32, self.rank_info.rank as u32);
        let request = request_of(Collective::AllReduce, 0, size);
        let planner = &self.engine.planner;
        let made: Vec<_> = planner.candidates(&request).map(|one| one.algorithm).collect();
        let of_rank = |&algorithm| chunks_of_hosts(algorithm, planner.ring(), me);
        let mut chunks: Vec<f64> = made.iter().flat_map(of_rank).collect();
        self.reduce(&mut chunks, ReduceOp::Sum)?;
        let ring = self.engine.planner.ring();
        let mut found = [0.0; Algorithm::ALL.len()];
        for (algorithm, sums) in made.into_iter().zip(chunks.chunks(2 * ring.hosts().count())) {
            let most = sums.iter().copied().fold(0.0, f64::max);
            found[algorithm as usize] =
                most / f64::from(algorithm.chunks(request.collective, ring));
        }
        Ok(found)
    }

    /// The algorithms that could be the best for a call of a length, after the trials before.
    fn promising_trials(
        &mut self,
        before: &[Trial],
        collective: Collective,
        point: usize,
    ) -> Vec<Trial> {
        let mut trials = self.trials(collective, point);
        let shares_host = self.engine.planner.shares_host();
        let least = trials.iter().fold(f64::INFINITY, |least, trial| least.min(trial.expected));
        // In shared memory a rank waits for all others at once. The closed form of the same
        // messages counts a step for each, and among 64 ranks overestimates the time ten times.
        let longest = LONGEST_CALL_SECONDS[usize::from(!shares_host)];
        let is_known = |algorithm: Algorithm| {
            let class = Tuning::class(collective);
            before.iter().any(|trial| (trial.class(), trial.algorithm) == (class, algorithm))
        };
        let most = |algorithm: Algorithm| match algorithm.is_in_shared_memory() {
            true if point == 0 => f64::INFINITY,
            _ if is_known(algorithm) => (HIGHEST_TIME_RATIO * least).min(longest),
            true => longest,
            false => (HIGHEST_PRICE_RATIO * least).min(longest),
        };
        trials.retain(|trial| trial.expected <= most(trial.algorithm));
        trials
    }

    /// The algorithms that can make a call of a length.
    fn trials(&mut self, collective: Collective, point: usize) -> Vec<Trial> {
        let request = request_of(collective, point, self.rank_info.peers.len() as u32);
        let planner = &mut self.engine.planner;
        planner.set_rules(Rules::default());
        let trial = |Candidate { algorithm, seconds }: Candidate| {
            let expected = seconds.filter(|&seconds| seconds > 0.0)?;
            Some(Trial { algorithm, request, point, expected, tries: Vec::new() })
        };
        planner.candidates(&request).filter_map(trial).collect()
    }
}

/// The call that is tried for a class of collectives at a length.
pub(super) fn request_of(collective: Collective, point: usize, size: u32) -> Request {
    if collective == Collective::Barrier {
        return request(collective, 1, Some(ReduceOp::Max));
    }
    let bytes = Tuning::POINTS[point].div_ceil(collective.blocks(size) as usize);
    let op = collective.reduces().then(|| ReduceOp::Sum.into());
    let dtype = DataType::F32;
    Request { collective, count: bytes.div_ceil(dtype.size()), dtype, op }
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

/// The shortest of these trials, as many as can be tried once more in so many seconds, and the
/// seconds for that.
fn affordable(trials: &[Trial], mut again: Vec<usize>, left: f64) -> (Vec<usize>, f64) {
    let seconds = |&at: &usize| trials[at].seconds_of_try();
    again.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    let mut sum = 0.0;
    again.retain(|at| {
        let fits = sum + seconds(at) <= left;
        sum += if fits { seconds(at) } else { 0.0 };
        fits
    });
    (again, sum)
}

#[cfg(test)]
mod tests {
    use super::super::trial::tests::trial;
    use super::{Algorithm, affordable, close_trials};

    #[test]
    fn what_time_is_left_for_goes_to_short_trials() {
        // Each try makes an untimed call, too, and as many calls as fit a fifth of a millisecond.
        let trials = [2000.0, 300.0, 1000.0, 400.0].map(|factor| trial(Algorithm::Ring, 0, factor));
        let (again, seconds) = affordable(&trials, vec![0, 1, 2, 3], 2e-3);
        assert_eq!(again, [1, 3]);
        assert!((seconds - 1.4e-3).abs() < 1e-9, "{seconds}");
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
