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
const BUDGET: f64 = 0.3e-3;
/// Calls in one try, at most.
const MOST: f64 = 16.0;
/// What should cost so many times the cheapest is not worth a try.
const HOPELESS: f64 = 6.0;

impl Tool<'_> {
    /// Measures all algorithms that could be the best at some length. The speeds are known.
    pub(super) fn tune(&mut self) -> Result<Tuning, Halt> {
        self.engine.planner.go_by(Rules::default());
        let mut tuning = Tuning::default();
        let mut memory = Vec::new();
        for (at, bytes) in Tuning::POINTS.into_iter().enumerate() {
            let all_reduce = self.request(Collective::AllReduce, bytes);
            let all_gather = self.request(Collective::AllGather, bytes);
            for request in [all_reduce, all_gather] {
                for (algorithm, price) in self.promising(&request) {
                    let known = request.collective == Collective::AllGather
                        && algorithm.makes(Collective::AllReduce, self.engine.planner.ring());
                    if !known {
                        let seconds = self.time(algorithm, &request, price, &mut memory)?;
                        // Beyond its last measure an algorithm stays as good as it was there.
                        tuning.0[algorithm as usize][at..].fill(seconds / price);
                    }
                }
            }
        }
        Ok(tuning)
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
        priced.retain(|&(_, price)| price <= HOPELESS * least);
        priced
    }

    fn time(
        &mut self,
        algorithm: Algorithm,
        request: &Request,
        price: f64,
        memory: &mut Vec<u8>,
    ) -> Result<f64, Halt> {
        let size = self.seat.peers.len();
        let len = request.longest(size as u32);
        if memory.len() < len {
            memory.resize(len, 0);
        }
        let memory = &mut memory[..len];
        let part = if request.op.is_some() { len } else { len / size };
        let mine = if request.op.is_some() { 0 } else { self.seat.rank * part };
        let calls = (BUDGET / price).clamp(1.0, MOST) as usize;
        self.best(calls, |tool| {
            let buffer = Buffer::within(memory, mine..mine + part, 0..len);
            tool.call(None, algorithm, request, &buffer)
        })
    }
}
