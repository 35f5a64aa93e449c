//! The partition of a buffer: buffer -> chunks -> pieces -> slices, computed nowhere else.
//!
//! Input and output are cut into chunks (one per rank in most collectives). Each round handles one
//! piece of every chunk, at most `slices_per_round` slices long, and a slice fills one slot of a
//! link. A chunk of the scratch is one piece long and is reused in every round. Message size has no
//! limit but memory, since a longer buffer only has more rounds. Slices are the segments of a
//! pipeline (pipelining): a fused step forwards one slice while the next is on its way.
//! Laws: the slices of all rounds and chunks tile a buffer exactly once, in whole elements; a round
//! has at most half as many slices of a chunk as a link has slots.

use core::mem::take;
use core::ops::Range;

use crate::schedule::{Place, Space};

/// Chunks start at multiples of a cache line, where their size is free.
const LINE: usize = 64;

/// The slots of a link: their size and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotShape {
    /// Bytes of one slot; a multiple of 64.
    pub bytes: usize,
    /// Number of slots of a link.
    pub capacity: usize,
}

impl SlotShape {
    /// These slots, of which each holds whole elements of `size` bytes.
    #[must_use]
    pub(crate) fn for_elements(self, size: usize) -> Self {
        Self { bytes: self.bytes / size * size, ..self }
    }

    /// Slices of a chunk in one round: half of the slots, so that the slots of one round are filled
    /// while those of the round before are emptied (double buffering); 1 for a link of one slot.
    #[must_use]
    pub const fn slices_per_round(self) -> usize {
        let half = self.capacity / 2;
        if half == 0 { 1 } else { half }
    }

    /// The shape by which to cut if `window` chunks share a link: its `slices_per_round` is the
    /// number of slots for each chunk. `None` if the link has fewer slots than chunks.
    #[must_use]
    pub const fn shared(self, window: usize) -> Option<Self> {
        match window {
            0 | 1 => Some(self),
            _ if self.capacity < window => None,
            _ => Some(Self { capacity: 2 * (self.capacity / window), ..self }),
        }
    }
}

/// Bytes of the shortest run of whole cache lines that is also whole elements of `size` bytes.
const fn line_multiple(size: usize) -> usize {
    let common = size.trailing_zeros();
    LINE * (size >> if common < 6 { common } else { 6 })
}

/// The chunks of one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut<'a> {
    /// Consecutive chunks of this length, up to `total` bytes.
    Even { chunk: usize, total: usize },
    /// A range of bytes per chunk.
    Table(&'a [Range<usize>]),
}

impl Cut<'_> {
    #[inline]
    fn chunk(&self, chunk: u32) -> Range<usize> {
        match self {
            Self::Even { chunk: len, total } => {
                let start = (len * chunk as usize).min(*total);
                start..(start + len).min(*total)
            }
            Self::Table(ranges) => ranges[chunk as usize].clone(),
        }
    }

    /// Bytes of the longest chunk.
    fn longest(&self) -> usize {
        match self {
            Self::Even { chunk, total } => *chunk.min(total),
            Self::Table(ranges) => ranges.iter().map(Range::len).max().unwrap_or(0),
        }
    }
}

/// The bits of a fingerprint that hold the length of a chunk in an uneven call.
pub const LENGTH_BITS: Range<u32> = 1..34;

/// The partition of one rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition<'a> {
    input: Cut<'a>,
    output: Cut<'a>,
    /// For each chunk of the scratch, the chunk of input or output that it is as long as.
    scratch: &'a [Place],
    slice: usize,
    /// Bytes of a chunk that one round handles, at most.
    piece: usize,
    rounds: usize,
}

impl<'a> Partition<'a> {
    /// Cuts input and output alike: `count` elements of `size` bytes into `chunks` chunks of nearly
    /// equal length, each a multiple of a cache line except at the end. A chunk has at least
    /// `least` bytes, or the chunks after it are empty: few bytes are not worth a message.
    #[must_use]
    pub fn even(count: usize, size: usize, chunks: usize, least: usize, slots: SlotShape) -> Self {
        let total = count * size;
        let chunk = total.div_ceil(chunks).max(least).next_multiple_of(line_multiple(size));
        let cut = Cut::Even { chunk, total };
        Self::new(cut, cut, slots)
    }

    /// Any number of consecutive chunks of exactly `count` elements of `size` bytes each.
    #[must_use]
    pub fn exact(count: usize, size: usize, slots: SlotShape) -> Self {
        let cut = Cut::Even { chunk: count * size, total: usize::MAX };
        Self::new(cut, cut, slots)
    }

    /// Chunks at these ranges of bytes of the input and of the output.
    #[must_use]
    pub fn table(input: &'a [Range<usize>], output: &'a [Range<usize>], slots: SlotShape) -> Self {
        Self::new(Cut::Table(input), Cut::Table(output), slots)
    }

    fn new(input: Cut<'a>, output: Cut<'a>, slots: SlotShape) -> Self {
        let longest = input.longest().max(output.longest());
        let piece = (slots.bytes * slots.slices_per_round()).min(longest.next_multiple_of(LINE));
        let rounds = if longest == 0 { 0 } else { longest.div_ceil(piece) };
        Self { input, output, scratch: &[], slice: slots.bytes, piece, rounds }
    }

    /// The first `total` bytes, cut as the whole: other chunks are shorter, or empty.
    #[must_use]
    pub(crate) fn clipped(self, total: usize) -> Self {
        let clip = |cut| match cut {
            Cut::Even { chunk, total: whole } => Cut::Even { chunk, total: total.min(whole) },
            table @ Cut::Table(_) => table,
        };
        Self { input: clip(self.input), output: clip(self.output), ..self }
    }

    /// Adds the scratch of a schedule.
    #[must_use]
    pub fn with_scratch(self, scratch: &'a [Place]) -> Self {
        Self { scratch, ..self }
    }

    /// True if the caller gave the length of every chunk.
    #[must_use]
    pub fn is_uneven(&self) -> bool {
        matches!(self.input, Cut::Table(_))
    }

    /// The bits that an uneven call's fingerprint has for one chunk: its length, in the bits of
    /// `LENGTH_BITS`. 0 for other calls.
    #[inline]
    #[must_use]
    pub fn chunk_digest(&self, place: Place) -> u64 {
        if !self.is_uneven() {
            return 0;
        }
        let (bytes, bits) = (self.bytes(place) as u64, LENGTH_BITS.end - LENGTH_BITS.start);
        let length = (bytes ^ bytes >> bits) & ((1 << bits) - 1);
        length << LENGTH_BITS.start
    }

    /// Number of rounds. An empty buffer has 0, but an uneven call has at least 1.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds.max(usize::from(self.is_uneven()))
    }

    /// Bytes of the scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.len() * self.piece
    }

    /// Slices of a chunk in one round, at most.
    #[must_use]
    pub fn slices_per_round(&self) -> usize {
        self.piece.div_ceil(self.slice).max(usize::from(self.is_uneven()))
    }

    /// Bytes of a slice, at most.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        self.slice.min(self.piece)
    }

    /// The bytes of the chunk at `place`, over all rounds; for the scratch, of the chunk like it.
    #[inline]
    fn chunk(&self, place: Place) -> Range<usize> {
        match place.space {
            Space::Input => self.input.chunk(place.chunk),
            Space::Output => self.output.chunk(place.chunk),
            Space::Scratch => match self.scratch[place.chunk as usize] {
                Place { space: Space::Input, chunk } => self.input.chunk(chunk),
                Place { chunk, .. } => self.output.chunk(chunk),
            },
        }
    }

    /// Length in bytes of the chunk at `place`, over all rounds.
    ///
    /// # Panics
    /// If a table has no such chunk.
    #[must_use]
    pub fn bytes(&self, place: Place) -> usize {
        self.chunk(place).len()
    }

    /// The bytes of the chunk at `place` that `round` handles; empty if the chunk ends before.
    ///
    /// # Panics
    /// If a table has no such chunk.
    #[inline]
    #[must_use]
    pub fn piece(&self, round: usize, place: Place) -> Range<usize> {
        let piece = self.piece_of(round, self.chunk(place));
        if place.space == Space::Scratch {
            let at = self.piece * place.chunk as usize;
            return at..at + piece.len();
        }
        piece
    }

    /// The bytes of a chunk that `round` handles.
    #[inline]
    fn piece_of(&self, round: usize, chunk: Range<usize>) -> Range<usize> {
        let from = (chunk.start + self.piece * round).min(chunk.end);
        from..(from + self.piece).min(chunk.end)
    }

    /// The slice that begins `done` bytes into the chunk at `place`, relative to the chunk; empty
    /// at its end. These are the slices of the chunk's pieces, whatever the rounds.
    ///
    /// # Panics
    /// If a table has no such chunk.
    #[inline]
    #[must_use]
    pub fn slice(&self, place: Place, done: usize) -> Range<usize> {
        done..(done + self.slice_bytes()).min(self.bytes(place))
    }

    /// The slices of a piece of `len` bytes in this round, relative to the piece. An empty piece
    /// has none; but an empty chunk of an uneven call has one empty slice, since the other end may
    /// expect another length.
    #[inline]
    pub fn slices(&self, round: usize, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let slice = self.slice;
        let mut has_empty_slice = len == 0 && round == 0 && self.is_uneven();
        let mut from = 0;
        // A loop by hand: `step_by` divides, which shows in the latency of small messages.
        core::iter::from_fn(move || {
            let next = from..(from + slice).min(len);
            from = next.end;
            (!next.is_empty() || take(&mut has_empty_slice)).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Partition, SlotShape};
    use crate::schedule::Place;

    #[test]
    fn slices_tile_the_buffer_in_whole_elements() {
        for slots in [(64, 1), (64, 2), (128, 5), (192, 16)] {
            let slots = SlotShape { bytes: slots.0, capacity: slots.1 };
            for chunks in 1..=9 {
                for count in [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097] {
                    for size in [1, 2, 4, 8] {
                        for least in [0, 1, 200] {
                            let even = Partition::even(count, size, chunks, least, slots);
                            tile(even, count * size, chunks, size, slots);
                        }
                        let exact = Partition::exact(count, size, slots);
                        tile(exact, chunks * count * size, chunks, size, slots);
                        // Each chunk is one element longer than the one before.
                        let table: Vec<_> = (0..chunks)
                            .scan(0, |end, chunk| {
                                let start = *end;
                                *end += (count + chunk) * size;
                                Some(start..*end)
                            })
                            .collect();
                        let total = table.last().map_or(0, |range| range.end);
                        let table = Partition::table(&table, &table, slots);
                        tile(table, total, chunks, size, slots);
                    }
                }
            }
        }
    }

    fn tile(p: Partition<'_>, total: usize, chunks: usize, size: usize, slots: SlotShape) {
        let chunks = chunks as u32;
        let like: Vec<Place> = (0..chunks).map(Place::output).collect();
        let p = p.with_scratch(&like);
        let mut seen = vec![0u8; total];
        let mut at = vec![0; chunks as usize];
        for round in 0..p.rounds() {
            let mut end = 0;
            for chunk in 0..chunks {
                let piece = p.piece(round, Place::output(chunk));
                assert_eq!(piece, p.piece(round, Place::input(chunk)));
                let scratch = p.piece(round, Place::scratch(chunk));
                assert_eq!(scratch.len(), piece.len());
                assert!(end <= scratch.start && scratch.end <= p.scratch_bytes());
                end = scratch.end;
                let mut slices = 0;
                for slice in p.slices(round, piece.len()) {
                    assert!(slice.len() <= slots.bytes);
                    assert!(
                        !slice.is_empty() || p.is_uneven() && p.bytes(Place::input(chunk)) == 0
                    );
                    let done = &mut at[chunk as usize];
                    let next = p.slice(Place::input(chunk), *done);
                    assert_eq!(next, *done..*done + slice.len());
                    *done = next.end;
                    assert_eq!((piece.start + slice.start) % size, 0);
                    assert_eq!(slice.len() % size, 0);
                    let slice = piece.start + slice.start..piece.start + slice.end;
                    seen[slice].iter_mut().for_each(|byte| *byte += 1);
                    slices += 1;
                }
                assert!(slices <= slots.slices_per_round().min(p.slices_per_round()));
            }
        }
        assert!(seen.iter().all(|&times| times == 1));
        assert!((0..).zip(at).all(|(chunk, end)| p.slice(Place::input(chunk), end).is_empty()));
    }

    /// Elements of the caller's making have any size; slots then hold whole ones.
    #[test]
    fn elements_of_odd_sizes_stay_whole() {
        for (size, bytes) in [(24, 48), (3, 63), (96, 96), (4096, 8192), (100, 200)] {
            let slots = SlotShape { bytes, capacity: 4 };
            for count in [0, 1, 2, 7, 64, 1001] {
                for chunks in 1..=5 {
                    let even = Partition::even(count, size, chunks, 200, slots);
                    tile(even, count * size, chunks, size, slots);
                    let exact = Partition::exact(count, size, slots);
                    tile(exact, chunks * count * size, chunks, size, slots);
                }
            }
        }
    }

    #[test]
    fn an_exact_chunk_is_the_ranks_own() {
        let p = Partition::exact(10, 4, SlotShape { bytes: 64, capacity: 4 });
        assert_eq!(p.piece(0, Place::output(2)), 80..120);
    }
}
