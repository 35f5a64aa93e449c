//! The definition of each collective: the result that every rank must end with, and which places
//! are one memory in place.

use super::{Collective, Place, Space};

/// The required result of a chunk of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkResult {
    /// Unchanged: the collective does not define it.
    Untouched,
    /// The fold of all ranks' contributions to this chunk of the input.
    Sum(u32),
    /// The fold of the contributions of the first ranks to a chunk, in rank order.
    Prefix {
        /// The number of these ranks.
        ranks: u32,
        /// The chunk of their inputs.
        chunk: u32,
    },
    /// A copy of a chunk of a rank's input.
    Copy {
        /// The rank.
        rank: u32,
        /// The chunk of its input.
        chunk: u32,
    },
}

impl Collective {
    /// The required result of a chunk of the output of `rank`.
    #[must_use]
    pub const fn result(self, rank: u32, chunk: u32) -> ChunkResult {
        match self {
            Self::AllReduce | Self::Barrier => ChunkResult::Sum(chunk),
            Self::ReduceScatter => ChunkResult::Sum(rank),
            Self::AllGather => ChunkResult::Copy { rank: chunk, chunk: 0 },
            Self::Broadcast { root } => ChunkResult::Copy { rank: root, chunk },
            Self::Reduce { root } if rank == root => ChunkResult::Sum(chunk),
            Self::Gather { root } if rank == root => ChunkResult::Copy { rank: chunk, chunk: 0 },
            Self::Reduce { .. } | Self::Gather { .. } => ChunkResult::Untouched,
            Self::Scatter { root } => ChunkResult::Copy { rank: root, chunk: rank },
            Self::AllToAll => ChunkResult::Copy { rank: chunk, chunk: rank },
            Self::Exscan if rank == 0 => ChunkResult::Untouched,
            Self::Exscan => ChunkResult::Prefix { ranks: rank, chunk },
            Self::Scan => ChunkResult::Prefix { ranks: rank + 1, chunk },
        }
    }

    /// True if the input of `rank` takes part.
    #[must_use]
    pub(crate) const fn has_input(self, rank: u32) -> bool {
        match self {
            Self::Broadcast { root } | Self::Scatter { root } => rank == root,
            _ => true,
        }
    }

    /// True if each rank's result is over another number of ranks. Such results have no averages,
    /// and one rank's result is part of the next rank's.
    #[must_use]
    pub const fn is_prefix(self) -> bool {
        matches!(self, Self::Scan | Self::Exscan)
    }

    /// The block of the input of rank `from` that rank `me` gets, and the block of its output where
    /// it goes, in a collective that does not reduce; `None` if `me` gets nothing of `from`.
    pub(crate) const fn block_move(self, from: u32, me: u32) -> Option<[u32; 2]> {
        let [input, output] = self.shape(2);
        match self.result(me, from) {
            ChunkResult::Copy { rank, .. } if rank == from => {
                Some([if input > 1 { me } else { 0 }, if output > 1 { from } else { 0 }])
            }
            _ => None,
        }
    }

    /// For a call in place: the one place that stands for all names of the memory at `place`.
    pub(crate) const fn in_place(self, rank: u32, place: Place) -> Place {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_uses_the_sides_that_results_come_from_or_go_to() {
        let size = 3;
        let ranks = 0..size;
        for collective in Collective::all(size) {
            let results = |rank| (0..size).map(move |chunk| collective.result(rank, chunk));
            for me in ranks.clone() {
                let is_mine = |result| match result {
                    ChunkResult::Untouched => false,
                    ChunkResult::Sum(_) | ChunkResult::Prefix { .. } => true,
                    ChunkResult::Copy { rank, .. } => rank == me,
                };
                let gives = ranks.clone().flat_map(results).any(is_mine);
                // The first rank of an exscan has a buffer that stays as it is.
                let gets = results(me).any(|it| it != ChunkResult::Untouched);
                let sides = collective.sides(me, size).map(|blocks| blocks > 0);
                assert_eq!(sides, [gives, gets || collective.is_prefix()], "{collective:?} {me}");
                assert_eq!(collective.has_input(me), gives, "{collective:?} {me}");
            }
        }
    }
}
