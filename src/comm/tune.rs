//! How long each algorithm takes beside what its closed form says: a few calls of each, some
//! milliseconds in all. May touch: as `comm`.
//! Law: which calls are made follows from what all ranks know.

use super::probe::Tool;
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::plan::{Request, Rules, Tuning};
use crate::schedule::{Algorithm, Collective};

/// Seconds to spend on one try of a length.
const BUDGET: f64 = 0.4e-3;
/// Calls in one try: several, for a rank may be done while others have yet to do their part.
const CALLS: [f64; 2] = [3.0, 16.0];
/// What should cost so many times the cheapest is not worth a try.
const HOPELESS: f64 = 6.0;
/// Nor are lengths at which a call should take longer than this many seconds.
const LONGEST: f64 = 5e-3;
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
        let mut tuning = Tuning::default();
        for Trial { algorithm, point, price, mut tries, .. } in trials {
            tries.sort_by(f64::total_cmp);
            // Beyond its last measure an algorithm stays as good as it was there.
            tuning.0[algorithm as usize][point..].fill(tries[PASSES / 2] / price);
        }
        Ok(tuning)
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
