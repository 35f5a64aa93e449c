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
    /// What a rank had in a chunk of its input.
    Copy {
        /// Whose.
        rank: u32,
        /// Which.
        chunk: u32,
    },
}

impl Collective {
    /// How many chunks of input and output there are among `size` ranks; `None` if any number, and
    /// as many of the one as of the other.
    pub(super) fn chunks(self, size: u32) -> Option<(u32, u32)> {
        match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::Barrier => None,
            Self::ReduceScatter => Some((size, 1)),
            Self::AllGather => Some((1, size)),
        }
    }

    /// Has `rank` something to give?
    pub(super) fn gives(self, rank: u32) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::AllGather | Self::Barrier => true,
            Self::Broadcast { root } => rank == root,
        }
    }

    /// What `rank` must end with in this chunk of its output.
    pub(super) fn expects(self, rank: u32, chunk: u32) -> Expected {
        match self {
            Self::AllReduce | Self::Barrier => Expected::Sum(chunk),
            Self::ReduceScatter => Expected::Sum(rank),
            Self::AllGather => Expected::Copy { rank: chunk, chunk: 0 },
            Self::Broadcast { root } => Expected::Copy { rank: root, chunk },
        }
    }

    /// In place: where the memory of `place` is, of all the names that it has.
    pub(super) fn in_place(self, rank: u32, place: Place) -> Place {
        match (self, place.space) {
            (Self::AllReduce | Self::Broadcast { .. } | Self::Barrier, Space::Input) => {
                Place::output(place.chunk)
            }
            (Self::ReduceScatter, Space::Output) => Place::input(rank),
            (Self::AllGather, Space::Input) => Place::output(rank),
            _ => place,
        }
    }
}
