//! The definition of each collective: the result that every rank must end with, and which places
//! are one memory in place.

use crate::schedule::{Collective, Place, Space};

/// The required result of a chunk of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Unchanged: the collective does not define it.
    Untouched,
    /// The fold of all ranks' contributions to this chunk of the input.
    Sum(u32),
    /// The fold of the contributions of ranks 0 to `ranks` - 1 to this chunk, in rank order.
    Prefix { ranks: u32, chunk: u32 },
    /// A copy of a chunk of a rank's input.
    Copy { rank: u32, chunk: u32 },
}

impl Collective {
    /// True if the input of `rank` takes part.
    pub(super) fn has_input(self, rank: u32) -> bool {
        match self {
            Self::Broadcast { root } | Self::Scatter { root } => rank == root,
            _ => true,
        }
    }

    /// True if the reduction that completes a result is marked as the last; averages divide there.
    pub(super) fn averages(self) -> bool {
        !matches!(self, Self::Scan | Self::Exscan)
    }

    /// The required result of a chunk of the output of `rank`.
    pub(super) fn expected(self, rank: u32, chunk: u32) -> Expected {
        match self {
            Self::AllReduce | Self::Barrier => Expected::Sum(chunk),
            Self::ReduceScatter => Expected::Sum(rank),
            Self::AllGather => Expected::Copy { rank: chunk, chunk: 0 },
            Self::Broadcast { root } => Expected::Copy { rank: root, chunk },
            Self::Reduce { root } if rank == root => Expected::Sum(chunk),
            Self::Gather { root } if rank == root => Expected::Copy { rank: chunk, chunk: 0 },
            Self::Reduce { .. } | Self::Gather { .. } => Expected::Untouched,
            Self::Scatter { root } => Expected::Copy { rank: root, chunk: rank },
            Self::AllToAll => Expected::Copy { rank: chunk, chunk: rank },
            Self::Exscan if rank == 0 => Expected::Untouched,
            Self::Exscan => Expected::Prefix { ranks: rank, chunk },
            Self::Scan => Expected::Prefix { ranks: rank + 1, chunk },
        }
    }

    /// For a call in place: the one place that stands for all names of the memory at `place`.
    pub(super) fn in_place(self, rank: u32, place: Place) -> Place {
        match (self, place.space) {
            (_, Space::Scratch) => place,
            (Self::ReduceScatter, Space::Output) => Place::input(rank),
            (Self::AllGather | Self::Gather { .. }, Space::Input) => Place::output(rank),
            (Self::Scatter { root }, Space::Output) if rank == root => Place::input(rank),
            (Self::ReduceScatter | Self::Scatter { .. }, Space::Input) => place,
            (_, Space::Input) => Place::output(place.chunk),
            (_, Space::Output) => place,
        }
    }
}
