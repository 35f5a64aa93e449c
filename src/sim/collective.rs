//! What every rank starts from and must end with, and which of its places are one memory in place.
//! May touch: schedule. Law: none of its own; `check` holds schedules to what is said here.

use crate::schedule::{Collective, Place, Space};

/// What a rank must end with in a chunk of its output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// What it was: nobody asked for it.
    Untouched,
    /// The fold of everybody's contribution to this chunk of the input.
    Sum(u32),
    /// The fold of the first ranks' contributions to this chunk, in the order of ranks.
    Prefix {
        /// How many ranks.
        ranks: u32,
        /// Which chunk.
        chunk: u32,
    },
    /// What a rank had in a chunk of its input.
    Copy {
        /// Whose.
        rank: u32,
        /// Which.
        chunk: u32,
    },
}

impl Collective {
    /// Has `rank` something to give?
    pub(super) fn gives(self, rank: u32) -> bool {
        match self {
            Self::Broadcast { root } | Self::Scatter { root } => rank == root,
            _ => true,
        }
    }

    /// Is the last reduction of all contributions the one where an average divides?
    pub(super) fn averages(self) -> bool {
        !matches!(self, Self::Scan | Self::Exscan)
    }

    /// What `rank` must end with in this chunk of its output.
    pub(super) fn expects(self, rank: u32, chunk: u32) -> Expected {
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

    /// In place: where the memory of `place` is, of all the names that it has.
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
