//! How much there is to walk, counted in slices. May touch: partition, schedule. Law: it counts
//! what `partition` cuts and cuts nothing itself.

use std::iter;

use super::network::At;
use crate::partition::Partition;
use crate::schedule::Step;

/// How much is walked: the slices of every chunk in every round, and the slots of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    capacity: usize,
    chunks: usize,
    /// Where the slices of a round's chunk begin among all slices; one more at the end.
    starts: Vec<usize>,
}

impl Shape {
    /// Every one of `chunks` chunks has the same number of slices in each of `rounds` rounds.
    #[must_use]
    pub fn uniform(rounds: usize, chunks: u32, slices: usize, capacity: usize) -> Self {
        let chunks = chunks as usize;
        Self { capacity, chunks, starts: (0..=rounds * chunks).map(|at| at * slices).collect() }
    }

    /// What walking `partition`, cut into `chunks`, amounts to.
    #[must_use]
    pub fn of(partition: &Partition, chunks: u32, capacity: usize) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for round in 0..partition.rounds() {
            for chunk in 0..chunks {
                end += partition.slices(partition.piece(round, chunk)).count();
                starts.push(end);
            }
        }
        Self { capacity, chunks: chunks as usize, starts }
    }

    /// Slots of every link.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// How many slices a rank's buffer has.
    pub(super) fn slices(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// To which chunk each slice of a rank's buffer belongs.
    pub(super) fn chunk_of_slices(&self) -> impl Iterator<Item = u32> {
        self.starts.windows(2).enumerate().flat_map(|(piece, ends)| {
            iter::repeat_n((piece % self.chunks) as u32, ends[1] - ends[0])
        })
    }

    /// The number of a slice among all of a rank's buffer.
    pub(super) fn index(&self, at: &At, step: &Step) -> usize {
        self.starts[self.piece(at, step)] + at.slice
    }

    fn piece(&self, at: &At, step: &Step) -> usize {
        at.round * self.chunks + step.chunk as usize
    }

    /// Is there such a slice?
    pub(super) fn holds(&self, at: &At, step: &Step) -> bool {
        let piece = self.piece(at, step);
        self.starts[piece] + at.slice < self.starts[piece + 1]
    }

    pub(super) fn rounds(&self) -> usize {
        (self.starts.len() - 1).checked_div(self.chunks).unwrap_or(0)
    }
}
