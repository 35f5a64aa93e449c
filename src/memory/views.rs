//! Views of memory that another thread or another process may hold as well: `Src` to read, `Dst`
//! to write. They carry raw pointers, never `&mut`, so that a slot in shared memory and a user's
//! buffer look alike to the kernels. Law: a view is valid for `len` bytes during `'a`, and whoever
//! makes one vouches for it; whoever uses one needs no further promise.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

use crate::schedule::Space;

/// Memory to read.
#[derive(Clone, Copy, Debug)]
pub struct Src<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a u8>,
}

/// Memory to write. It may be the very memory of a [`Src`] used beside it, or not overlap it: where
/// the two overlap in part, what is written there is anything.
#[derive(Debug)]
pub struct Dst<'a> {
    ptr: *mut u8,
    len: usize,
    streaming: bool,
    life: PhantomData<&'a mut u8>,
}

impl<'a> Src<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The memory is mapped and initialised for `len` bytes during `'a`, and nobody writes it
    /// meanwhile except through the protocol of the link that lends it.
    #[must_use]
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, life: PhantomData }
    }

    /// Where it begins.
    #[must_use]
    pub fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it lies outside.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= self.len);
        Self { ptr: self.ptr.wrapping_add(part.start), len: part.len(), ..*self }
    }

    /// All of it but the first `bytes`.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn after(self, bytes: usize) -> Self {
        assert!(bytes <= self.len);
        Self { ptr: self.ptr.wrapping_add(bytes), len: self.len - bytes, ..self }
    }
}

impl<'a> From<&'a [u8]> for Src<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }
}

impl<'a> Dst<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The memory is mapped and writable for `len` bytes during `'a`, and nobody else touches it
    /// meanwhile except through the protocol of the link that lends it.
    #[must_use]
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, streaming: false, life: PhantomData }
    }

    /// Fills it with what `source` holds, which must be as long.
    ///
    /// # Panics
    /// If the lengths differ: a bug of the caller, caught here.
    pub fn fill(self, source: Src<'_>) {
        assert_eq!(self.len, source.len);
        // SAFETY: both views vouch for `len` bytes; they may overlap.
        unsafe { self.ptr.copy_from(source.ptr, self.len) };
    }

    /// A part of it, lent.
    ///
    /// # Panics
    /// If it lies outside.
    #[must_use]
    pub fn part(&mut self, part: Range<usize>) -> Dst<'_> {
        assert!(part.start <= part.end && part.end <= self.len);
        Dst { ptr: self.ptr.wrapping_add(part.start), len: part.len(), ..*self }
    }

    /// The same memory, best filled past the cache or not.
    #[must_use]
    pub fn streaming(self, streaming: bool) -> Self {
        Self { streaming, ..self }
    }

    /// Is it best filled past the cache, because nobody near reads it soon?
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Where it begins.
    #[must_use]
    pub fn ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a> From<&'a mut [u8]> for Dst<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), streaming: false, life: PhantomData }
    }
}

/// What one rank's steps read and write: its input, its output and the scratch, each addressed by
/// byte offsets. In place, input and output are parts of one memory.
#[derive(Debug)]
pub struct Buffer<'a> {
    /// Where each space begins, and its bytes; in the order of [`Space`]. One in pieces begins
    /// nowhere.
    spaces: [(*mut u8, usize); 3],
    /// The pieces of the input and of the output.
    pieces: [&'a [Piece]; 2],
    life: PhantomData<&'a mut u8>,
}

impl<'a> Buffer<'a> {
    /// One memory, which is the input and the output.
    #[must_use]
    pub fn in_place(bytes: &'a mut [u8]) -> Self {
        let whole = 0..bytes.len();
        Self::within(bytes, whole.clone(), whole)
    }

    /// Parts of one memory, which may overlap.
    ///
    /// # Panics
    /// If a part lies outside.
    #[must_use]
    pub fn within(bytes: &'a mut [u8], input: Range<usize>, output: Range<usize>) -> Self {
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        let part = |part: Range<usize>| {
            assert!(part.start <= part.end && part.end <= len);
            (start.wrapping_add(part.start), part.len())
        };
        Self::of(part(input), part(output))
    }

    /// Reads `input`, stores to `output`.
    #[must_use]
    pub fn apart(input: &'a [u8], output: &'a mut [u8]) -> Self {
        let input = (input.as_ptr().cast_mut(), input.len());
        Self::of(input, (output.as_mut_ptr(), output.len()))
    }

    fn of(input: (*mut u8, usize), output: (*mut u8, usize)) -> Self {
        Self { spaces: [input, output, nothing()], pieces: [&[], &[]], life: PhantomData }
    }

    /// The same, with memory for what is on its way.
    #[must_use]
    pub fn with_scratch<'b>(&'b self, scratch: &'b mut [u8]) -> Buffer<'b> {
        let [input, output, _] = self.spaces;
        let scratch = (scratch.as_mut_ptr(), scratch.len());
        Buffer { spaces: [input, output, scratch], pieces: self.pieces, life: PhantomData }
    }

    /// The addresses of a space; those of one in pieces are nobody's.
    #[inline]
    pub(crate) fn addresses(&self, space: Space) -> Range<usize> {
        let (start, len) = self.spaces[space as usize];
        start.addr()..start.addr() + len
    }

    /// Does the output share no memory with the input? One in pieces may, for all that is known.
    pub(crate) fn is_apart(&self) -> bool {
        let [read, written] = [Space::Input, Space::Output].map(|space| self.addresses(space));
        let known = self.pieces.iter().all(|list| list.is_empty());
        known && (read.end <= written.start || written.end <= read.start)
    }

    /// Bytes of a space.
    #[must_use]
    pub fn len(&self, space: Space) -> usize {
        self.spaces[space as usize].1
    }

    /// How many of the `len` bytes from `at` on follow each other in memory; one at least.
    #[inline]
    #[must_use]
    pub fn together(&self, space: Space, at: usize, len: usize) -> usize {
        match self.spaces[space as usize] {
            (start, _) if start.is_null() => len.min(self.piece(space, at).1),
            _ => len,
        }
    }

    /// The parts of `range` that are in one piece in each of these spaces.
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
                from += spaces.iter().fold(left, |len, &space| self.together(space, start, len));
            }
            (left > 0).then_some(start..from)
        })
    }

    /// Where a byte of a space in pieces is, and how many there are from there on.
    fn piece(&self, space: Space, at: usize) -> (*mut u8, usize) {
        let list = self.pieces[space as usize];
        let next = list.partition_point(|piece| piece.at <= at);
        let Piece { at: first, start, len } = list[next - 1];
        (start.wrapping_add(at - first), first + len - at)
    }

    /// Where a range of a space is.
    #[inline]
    fn locate(&self, space: Space, range: &Range<usize>) -> *mut u8 {
        let (start, len) = self.spaces[space as usize];
        assert!(range.start <= range.end && range.end <= len);
        if !start.is_null() {
            return start.wrapping_add(range.start);
        }
        if range.is_empty() {
            return nothing().0;
        }
        let (start, left) = self.piece(space, range.start);
        assert!(range.len() <= left);
        start
    }

    /// The data at `range` of a space.
    ///
    /// # Panics
    /// If the range lies outside, or in several pieces: a plan that does not fit its buffer is a
    /// bug, caught here.
    #[inline]
    #[must_use]
    pub fn src(&self, space: Space, range: Range<usize>) -> Src<'_> {
        // SAFETY: the range was just found to lie inside the space, which is borrowed for 'a.
        unsafe { Src::new(self.locate(space, &range), range.len()) }
    }

    /// Where what is stored at `range` of a space goes.
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

/// A space without any bytes.
fn nothing() -> (*mut u8, usize) {
    (core::ptr::dangling_mut(), 0)
}

/// A memory that is a part of a space.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Its first byte's number in the space.
    at: usize,
    start: *mut u8,
    /// Not 0.
    len: usize,
}

/// Memories that a call takes for one input and one output, in their order.
#[derive(Debug, Default)]
pub struct Pieces<'a> {
    lists: [Vec<Piece>; 2],
    life: PhantomData<&'a mut u8>,
}

// SAFETY: it is a list of `&mut [u8]` and `&[u8]`, which may go to other threads.
unsafe impl Send for Pieces<'_> {}

impl<'a> Pieces<'a> {
    /// None, in the room of these.
    #[must_use]
    pub fn emptied<'b>(self) -> Pieces<'b> {
        let mut lists = self.lists;
        lists.iter_mut().for_each(Vec::clear);
        Pieces { lists, life: PhantomData }
    }

    /// More input; where it is there.
    pub fn read(&mut self, bytes: &'a [u8]) -> Range<usize> {
        self.add(Space::Input, bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// More output; where it is there.
    pub fn write(&mut self, bytes: &'a mut [u8]) -> Range<usize> {
        self.add(Space::Output, bytes.as_mut_ptr(), bytes.len())
    }

    /// More of both, which is one memory.
    pub fn update(&mut self, bytes: &'a mut [u8]) {
        let start = bytes.as_mut_ptr();
        for space in [Space::Input, Space::Output] {
            self.add(space, start, bytes.len());
        }
    }

    fn add(&mut self, space: Space, start: *mut u8, len: usize) -> Range<usize> {
        let list = &mut self.lists[space as usize];
        let at = list.last().map_or(0, |last| last.at + last.len);
        if len > 0 {
            list.push(Piece { at, start, len });
        }
        at..at + len
    }

    /// All of them, for a call. A single one is like any other memory.
    #[must_use]
    pub fn buffer(&mut self) -> Buffer<'_> {
        let [input, output] = &self.lists;
        let space = |list: &[Piece]| match *list {
            [] => nothing(),
            [Piece { start, len, .. }] => (start, len),
            [.., last] => (core::ptr::null_mut(), last.at + last.len),
        };
        Buffer { pieces: [input, output], ..Buffer::of(space(input), space(output)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_one_buffer_may_overlap() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let buffer = Buffer::within(&mut bytes, 0..90, 10..100);
        buffer.dst(Space::Output, 0..90).fill(buffer.src(Space::Input, 0..90));
        let shifted: Vec<u8> = (0..10).chain(0..90).collect();
        assert_eq!(bytes, shifted);
    }
}
