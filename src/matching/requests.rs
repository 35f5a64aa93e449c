//! The requests of a rank, by number: a table whose numbers are used again, each time with another
//! generation, so that a late packet about an ended request meets no other one.

use slab::Slab;

/// The number of a request of one rank: its index in the lower half of 24 bits, its generation in
/// the upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u32);

const INDEX_BITS: u32 = 12;
const INDEX: u32 = (1 << INDEX_BITS) - 1;

/// The most sends, and the most receives, that a rank may have pending.
pub const MAX_PENDING: usize = 1 << INDEX_BITS;

/// The requests of one kind.
#[derive(Debug)]
pub(super) struct Requests<T> {
    entries: Slab<(u32, T)>,
    generation: u32,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { entries: Slab::new(), generation: 0 }
    }
}

impl<T> Requests<T> {
    /// Adds a request; `None` if there are as many as there may be.
    pub(super) fn add(&mut self, entry: T) -> Option<RequestId> {
        if self.len() == MAX_PENDING {
            return None;
        }
        self.generation = (self.generation + 1) & INDEX;
        let index = self.entries.insert((self.generation, entry));
        Some(RequestId(self.generation << INDEX_BITS | index as u32))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&T> {
        let (generation, entry) = self.entries.get((id.0 & INDEX) as usize)?;
        (*generation == id.0 >> INDEX_BITS).then_some(entry)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut((id.0 & INDEX) as usize)?;
        (*generation == id.0 >> INDEX_BITS).then_some(entry)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<T> {
        self.get(id)?;
        Some(self.entries.remove((id.0 & INDEX) as usize).1)
    }

    /// All requests, in no order that matters.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &T)> {
        let id =
            |(index, generation): (usize, u32)| RequestId(generation << INDEX_BITS | index as u32);
        self.entries
            .iter()
            .map(move |(index, (generation, entry))| (id((index, *generation)), entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, (_, entry))| entry)
    }
}
