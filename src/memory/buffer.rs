//! The buffer of a call: the input, the output and the scratch of one rank, addressed by byte
//! offsets. Input and output may lie in one memory, or in many.
//! Law: a view that a buffer lends lies inside one of its spaces.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

use super::{Dst, Src};
use crate::schedule::Space;

/// The memory that one rank's steps read and write: its input, its output and the scratch, each
/// addressed by byte offsets. For a call in place, input and output are parts of one memory.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// Start and length in bytes of each space, in the order of [`Space`]. The start is null for a
    /// space in several pieces.
    spaces: [(*mut u8, usize); 3],
    /// The pieces of the input and of the output, if there are several, and the offset in them at
    /// which the space begins.
    pieces: [(&'a [Piece], usize); 2],
    life: PhantomData<&'a mut u8>,
}

impl<'a> Buffer<'a> {
    /// One memory that is both input and output.
    #[must_use]
    pub fn in_place(bytes: &'a mut [u8]) -> Self {
        let all = 0..bytes.len();
        Self::in_one_memory(bytes, all.clone(), all)
    }

    /// Two parts of one memory, which may overlap.
    ///
    /// # Panics
    /// If a part exceeds the memory.
    #[must_use]
    pub fn in_one_memory(bytes: &'a mut [u8], input: Range<usize>, output: Range<usize>) -> Self {
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        let part = |part: Range<usize>| {
            assert!(part.start <= part.end && part.end <= len);
            (start.wrapping_add(part.start), part.len())
        };
        Self::of(part(input), part(output))
    }

    /// Separate memories: the call reads `input` and stores to `output`.
    #[must_use]
    pub fn out_of_place(input: &'a [u8], output: &'a mut [u8]) -> Self {
        let input = (input.as_ptr().cast_mut(), input.len());
        Self::of(input, (output.as_mut_ptr(), output.len()))
    }

    fn of(input: (*mut u8, usize), output: (*mut u8, usize)) -> Self {
        Self { spaces: [input, output, empty_space()], pieces: [(&[], 0); 2], life: PhantomData }
    }

    /// This buffer with a scratch, for data on its way to another rank.
    #[must_use]
    pub fn with_scratch<'b>(&'b self, scratch: &'b mut [u8]) -> Buffer<'b> {
        let [input, output, _] = self.spaces;
        let scratch = (scratch.as_mut_ptr(), scratch.len());
        Buffer { spaces: [input, output, scratch], pieces: self.pieces, life: PhantomData }
    }

    /// A buffer whose output is a part of this one's, and whose input is a part of one of its
    /// spaces.
    ///
    /// # Panics
    /// If a part exceeds its space: a bug of the caller.
    pub(crate) fn view(&self, input: (Space, Range<usize>), output: Range<usize>) -> Buffer<'_> {
        let part = |space: Space, range: Range<usize>| {
            let (start, len) = self.spaces[space as usize];
            assert!(range.start <= range.end && range.end <= len);
            let (pieces, base) = self.pieces[space as usize];
            if start.is_null() {
                ((start, range.len()), (pieces, base + range.start))
            } else {
                ((start.wrapping_add(range.start), range.len()), (pieces, base))
            }
        };
        let (input, read) = part(input.0, input.1);
        let (output, written) = part(Space::Output, output);
        Buffer { pieces: [read, written], ..Buffer::of(input, output) }
    }

    /// The addresses of a space; meaningless for a space in several pieces.
    #[inline]
    pub(crate) fn addresses(&self, space: Space) -> Range<usize> {
        let (start, len) = self.spaces[space as usize];
        start.addr()..start.addr() + len
    }

    /// True if the output shares no memory with the input. False for pieces, which may overlap.
    pub(crate) fn is_out_of_place(&self) -> bool {
        let [read, written] = [Space::Input, Space::Output].map(|space| self.addresses(space));
        let has_no_pieces = self.pieces.iter().all(|(list, _)| list.is_empty());
        has_no_pieces && (read.end <= written.start || written.end <= read.start)
    }

    /// Length of a space in bytes.
    #[must_use]
    pub fn len(&self, space: Space) -> usize {
        self.spaces[space as usize].1
    }

    /// The contiguous length: how many of the `len` bytes at `at` follow each other in memory.
    #[inline]
    #[must_use]
    pub fn contiguous_len(&self, space: Space, at: usize, len: usize) -> usize {
        match self.spaces[space as usize] {
            (start, _) if start.is_null() => len.min(self.piece(space, at).1),
            _ => len,
        }
    }

    /// The parts of `range`, each of which is contiguous in all of these spaces.
    pub(crate) fn pieces<const N: usize>(
        &self,
        spaces: [Space; N],
        range: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> {
        let mut from = range.start;
        std::iter::from_fn(move || {
            let start = from;
            let left = range.end.saturating_sub(start);
            if left > 0 {
                from +=
                    spaces.iter().fold(left, |len, &space| self.contiguous_len(space, start, len));
            }
            (left > 0).then_some(start..from)
        })
    }

    /// The address of a byte of a space in pieces, and the bytes left in its piece.
    fn piece(&self, space: Space, at: usize) -> (*mut u8, usize) {
        let (list, base) = self.pieces[space as usize];
        let at = base + at;
        let next = list.partition_point(|piece| piece.at <= at);
        let Piece { at: first, start, len } = list[next - 1];
        (start.wrapping_add(at - first), first + len - at)
    }

    /// The address of a range of a space.
    #[inline]
    fn locate(&self, space: Space, range: &Range<usize>) -> *mut u8 {
        let (start, len) = self.spaces[space as usize];
        assert!(range.start <= range.end && range.end <= len);
        if !start.is_null() {
            return start.wrapping_add(range.start);
        }
        if range.is_empty() {
            return empty_space().0;
        }
        let (start, left) = self.piece(space, range.start);
        assert!(range.len() <= left);
        start
    }

    /// The data at `range` of a space.
    ///
    /// # Panics
    /// If the range exceeds the space or spans several pieces: a bug of the caller.
    #[inline]
    #[must_use]
    pub fn src(&self, space: Space, range: Range<usize>) -> Src<'_> {
        // SAFETY: the range was just found to lie inside the space, which is borrowed for 'a.
        unsafe { Src::new(self.locate(space, &range), range.len()) }
    }

    /// The memory at `range` of a space, to store to.
    ///
    /// # Panics
    /// As [`Self::src`], or if the space is the input.
    #[inline]
    #[must_use]
    pub fn dst(&self, space: Space, range: Range<usize>) -> Dst<'_> {
        assert!(space != Space::Input);
        // SAFETY: the range was just found to lie inside a space that is borrowed exclusively
        // for 'a; views of it are raw pointers and may coincide with a `Src`.
        unsafe { Dst::new(self.locate(space, &range), range.len()) }
    }
}

fn empty_space() -> (*mut u8, usize) {
    (core::ptr::dangling_mut(), 0)
}

/// One of several memories that make up a space.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The offset of its first byte in the space.
    at: usize,
    start: *mut u8,
    /// Length in bytes, not 0.
    len: usize,
}

/// A list of memories that a call in place takes as one, in order.
#[derive(Debug, Default)]
pub struct Pieces<'a> {
    list: Vec<Piece>,
    life: PhantomData<&'a mut u8>,
}

// SAFETY: it is a list of `&mut [u8]`, which may go to other threads.
unsafe impl Send for Pieces<'_> {}

impl<'a> Pieces<'a> {
    /// An empty list that reuses the allocation.
    #[must_use]
    pub fn cleared<'b>(self) -> Pieces<'b> {
        let mut list = self.list;
        list.clear();
        Pieces { list, life: PhantomData }
    }

    /// Appends memory.
    pub fn add(&mut self, bytes: &'a mut [u8]) {
        let at = self.list.last().map_or(0, |last| last.at + last.len);
        if !bytes.is_empty() {
            self.list.push(Piece { at, start: bytes.as_mut_ptr(), len: bytes.len() });
        }
    }

    /// The buffer of all the memories. A single memory is not treated as pieces.
    #[must_use]
    pub fn buffer(&mut self) -> Buffer<'_> {
        let space = match *self.list {
            [] => empty_space(),
            [Piece { start, len, .. }] => (start, len),
            [.., last] => (core::ptr::null_mut(), last.at + last.len),
        };
        Buffer { pieces: [(&self.list, 0); 2], ..Buffer::of(space, space) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_one_buffer_may_overlap() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let buffer = Buffer::in_one_memory(&mut bytes, 0..90, 10..100);
        buffer.dst(Space::Output, 0..90).fill(buffer.src(Space::Input, 0..90));
        let shifted: Vec<u8> = (0..10).chain(0..90).collect();
        assert_eq!(bytes, shifted);
    }

    #[test]
    fn a_view_of_pieces_begins_inside_one_of_them() {
        let mut bytes = [1_u8, 2, 3, 4, 5, 6, 7, 8];
        let (head, tail) = bytes.split_at_mut(3);
        let mut pieces = Pieces::default();
        [head, &mut [], tail].into_iter().for_each(|part| pieces.add(part));
        let buffer = pieces.buffer();
        let view = buffer.view((Space::Input, 1..4), 5..8);
        for part in view.pieces([Space::Input, Space::Output], 0..3) {
            view.dst(Space::Output, part.clone()).fill(view.src(Space::Input, part));
        }
        let view = buffer.view((Space::Output, 5..7), 2..4);
        for part in view.pieces([Space::Input, Space::Output], 0..2) {
            view.dst(Space::Output, part.clone()).fill(view.src(Space::Input, part));
        }
        assert_eq!(bytes, [1, 2, 2, 3, 5, 2, 3, 4]);
    }
}
