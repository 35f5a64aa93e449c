//! Where things are in the region of a host: first the words of all ranks, then the heads of all
//! slots, slot by slot with the ranks beside each other, then each rank's slots and result slots.

use std::num::NonZeroUsize;

use super::super::pages::page_size;
use super::{RankWords, SlotHead};
use crate::element::LARGEST;
use crate::schedule::StageShape;

const LINE: usize = 64;
/// Bytes of a slot's head, with the payload that lies in it: two lines, which CPUs fetch together.
pub(super) const HEAD: usize = 128;
/// The longest payload that lies in the head, behind its words.
pub(super) const INLINE: usize = HEAD - size_of::<SlotHead>();
/// Bytes between slots. Equal offsets of two slots then differ in their lower 12 bits: they are in
/// other sets of a cache, and no load waits for a store to the other slot.
const GAP: usize = 5 * LINE;

/// Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) size: usize,
    pub(super) shape: StageShape,
    heads: usize,
    slots: usize,
    results: usize,
    /// Bytes of a result slot: a rank's part of a block.
    pub(super) result: usize,
    len: usize,
}

impl Layout {
    pub(super) fn of(size: usize) -> Self {
        let shape = StageShape::of(size);
        let pages = |bytes: usize| bytes.next_multiple_of(page_size());
        // Parts are whole lines, or whole elements where elements are longer.
        let result = (shape.block.div_ceil(size) + LARGEST).next_multiple_of(LINE);
        let heads = pages(size * size_of::<RankWords>());
        let slots = pages(heads + size * shape.depth * HEAD);
        let results = pages(slots + size * shape.depth * (shape.block + GAP));
        let len = pages(results + size * shape.depth * (result + GAP));
        Self { size, shape, heads, slots, results, result, len }
    }

    pub(super) fn len(&self) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(self.len - 1)
    }

    fn slot_number(&self, block: u64) -> usize {
        // A stage has a power of two of slots.
        block as usize & (self.shape.depth - 1)
    }

    pub(super) fn words(&self, rank: usize) -> usize {
        assert!(rank < self.size);
        rank * size_of::<RankWords>()
    }

    pub(super) fn head(&self, rank: usize, block: u64) -> usize {
        assert!(rank < self.size);
        self.heads + (self.slot_number(block) * self.size + rank) * HEAD
    }

    pub(super) fn slot(&self, rank: usize, block: u64) -> usize {
        assert!(rank < self.size);
        let number = rank * self.shape.depth + self.slot_number(block);
        self.slots + number * (self.shape.block + GAP)
    }

    pub(super) fn result(&self, rank: usize, block: u64) -> usize {
        assert!(rank < self.size);
        let number = rank * self.shape.depth + self.slot_number(block);
        self.results + number * (self.result + GAP)
    }
}
