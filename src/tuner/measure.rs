//! How long each algorithm takes beside what its closed form says: a few calls of each, up to some
//! tenths of a second in all. May touch: as `comm`.
//! Law: which calls are made, and what follows of them, comes from what all ranks know.

use bytemuck::cast_slice_mut;

use super::probe::Tool;
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::plan::{Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds to spend on one try of a length.
const BUDGET: f64 = 0.25e-3;
/// Calls in one try: several, for one may leave work to the next.
const CALLS: [f64; 2] = [3.0, 16.0];
/// What should cost so many times the cheapest is not worth a try.
const HOPELESS: f64 = 6.0;
/// Nor are lengths at which a call should take longer than this many seconds.
const LONGEST: f64 = 2e-3;
/// The whole list is tried so many times, and the median counts: what else the machine does for a
/// moment meets one try of each, and so does luck, as that of ranks which happen to share a CPU
/// with the one they wait for.
const PASSES: usize = 5;

/// An algorithm at a length.
struct Trial {
    algorithm: Algorithm,
    request: Request,
    /// Of [`Tuning::POINTS`].
    point: usize,
    /// Seconds, by the closed form.
    price: f64,
    /// Seconds of one call, as tried.
    tries: [f64; PASSES],
}

/// What prices are to be multiplied by. What was not tried at a length is no better than the worst
/// there; beyond its last measure an algorithm stays as good as it was there.
fn factors(trials: Vec<Trial>) -> Tuning {
    let mut known = [[None; Tuning::POINTS.len()]; Algorithm::ALL.len()];
    for Trial { algorithm, point, price, mut tries, .. } in trials {
        tries.sort_by(f64::total_cmp);
        known[algorithm as usize][point] = Some(tries[PASSES / 2] / price);
    }
    let mut tuning = Tuning::default();
    for point in 0..Tuning::POINTS.len() {
        let worst = known.iter().filter_map(|factors| factors[point]).reduce(f64::max);
        for (factors, known) in tuning.0.iter_mut().zip(&known) {
            let before = if point > 0 { factors[point - 1] } else { 1.0 };
            let tried_before = known[..point].iter().any(Option::is_some);
            let guess = worst.filter(|_| !tried_before).unwrap_or(before);
            factors[point] = known[point].unwrap_or(guess);
        }
    }
    // It makes barriers alone, as the other one does.
    let [barrier, like] = [Algorithm::Dissemination, Algorithm::RecursiveDoubling];
    tuning.0[barrier as usize] = tuning.0[like as usize];
    tuning
}

impl Tool<'_> {
    /// Measures all algorithms that could be the best at some length. The speeds are known.
    pub(super) fn tune(&mut self) -> Result<Tuning, Halt> {
        self.engine.planner.go_by(Rules::default());
        let mut trials = self.trials();
        let size = self.seat.peers.len() as u32;
        let longest = trials.iter().map(|trial| trial.request.longest(size)).max();
        let mut memory = vec![0; longest.unwrap_or(0)];
        for pass in 0..PASSES {
            for trial in &mut trials {
                trial.tries[pass] = self.time(trial, &mut memory)?;
            }
        }
        // Who is done early has left work to others: the slowest rank's time is the call's.
        let mut tries: Vec<f64> = trials.iter().flat_map(|trial| trial.tries).collect();
        let (collective, dtype) = (Collective::AllReduce, DataType::F64);
        let op = Some(ReduceOp::Max.into());
        let slowest = Request { collective, count: tries.len(), dtype, op };
        let buffer = Buffer::in_place(cast_slice_mut(&mut tries));
        self.call(None, Algorithm::Ring, &slowest, &buffer)?;
        for (trial, slowest) in trials.iter_mut().zip(tries.chunks_exact(PASSES)) {
            trial.tries.copy_from_slice(slowest);
        }
        Ok(factors(trials))
    }

    /// What is worth a try, by length.
    fn trials(&self) -> Vec<Trial> {
        let ring = self.engine.planner.ring();
        let mut trials = Vec::new();
        for (point, bytes) in Tuning::POINTS.into_iter().enumerate() {
            for collective in [Collective::AllReduce, Collective::AllGather] {
                let request = self.request(collective, bytes);
                let known = |algorithm: Algorithm| {
                    collective == Collective::AllGather
                        && algorithm.makes(Collective::AllReduce, ring)
                };
                let promising = self.promising(&request).into_iter();
                trials.extend(promising.filter(|&(algorithm, _)| !known(algorithm)).map(
                    |(algorithm, price)| Trial {
                        algorithm,
                        request,
                        point,
                        price,
                        tries: [0.0; PASSES],
                    },
                ));
            }
        }
        trials
    }

    /// A call of so many bytes in all.
    fn request(&self, collective: Collective, bytes: usize) -> Request {
        let (size, dtype) = (self.seat.peers.len(), DataType::F32);
        let (bytes, op) = match collective {
            Collective::AllReduce => (bytes, Some(ReduceOp::Sum.into())),
            _ => (bytes.div_ceil(size), None),
        };
        Request { collective, count: bytes.div_ceil(dtype.size()), dtype, op }
    }

    /// The algorithms that might be the best for a call, by their closed forms, and what those say.
    fn promising(&self, request: &Request) -> Vec<(Algorithm, f64)> {
        let candidates = self.engine.planner.candidates(request);
        let priced = candidates.filter_map(|one| Some((one.algorithm, one.seconds?)));
        let mut priced: Vec<_> = priced.filter(|&(_, price)| price > 0.0).collect();
        let least = priced.iter().fold(f64::INFINITY, |least, &(_, price)| least.min(price));
        let most = (HOPELESS * least).min(LONGEST);
        priced.retain(|&(_, price)| price <= most);
        priced
    }

    /// Seconds of one call, of a few.
    fn time(&mut self, trial: &Trial, memory: &mut [u8]) -> Result<f64, Halt> {
        let Trial { algorithm, request, price, .. } = trial;
        let size = self.seat.peers.len();
        let len = request.longest(size as u32);
        let memory = &mut memory[..len];
        let part = if request.op.is_some() { len } else { len / size };
        let mine = if request.op.is_some() { 0 } else { self.seat.rank * part };
        let calls = (BUDGET / price).clamp(CALLS[0], CALLS[1]) as usize;
        let mut call = |tool: &mut Self| {
            let buffer = Buffer::within(memory, mine..mine + part, 0..len);
            tool.call(None, *algorithm, request, &buffer)
        };
        // The one before was another algorithm's.
        call(self)?;
        self.seconds(calls, &mut call)
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Collective, PASSES, Request, Trial, factors};
    use crate::element::DataType;

    fn trial(algorithm: Algorithm, point: usize, factor: f64) -> Trial {
        let (collective, dtype) = (Collective::AllGather, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let mut tries = [factor * 1e-6; PASSES];
        // A moment of luck, and one of trouble.
        (tries[0], tries[1]) = (1e-9, 1.0);
        Trial { algorithm, request, point, price: 1e-6, tries }
    }

    #[test]
    fn what_was_not_tried_is_no_better_than_what_was() {
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
