//! The origin of a communicator that a recovery made: the ranks and the last calls of its members
//! in the communicator before.

use crate::api::Communicator;

/// Where a communicator from [`Communicator::shrink`], [`Communicator::evict`] or
/// [`Communicator::grow`] comes from: the members that went on from the communicator before, and
/// how far each had come there. All members have the same.
///
/// Calls have the numbers that errors show, from 1. Calls that all ranks make count, including
/// those that the library makes itself: the broadcasts of a `grow`, and the barriers of uniform
/// calls. Messages between two ranks do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The number of the new membership: see [`Communicator::epoch`].
    pub epoch: u32,
    /// The old rank of each rank here, from 0. Ranks of this communicator beyond the list are new.
    pub members: Vec<usize>,
    /// The last call that succeeded at each member, in the same order. Where the numbers differ,
    /// some members lack results that others have, to which lost ranks may have contributed. The
    /// program then either returns all ranks to the state after the lowest call, or copies the
    /// state of a member with the highest.
    pub calls: Vec<u64>,
}

impl Recovery {
    /// The last call that succeeded at all members, and the last that succeeded at any.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        let calls = || self.calls.iter().copied();
        (calls().min().unwrap_or(0), calls().max().unwrap_or(0))
    }
}

impl Communicator {
    /// The members that went on together into this communicator, with their old ranks and last
    /// calls: to share out anew the data of lost ranks, and to know which results all members have.
    /// `None` without a communicator before this one, as at a rank that joined later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ringreduce::{Communicator, Error, ReduceOp};
    /// # fn step(mut comm: Communicator, share: &mut Vec<usize>) -> Result<Communicator, Error> {
    /// // `share` has the part of the data of each rank.
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
