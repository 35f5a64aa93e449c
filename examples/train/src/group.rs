//! The ranks that train together, and a clock for what meeting them costs. Touches the
//! communicator only. Law: every collective of the training goes through here, so the time is all.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, ReduceOp};

use crate::error::Result;

/// A communicator that counts the time spent in it, waiting for slower ranks included.
#[derive(Debug)]
pub(crate) struct Group {
    comm: Communicator,
    spent: Duration,
}

impl Group {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self { comm, spent: Duration::ZERO }
    }

    pub(crate) fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.comm.size()
    }

    /// Time spent in collectives so far.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// The average over all ranks, in place.
    pub(crate) fn average(&mut self, values: &mut [f32]) -> Result<()> {
        self.timed(|comm| comm.all_reduce(values, ReduceOp::Avg))
    }

    /// The sum over all ranks, in place.
    pub(crate) fn sum(&mut self, counts: &mut [u64]) -> Result<()> {
        self.timed(|comm| comm.all_reduce(counts, ReduceOp::Sum))
    }

    /// Rank 0's values to everybody.
    pub(crate) fn broadcast(&mut self, values: &mut [f32]) -> Result<()> {
        self.timed(|comm| comm.broadcast(values, 0))
    }

    fn timed(
        &mut self,
        call: impl FnOnce(&mut Communicator) -> ringreduce::Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let result = call(&mut self.comm);
        self.spent += start.elapsed();
        Ok(result?)
    }
}
