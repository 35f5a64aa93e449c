//! The amount of work in a walk, counted in slices. Law: `Shape` counts the slices that `partition`
//! cuts, and cuts none itself. A chunk of the scratch is named by the chunk that it is as long as.

use crate::partition::Partition;
use crate::schedule::Place;

/// The shape of a walk: the slices of every chunk in every round, and the slots of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    capacity: usize,
    slicing: Slicing<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slicing<'a> {
    Uniform {
        rounds: usize,
        slices: usize,
    },
    /// One partition for all ranks, or one for each.
    Partitions(&'a [Partition<'a>]),
}

impl<'a> Shape<'a> {
    /// Every chunk has `slices` slices, of one byte each, in each of `rounds` rounds.
    #[must_use]
    pub fn uniform(rounds: usize, slices: usize, capacity: usize) -> Self {
        Self { capacity, slicing: Slicing::Uniform { rounds, slices } }
    }

    /// The shape of walking `partitions`: one for all ranks, or one for each.
    #[must_use]
    pub fn of(partitions: &'a [Partition<'a>], capacity: usize) -> Self {
        Self { capacity, slicing: Slicing::Partitions(partitions) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// True if the number of partitions suits `size` ranks.
    pub(super) fn fits(&self, size: usize) -> bool {
        match self.slicing {
            Slicing::Uniform { .. } => true,
            Slicing::Partitions(all) => all.len() == 1 || all.len() == size,
        }
    }

    fn of_rank(&self, rank: u32) -> Option<&'a Partition<'a>> {
        match self.slicing {
            Slicing::Uniform { .. } => None,
            Slicing::Partitions([all]) => Some(all),
            Slicing::Partitions(each) => each.get(rank as usize),
        }
    }

    pub(super) fn rounds(&self, rank: u32) -> usize {
        match self.slicing {
            Slicing::Uniform { rounds, .. } => rounds,
            Slicing::Partitions(_) => self.of_rank(rank).map_or(0, Partition::rounds),
        }
    }

    /// Slices of one round's piece of a chunk, at most.
    pub(super) fn most_slices(&self, rank: u32) -> usize {
        match self.slicing {
            Slicing::Uniform { slices, .. } => slices,
            Slicing::Partitions(_) => self.of_rank(rank).map_or(0, Partition::slices_per_round),
        }
    }

    /// Slices of one round's piece of a chunk.
    pub(super) fn slices(&self, rank: u32, round: usize, place: Place) -> usize {
        match (self.slicing, self.of_rank(rank)) {
            (Slicing::Uniform { slices, .. }, _) => slices,
            (_, Some(own)) => own.slices(round, own.piece(round, place).len()).count(),
            (_, None) => 0,
        }
    }

    /// Bytes of one slice of the piece; 0 if there is no such slice.
    pub(super) fn bytes(&self, rank: u32, round: usize, place: Place, slice: usize) -> usize {
        match (self.slicing, self.of_rank(rank)) {
            (Slicing::Uniform { .. }, _) => 1,
            (_, Some(own)) => own
                .slices(round, own.piece(round, place).len())
                .nth(slice)
                .map_or(0, |part| part.len()),
            (_, None) => 0,
        }
    }

    /// Bytes of a chunk, over all rounds; 0 for all chunks of a uniform shape.
    pub(super) fn chunk(&self, rank: u32, place: Place) -> usize {
        self.of_rank(rank).map_or(0, |own| own.bytes(place))
    }
}
