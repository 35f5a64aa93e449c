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

/// Memory to write. It may be the very memory of a [`Src`] used beside it, or not overlap it.
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

    /// Fills it with what `source` holds, which must be as long and lie apart.
    ///
    /// # Panics
    /// If the lengths differ: a bug of the caller, caught here.
    pub fn fill(self, source: Src<'_>) {
        assert_eq!(self.len, source.len);
        // SAFETY: both views vouch for `len` bytes, and they lie apart.
        unsafe { core::ptr::copy_nonoverlapping(source.ptr, self.ptr, self.len) };
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
    /// Where each space begins, and its bytes; in the order of [`Space`].
    spaces: [(*mut u8, usize); 3],
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
        Self { spaces: [part(input), part(output), nothing()], life: PhantomData }
    }

    /// Reads `input`, stores to `output`.
    #[must_use]
    pub fn apart(input: &'a [u8], output: &'a mut [u8]) -> Self {
        let input = (input.as_ptr().cast_mut(), input.len());
        let output = (output.as_mut_ptr(), output.len());
        Self { spaces: [input, output, nothing()], life: PhantomData }
    }

    /// The same, with memory for what is on its way.
    #[must_use]
    pub fn with_scratch<'b>(&'b self, scratch: &'b mut [u8]) -> Buffer<'b> {
        let [input, output, _] = self.spaces;
        let scratch = (scratch.as_mut_ptr(), scratch.len());
        Buffer { spaces: [input, output, scratch], life: PhantomData }
    }

    /// The addresses of a space.
    #[inline]
    pub(crate) fn addresses(&self, space: Space) -> Range<usize> {
        let (start, len) = self.spaces[space as usize];
        start.addr()..start.addr() + len
    }

    /// Bytes of a space.
    #[must_use]
    pub fn len(&self, space: Space) -> usize {
        self.spaces[space as usize].1
    }

    /// The data at `range` of a space.
    ///
    /// # Panics
    /// If the range lies outside: a plan that does not fit its buffer is a bug, caught here.
    #[inline]
    #[must_use]
    pub fn src(&self, space: Space, range: Range<usize>) -> Src<'_> {
        let (start, len) = self.spaces[space as usize];
        assert!(range.start <= range.end && range.end <= len);
        // SAFETY: the range was just checked to lie inside the space, which is borrowed for 'a.
        unsafe { Src::new(start.wrapping_add(range.start), range.len()) }
    }

    /// Where what is stored at `range` of a space goes.
    ///
    /// # Panics
    /// If the range lies outside, or the space is the input: a plan that does not fit its buffer
    /// is a bug, caught here.
    #[inline]
    #[must_use]
    pub fn dst(&self, space: Space, range: Range<usize>) -> Dst<'_> {
        let (start, len) = self.spaces[space as usize];
        assert!(space != Space::Input);
        assert!(range.start <= range.end && range.end <= len);
        // SAFETY: the range was just checked to lie inside a space that is borrowed exclusively
        // for 'a; views of it are raw pointers and may coincide with a `Src`.
        unsafe { Dst::new(start.wrapping_add(range.start), range.len()) }
    }
}

/// A space without any bytes.
fn nothing() -> (*mut u8, usize) {
    (core::ptr::dangling_mut(), 0)
}
