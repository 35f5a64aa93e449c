//! The layout of the region of a host: first the words of all ranks, and in a subgroup's memory the
//! words of its links, which need fewer pages there; then the lists of releases, the heads of all
//! slots, slot by slot with the ranks beside each other, and each rank's slots and result slots.

use std::num::NonZeroUsize;
use std::ops::Range;

use super::super::pages::page_size;
use super::file::ReleaseList;
use super::words::{RankWords, SlotHead};
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
/// A payload of at least so many bytes that is shorter than its slot begins at another place each
/// time the slot is written, so that the lines it is stored to have left its readers' own caches,
/// from which each store would take them: 64 KiB between two near CPUs took 9.5 us at one place and
/// 5.8 at changing ones.
const MIN_ROTATED_BYTES: usize = 1 << 10;
/// The most places of a payload in a slot. Each place needs memory.
const MOST_TURNS: usize = 16;
/// The most ranks whose payloads change their place. The stages of more would leave the last-level
/// cache too: 16 KiB among 16 ranks on two CPUs took 78 us at one place, 85-175 at changing ones.
const MOST_ROTATED_RANKS: usize = 4;

/// Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) size: usize,
    pub(super) shape: StageShape,
    releases: usize,
    heads: usize,
    slots: usize,
    results: usize,
    /// Bytes of a result slot: a rank's part of a block.
    result: usize,
    len: usize,
}

/// Slots of one kind, of all ranks.
struct Slots {
    /// The offset of the first one.
    start: usize,
    /// Bytes of each.
    room: usize,
}

impl Layout {
    pub(super) fn of(size: usize) -> Self {
        Self::with_links(size, 0)
    }

    /// The layout with `link_bytes` bytes for the words of links.
    pub(super) fn with_links(size: usize, link_bytes: usize) -> Self {
        let shape = StageShape::of(size);
        let pages = |bytes: usize| bytes.next_multiple_of(page_size());
        // Parts are whole lines, or whole elements where elements are longer.
        let result = (shape.block.div_ceil(size) + LARGEST).next_multiple_of(LINE);
        let releases = (Self::link_words_at(size) + link_bytes).next_multiple_of(LINE);
        let heads = pages(releases + size * size_of::<ReleaseList>());
        let slots = pages(heads + size * shape.depth * HEAD);
        let results = pages(slots + size * shape.depth * (shape.block + GAP));
        let len = pages(results + size * shape.depth * (result + GAP));
        Self { size, shape, releases, heads, slots, results, result, len }
    }

    /// The offset of the words of links.
    pub(super) fn link_words_at(size: usize) -> usize {
        size * size_of::<RankWords>()
    }

    pub(super) fn len(&self) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(self.len - 1)
    }

    fn slot_number(&self, block: u64) -> usize {
        // A stage has a power of two of slots.
        block as usize & (self.shape.depth - 1)
    }

    pub(super) fn words(&self, peer: usize) -> usize {
        assert!(peer < self.size);
        peer * size_of::<RankWords>()
    }

    /// The list of the rank's latest releases.
    pub(super) fn releases(&self, peer: usize) -> usize {
        assert!(peer < self.size);
        self.releases + peer * size_of::<ReleaseList>()
    }

    pub(super) fn head(&self, peer: usize, block: u64) -> usize {
        assert!(peer < self.size);
        self.heads + (self.slot_number(block) * self.size + peer) * HEAD
    }

    /// Where a slot has `range` of a payload of `len` bytes.
    pub(super) fn slot(&self, peer: usize, block: u64, len: usize, range: &Range<usize>) -> usize {
        self.place(&Slots { start: self.slots, room: self.shape.block }, (peer, block), len, range)
    }

    /// Where a result slot has `range` of a part of `len` bytes.
    pub(super) fn result(
        &self,
        peer: usize,
        block: u64,
        len: usize,
        range: &Range<usize>,
    ) -> usize {
        self.place(&Slots { start: self.results, room: self.result }, (peer, block), len, range)
    }

    /// Where the slot of a block has `range` of `len` bytes.
    fn place(
        &self,
        &Slots { start, room }: &Slots,
        (peer, block): (usize, u64),
        len: usize,
        range: &Range<usize>,
    ) -> usize {
        assert!(range.start <= range.end && range.end <= len && len <= room && peer < self.size);
        let depth = self.shape.depth;
        let places = if self.is_rotated(len) {
            self.window(len).min(room) / len.next_power_of_two()
        } else {
            1
        };
        let turn = block as usize / depth % places.max(1);
        let number = peer * depth + self.slot_number(block);
        start + number * (room + GAP) + turn * len.next_power_of_two() + range.start
    }
}

impl Layout {
    /// True if a payload of `len` bytes changes its place.
    fn is_rotated(&self, len: usize) -> bool {
        len >= MIN_ROTATED_BYTES && self.size <= MOST_ROTATED_RANKS
    }

    /// The longest payload of the size class of `len` bytes: all payloads of a class need the same
    /// memory.
    pub(super) fn size_class(&self, len: usize) -> usize {
        let longest = len.next_power_of_two().min(self.shape.block);
        let starts_rotation = self.is_rotated(longest) && !self.is_rotated(len);
        if starts_rotation { MIN_ROTATED_BYTES - 1 } else { longest }
    }

    /// The bytes of a slot in which a payload of `len` bytes changes its place.
    fn window(&self, len: usize) -> usize {
        if !self.is_rotated(len) {
            return len;
        }
        (len.next_power_of_two() * MOST_TURNS).min(self.shape.block)
    }

    /// The bytes of the slots and result slots of `peer` that payloads up to this long lie in.
    pub(super) fn stage(
        &self,
        peer: usize,
        longest: usize,
    ) -> impl Iterator<Item = Range<usize>> + Clone {
        let len = self.window(longest);
        let number = peer * self.shape.depth..(peer + 1) * self.shape.depth;
        [(self.slots, self.shape.block), (self.results, self.result)].into_iter().flat_map(
            move |(start, room)| {
                let slot = move |at| start + at * (room + GAP);
                number.clone().map(move |at| slot(at)..slot(at) + len.min(room))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_payload_lies_in_its_slot_on_whole_lines_and_few_ranks_change_its_place() {
        for size in [2, 3, 4, 8, 64] {
            let layout = Layout::of(size);
            let StageShape { block: longest, depth } = layout.shape;
            for len in [0, 105, 1000, 1024, 3000, 16 << 10, longest / 2, longest - 1, longest] {
                let start = |block: u64| layout.slot(size - 1, block, len, &(0..len));
                for block in 0..300 {
                    let slot = layout.slot(size - 1, block, longest, &(0..longest));
                    assert_eq!((start(block) - slot) % LINE, 0);
                    let class = layout.size_class(len);
                    let mut stage = layout.stage(size - 1, class);
                    let has = |bytes: Range<usize>| {
                        bytes.start <= start(block) && start(block) + len <= bytes.end
                    };
                    assert!(len <= class && class <= longest && stage.any(has), "{len} of {size}");
                    assert!(start(block) >= slot && start(block) + len <= slot + longest);
                }
                let changes = start(0) != start(depth as u64);
                assert_eq!(changes, size <= 4 && (1024..=longest / 2).contains(&len), "{len}");
            }
            let part = layout.result;
            let last = layout.result(size - 1, 299, part, &(0..part));
            assert!(last + part <= layout.len().get());
        }
    }
}
