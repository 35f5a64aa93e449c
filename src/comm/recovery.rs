//! What those who went on know of where they went on from. May touch: as `comm`.

use super::Communicator;
use crate::error::Result;
use crate::membership::{self, Ranks};

/// Of a communicator that [`Communicator::shrink`], [`Communicator::evict`] or
/// [`Communicator::grow`] gave: who went on from the one before, and how far they had come there.
/// The same at all of them, but for `here`.
///
/// Calls have the numbers that errors show, from 1. Only those that all ranks make count, and with
/// them what the library makes of its own: the broadcasts of a `grow`, the barriers of calls that end
/// alike. If `low` and `high` are equal, all had the
/// results of the same calls. Else those with a smaller `here` lack results that others have, and
/// that ranks which are lost now have contributed to: all go back to the state after call `low`, or
/// have it from one who is ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The number of the membership that began, [`Communicator::epoch`].
    pub epoch: u32,
    /// Who went on: for each rank here, from 0, its rank there. Whoever comes after them is new.
    pub members: Vec<usize>,
    /// Up to this call, all of them ended well at all of the members.
    pub low: u64,
    /// No later one did at any.
    pub high: u64,
    /// The last one that did at this rank.
    pub here: u64,
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
    ///         assert!(recovery.low <= recovery.here && recovery.here <= recovery.high);
    ///     }
    /// }
    /// # Ok(comm)
    /// # }
    /// ```
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_deref()
    }

    /// What `members` of this communicator made, which knows how far they had come in this one.
    pub(super) fn with_recovery(
        &self,
        made: Result<Self>,
        members: Ranks,
        calls: membership::Recovery,
    ) -> Result<Self> {
        let here = self.engine.as_ref().map_or(0, |engine| engine.alike.passed);
        let mut made = made?;
        made.recovery = Some(Box::new(Recovery {
            epoch: made.epoch(),
            members: members.iter().map(|rank| rank as usize).collect(),
            low: calls.low,
            high: calls.high,
            here,
        }));
        Ok(made)
    }
}
