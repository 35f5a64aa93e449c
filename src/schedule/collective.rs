//! The collectives by name, and the schedule of each. May touch: ring.

use super::{Ring, Schedule, Volume, ring};

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everybody gets every chunk, reduced over all ranks.
    AllReduce,
    /// Rank r gets chunk r, reduced over all ranks.
    ReduceScatter,
    /// Everybody gets chunk r from rank r.
    AllGather,
    /// Everybody gets every chunk from one rank.
    Broadcast {
        /// That rank.
        root: u32,
    },
    /// Nobody is done before everybody has started: an all-reduce whose result nobody looks at.
    Barrier,
}

impl Collective {
    /// Its name, as the method of a communicator is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
        }
    }

    /// Has each chunk the length that its rank says, or are they parts of one buffer?
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather)
    }

    /// The schedule of rank `me` on a ring.
    #[must_use]
    pub fn schedule(self, order: &Ring, me: u32) -> Schedule {
        match self {
            Self::AllReduce => ring::all_reduce(order, me),
            Self::ReduceScatter => ring::reduce_scatter(order, me),
            Self::AllGather => ring::all_gather(order, me),
            Self::Broadcast { root } => ring::broadcast(order, me, root),
            Self::Barrier => ring::barrier(order, me),
        }
    }

    /// What these schedules send.
    #[must_use]
    pub fn volume(self, size: u32) -> Volume {
        ring::volume(self, size)
    }

    /// The schedules of all ranks of a ring.
    #[must_use]
    pub fn schedules(self, order: &Ring) -> Vec<Schedule> {
        (0..order.size()).map(|me| self.schedule(order, me)).collect()
    }
}
