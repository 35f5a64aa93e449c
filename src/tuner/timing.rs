//! The times of trials: how often a call is made, after which other one, and by whose clock.

use bytemuck::cast_slice_mut;

use super::probe::Prober;
use super::trial::{LONGEST_CALL_SECONDS, Trial};
use crate::element::{DataType, ReduceOp};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::plan::{Candidate, Request, Rules};
use crate::schedule::{Algorithm, Collective, StageShape};

/// The longest expected time of a call that is made untimed before it is timed, in seconds; and of
/// an all-reduce over links, where a connection's window grows in its first long call: that of
/// 2 MiB over TCP took a ring of eight ranks 11 ms, and 7 ms when it was made again.
const LONGEST_UNTIMED_SECONDS: [f64; 2] = [0.5e-3, LONGEST_CALL_SECONDS[1]];
/// Meetings of all ranks whose time is measured together.
const MEETINGS: usize = 8;
/// The least part of the time of a call and a meeting that the call is taken to have.
const LEAST_PART: f64 = 0.25;

impl Prober<'_> {
    /// Makes an untimed call through every slot of all stages, whose pages are made when they are
    /// touched: whichever call came first would otherwise be charged with that.
    pub(super) fn touch_stages(&mut self, memory: &mut Vec<u8>) -> Result<(), Halt> {
        let StageShape { block, depth } = StageShape::of(self.rank_info.local_size);
        let (collective, dtype) = (Collective::AllReduce, DataType::F32);
        let op = Some(ReduceOp::Sum.into());
        let request = Request { collective, count: block * depth / dtype.size(), dtype, op };
        let planner = &mut self.engine.planner;
        planner.set_rules(Rules::default());
        let mut candidates = planner.candidates(&request);
        let is_staged = |candidate: &Candidate| {
            [Algorithm::Staged, Algorithm::TwoLevel].contains(&candidate.algorithm)
        };
        let staged = candidates.find(is_staged);
        drop(candidates);
        let is_short = |candidate: &Candidate| {
            candidate.seconds.is_some_and(|seconds| seconds <= LONGEST_CALL_SECONDS[0])
        };
        if let Some(Candidate { algorithm, .. }) = staged.filter(is_short) {
            memory.resize(memory.len().max(block * depth), 0);
            let buffer = Buffer::in_place(&mut memory[..block * depth]);
            self.call(None, algorithm, &request, &buffer)?;
        }
        Ok(())
    }

    /// Replaces each rank's times by those of all ranks: the longest where the call has a root,
    /// since the ranks ended together, and the first one began the call; else the mean, since all
    /// ranks wait for each other, and a rank that began to count early counts what others do for
    /// too long.
    pub(super) fn share_times(
        &mut self,
        times: &mut [f64],
        is_rooted: &[bool],
    ) -> Result<(), Halt> {
        let mut sums = times.to_vec();
        if is_rooted.contains(&true) {
            self.reduce(times, ReduceOp::Max)?;
        }
        if is_rooted.contains(&false) {
            self.reduce(&mut sums, ReduceOp::Sum)?;
        }
        let ranks = self.rank_info.peers.len() as f64;
        for ((time, sum), is_rooted) in times.iter_mut().zip(sums).zip(is_rooted) {
            if !is_rooted {
                *time = sum / ranks;
            }
        }
        Ok(())
    }

    pub(super) fn reduce(&mut self, numbers: &mut [f64], op: ReduceOp) -> Result<(), Halt> {
        self.reduce_by(Algorithm::Binomial, numbers, op)
    }

    fn reduce_by(
        &mut self,
        algorithm: Algorithm,
        numbers: &mut [f64],
        op: ReduceOp,
    ) -> Result<(), Halt> {
        let (collective, dtype) = (Collective::AllReduce, DataType::F64);
        let request = Request { collective, count: numbers.len(), dtype, op: Some(op.into()) };
        let buffer = Buffer::in_place(cast_slice_mut(numbers));
        self.call(None, algorithm, &request, &buffer)
    }

    /// Seconds of one call of a trial, as the mean of a few calls.
    pub(super) fn time_trial(&mut self, trial: &Trial, memory: &mut Vec<u8>) -> Result<f64, Halt> {
        let Trial { algorithm, request, .. } = trial;
        let size = self.rank_info.peers.len();
        let len = request.longest(size as u32);
        let blocks = request.collective.blocks(size as u32);
        let [sent, received] = request
            .collective
            .shape(size as u32)
            .map(|count| if count == blocks { len } else { len / size });
        // Calls with a block for each rank are out of place, as most users make them.
        let output = if request.collective.has_blocks() { sent } else { 0 };
        memory.resize(memory.len().max(output + received), 0);
        let memory = &mut memory[..output + received];
        let (input, output) = (0..sent, output..output + received);
        let mut call = |prober: &mut Self| {
            let buffer = Buffer::in_one_memory(memory, input.clone(), output.clone());
            prober.call(None, *algorithm, request, &buffer)
        };
        // An untimed call first, because the call before was another algorithm's: what that left to
        // do matters to short calls. Long ones would take the time of other trials.
        let is_all_reduce = request.collective == Collective::AllReduce;
        let is_long = is_all_reduce && !self.engine.planner.shares_host();
        if trial.expected <= LONGEST_CALL_SECONDS[1] {
            match std::mem::replace(&mut self.has_opened[*algorithm as usize], true) {
                false => self.open_links(&mut call)?,
                true if trial.expected <= LONGEST_UNTIMED_SECONDS[usize::from(is_long)] => {
                    call(self)?
                }
                true => {}
            }
        }
        if request.collective.root().is_none() {
            return self.seconds_per_call(trial.calls(), &mut call);
        }
        // One by one: a rank that runs late finds all that it waits for, and later calls of others.
        self.meet()?;
        let with_meeting = self.seconds_per_call(trial.calls(), &mut |prober: &mut Self| {
            call(prober)?;
            prober.meet()
        })?;
        Ok((with_meeting - self.meeting_seconds).max(LEAST_PART * with_meeting))
    }

    /// Waits until all ranks have come to this call.
    fn meet(&mut self) -> Result<(), Halt> {
        let shares_host = self.engine.planner.shares_host();
        let algorithm = if shares_host { Algorithm::Direct } else { Algorithm::Binomial };
        self.reduce_by(algorithm, &mut [0.0], ReduceOp::Max)
    }

    /// Seconds of [`Self::meet`].
    pub(super) fn seconds_of_meeting(&mut self) -> Result<f64, Halt> {
        self.meet()?;
        let mut seconds = [self.seconds_per_call(MEETINGS, &mut Self::meet)?];
        self.share_times(&mut seconds, &[false])?;
        Ok(seconds[0])
    }
}
