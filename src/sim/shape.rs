//! How much there is to walk, counted in slices. May touch: partition, schedule. Law: it counts
//! what `partition` cuts and cuts nothing itself. Chunks of the scratch are asked for by the chunk
//! that each is as long as.

use crate::partition::Partition;
use crate::schedule::Place;

/// How much is walked: the slices of every chunk in every round, and the slots of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    capacity: usize,
    cut: Cut<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut<'a> {
    Uniform {
        rounds: usize,
        slices: usize,
    },
    /// One for all ranks, or each rank's own.
    Partitions(&'a [Partition<'a>]),
}

impl<'a> Shape<'a> {
    /// Every chunk has the same number of slices, of one byte each, in each of `rounds` rounds.
    #[must_use]
    pub fn uniform(rounds: usize, slices: usize, capacity: usize) -> Self {
        Self { capacity, cut: Cut::Uniform { rounds, slices } }
    }

    /// What walking `partitions` amounts to: one that is the same for all ranks, or one of each.
    #[must_use]
    pub fn of(partitions: &'a [Partition<'a>], capacity: usize) -> Self {
        Self { capacity, cut: Cut::Partitions(partitions) }
    }

    /// Slots of every link.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Are there as many partitions as `size` ranks need?
    pub(super) fn fits(&self, size: usize) -> bool {
        match self.cut {
            Cut::Uniform { .. } => true,
            Cut::Partitions(all) => all.len() == 1 || all.len() == size,
        }
    }

    fn of_rank(&self, rank: u32) -> Option<&'a Partition<'a>> {
        match self.cut {
            Cut::Uniform { .. } => None,
            Cut::Partitions([all]) => Some(all),
            Cut::Partitions(each) => each.get(rank as usize),
        }
    }

    pub(super) fn rounds(&self, rank: u32) -> usize {
        match self.cut {
            Cut::Uniform { rounds, .. } => rounds,
            Cut::Partitions(_) => self.of_rank(rank).map_or(0, Partition::rounds),
        }
    }

    /// Slices of one round's piece of a chunk, at most.
    pub(super) fn most_slices(&self, rank: u32) -> usize {
        match self.cut {
            Cut::Uniform { slices, .. } => slices,
            Cut::Partitions(_) => self.of_rank(rank).map_or(0, Partition::slices_per_round),
        }
    }

    /// Slices of one round's piece of a chunk.
    pub(super) fn slices(&self, rank: u32, round: usize, place: Place) -> usize {
        match (self.cut, self.of_rank(rank)) {
            (Cut::Uniform { slices, .. }, _) => slices,
            (_, Some(own)) => own.slices(round, own.piece(round, place).len()).count(),
            (_, None) => 0,
        }
    }

    /// Bytes of one slice of it; none if there is no such slice.
    pub(super) fn bytes(&self, rank: u32, round: usize, place: Place, slice: usize) -> usize {
        match (self.cut, self.of_rank(rank)) {
            (Cut::Uniform { .. }, _) => 1,
            (_, Some(own)) => own
                .slices(round, own.piece(round, place).len())
                .nth(slice)
                .map_or(0, |part| part.len()),
            (_, None) => 0,
        }
    }

    /// Bytes of a chunk, over all rounds; equal where nothing is cut.
    pub(super) fn chunk(&self, rank: u32, place: Place) -> usize {
        self.of_rank(rank).map_or(0, |own| own.bytes(place))
    }
}
