//! What those who went on know of where they went on from. May touch: as `comm`.

use crate::api::Communicator;

/// Of a communicator that [`Communicator::shrink`], [`Communicator::evict`] or
/// [`Communicator::grow`] gave: who went on from the one before, and how far each had come there.
/// The same at all of them.
///
/// Calls have the numbers that errors show, from 1. Only those that all ranks make count, and with
/// them what the library makes of its own: the broadcasts of a `grow`, the barriers of calls that
/// end alike.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The number of the membership that began, [`Communicator::epoch`].
    pub epoch: u32,
    /// Who went on: for each rank here, from 0, its rank there. Whoever comes after them is new.
    pub members: Vec<usize>,
    /// The last call that ended well at each of them, in the same order. Where these differ, some
    /// lack results that others have, and that ranks which are lost now have contributed to: all go
    /// back to the state after the lowest, or have that of one who is furthest.
    pub calls: Vec<u64>,
}

impl Recovery {
    /// The last call that ended well at all members, and the last one that did at any.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        let calls = || self.calls.iter().copied();
        (calls().min().unwrap_or(0), calls().max().unwrap_or(0))
    }
}

impl Communicator {
    /// Who went on with this rank when this communicator was made, and from where: to share out
    /// anew what those who are lost had of the data, and to know which calls' results all have.
    /// `None` if no communicator was before this one, also for a rank that came later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ringreduce::{Communicator, Error, ReduceOp};
    /// # fn step(mut comm: Communicator, share: &mut Vec<usize>) -> Result<Communicator, Error> {
    /// // `share` says whose parts of the data each rank has worked on.
    /// if let Err(Error::PeerLost { .. }) = comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum) {
    ///     comm = comm.shrink(Duration::from_secs(10))?;
    ///     if let Some(recovery) = comm.recovery() {
    ///         *share = recovery.members.iter().map(|&rank| share[rank]).collect();
    ///         let (low, high) = recovery.range();
    ///         println!("the results of calls {low} to {high} are not everywhere", low = low + 1);
    ///     }
    /// }
    /// # Ok(comm)
    /// # }
    /// ```
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_deref()
    }
}
