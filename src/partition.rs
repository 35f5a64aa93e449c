//! Bytes -> rounds -> chunks -> slices: the only place that does this arithmetic.
//! May touch: nothing. Pure. Laws: the slices of all rounds and chunks tile the buffer exactly
//! once, in whole elements; a round of one chunk never has more slices than half a link holds.
//!
//! A buffer is cut into `chunks` (one per rank in most collectives). Each round handles one piece
//! of every chunk, at most `slices_per_round` slices long, and a slice fills one slot of a link.

use core::ops::Range;

/// Chunks start at multiples of this many bytes where their size is free.
const LINE: usize = 64;

/// How slots are used: what all links of a communicator agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotShape {
    /// Bytes of one slot; a multiple of 64.
    pub bytes: usize,
    /// Slots of a link.
    pub capacity: usize,
}

impl SlotShape {
    /// The capacity law: fused steps need one slot more than a round's slices, and two rounds'
    /// worth lets one be filled while the other is emptied.
    #[must_use]
    pub const fn slices_per_round(self) -> usize {
        let half = self.capacity / 2;
        if half == 0 { 1 } else { half }
    }
}

/// Bytes of whole cache lines that are whole elements as well.
const fn lines(size: usize) -> usize {
    let common = size.trailing_zeros();
    LINE * (size >> if common < 6 { common } else { 6 })
}

/// How one buffer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    total: usize,
    /// Bytes of every chunk but the last ones, which may be shorter or empty.
    chunk: usize,
    slice: usize,
    /// Bytes of a chunk that one round handles.
    piece: usize,
    rounds: usize,
}

impl Partition {
    /// `count` elements of `size` bytes in `chunks` chunks of nearly equal length, each a multiple
    /// of a cache line but the last ones. No chunk is shorter than `least` bytes while a later one
    /// has any: what a message costs is not spent on a few bytes.
    #[must_use]
    pub fn even(count: usize, size: usize, chunks: usize, least: usize, slots: SlotShape) -> Self {
        let total = count * size;
        let chunk = total.div_ceil(chunks).max(least).next_multiple_of(lines(size));
        Self::new(total, chunk, slots)
    }

    /// `chunks` chunks of exactly `count` elements of `size` bytes each.
    #[must_use]
    pub fn exact(count: usize, size: usize, chunks: usize, slots: SlotShape) -> Self {
        Self::new(count * size * chunks, count * size, slots)
    }

    fn new(total: usize, chunk: usize, slots: SlotShape) -> Self {
        let piece = slots.bytes * slots.slices_per_round();
        let longest = chunk.min(total);
        Self { total, chunk, slice: slots.bytes, piece, rounds: longest.div_ceil(piece) }
    }

    /// Rounds to walk; 0 for an empty buffer.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Bytes of `chunk` that `round` handles; empty where the chunk is shorter than others.
    #[must_use]
    pub fn piece(&self, round: usize, chunk: u32) -> Range<usize> {
        let chunk = chunk as usize;
        let start = (self.chunk * chunk).min(self.total);
        let end = (start + self.chunk).min(self.total);
        let from = (start + self.piece * round).min(end);
        from..(from + self.piece).min(end)
    }

    /// The slices of a piece, in order; none for an empty piece.
    pub fn slices(&self, piece: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let slice = self.slice;
        let Range { start: mut from, end } = piece;
        // By hand: `step_by` divides, which shows on small messages.
        core::iter::from_fn(move || {
            let next = from..(from + slice).min(end);
            from = next.end;
            (!next.is_empty()).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Partition, SlotShape};

    #[test]
    fn slices_tile_the_buffer_in_whole_elements() {
        for slots in [(64, 1), (64, 2), (128, 5), (192, 16)] {
            let slots = SlotShape { bytes: slots.0, capacity: slots.1 };
            for chunks in 1..=9 {
                for count in [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097] {
                    for size in [1, 2, 4, 8] {
                        for least in [0, 1, 200] {
                            let even = Partition::even(count, size, chunks, least, slots);
                            tile(even, chunks, size, slots);
                        }
                        tile(Partition::exact(count, size, chunks, slots), chunks, size, slots);
                    }
                }
            }
        }
    }

    fn tile(p: Partition, chunks: usize, size: usize, slots: SlotShape) {
        let mut seen = vec![0u8; p.total];
        for round in 0..p.rounds() {
            for chunk in 0..chunks {
                let mut slices = 0;
                for slice in p.slices(p.piece(round, chunk as u32)) {
                    assert!(slice.len() <= slots.bytes && !slice.is_empty());
                    assert_eq!(slice.start % size, 0);
                    assert_eq!(slice.len() % size, 0);
                    seen[slice].iter_mut().for_each(|byte| *byte += 1);
                    slices += 1;
                }
                assert!(slices <= slots.slices_per_round());
            }
        }
        assert!(seen.iter().all(|&times| times == 1));
    }

    /// Elements of the caller's making have any size; slots then hold whole ones.
    #[test]
    fn elements_of_odd_sizes_stay_whole() {
        for (size, bytes) in [(24, 48), (3, 63), (96, 96), (4096, 8192), (100, 200)] {
            let slots = SlotShape { bytes, capacity: 4 };
            for count in [0, 1, 2, 7, 64, 1001] {
                for chunks in 1..=5 {
                    tile(Partition::even(count, size, chunks, 200, slots), chunks, size, slots);
                    tile(Partition::exact(count, size, chunks, slots), chunks, size, slots);
                }
            }
        }
    }

    #[test]
    fn an_exact_chunk_is_the_ranks_own() {
        let p = Partition::exact(10, 4, 3, SlotShape { bytes: 64, capacity: 4 });
        assert_eq!(p.piece(0, 2), 80..120);
    }
}
