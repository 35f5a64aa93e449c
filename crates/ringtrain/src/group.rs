//! The ranks of a training, and a clock for the time in their collectives. Law: every collective of
//! the training goes through here.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Element, Error as Silent, ReduceOp};

use crate::error::Result;

/// The longest wait of ranks for each other to grow, and to shrink.
const GROW_DEADLINE: Duration = Duration::from_secs(60);
const SHRINK_DEADLINE: Duration = Duration::from_secs(10);

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

    /// The number of the membership: not 0 after ranks came or went.
    pub(crate) fn epoch(&self) -> u32 {
        self.comm.epoch()
    }

    /// Lets restarted ranks join; true if there is one.
    pub(crate) fn grow(&mut self) -> Result<bool> {
        let start = Instant::now();
        let larger = self.comm.grow(GROW_DEADLINE);
        self.spent += start.elapsed();
        let larger = match larger {
            // The launcher does not answer: no rank can join, and all ranks know that.
            Err(silent @ Silent::Store { .. }) => {
                if self.rank() == 0 {
                    eprintln!("ringtrain: {silent}; {} ranks go on", self.size());
                }
                None
            }
            larger => larger?,
        };
        Ok(larger.map(|larger| self.comm = larger).is_some())
    }

    /// Goes on without lost and absent ranks.
    pub(crate) fn shrink(&mut self) -> Result<()> {
        let start = Instant::now();
        let smaller = self.comm.evict(SHRINK_DEADLINE);
        self.spent += start.elapsed();
        self.comm = smaller?;
        Ok(())
    }

    /// The largest of all ranks' numbers.
    pub(crate) fn most(&mut self, number: u64) -> Result<u64> {
        let mut numbers = [number];
        self.timed(|comm| comm.all_reduce(&mut numbers, ReduceOp::Max))?;
        Ok(numbers[0])
    }

    /// The average over all ranks, in place.
    pub(crate) fn average(&mut self, values: &mut [f32]) -> Result<()> {
        self.timed(|comm| comm.all_reduce(values, ReduceOp::Avg))
    }

    /// The sum over all ranks, in place.
    pub(crate) fn sum(&mut self, counts: &mut [u64]) -> Result<()> {
        self.timed(|comm| comm.all_reduce(counts, ReduceOp::Sum))
    }

    /// Sends the values of `root` to all ranks.
    pub(crate) fn broadcast(&mut self, values: &mut [impl Element], root: usize) -> Result<()> {
        self.timed(|comm| comm.broadcast(values, root))
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
