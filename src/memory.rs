//! Views of memory that another thread or another process may hold as well: `Src` to read, `Dst`
//! to write. They carry raw pointers, never `&mut`, so that a slot in shared memory and a user's
//! buffer look alike to the kernels. Law: a view is valid for `len` bytes during `'a`, and whoever
//! makes one vouches for it; whoever uses one needs no further promise.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

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

/// A collective's user buffers: where local data is read and where results are stored, both
/// addressed by the same byte offsets. In place they are one memory.
#[derive(Debug)]
pub struct Buffer<'a> {
    input: *const u8,
    output: *mut u8,
    /// Offsets that may be read.
    readable: Range<usize>,
    /// Offsets that may be stored to; `output` is the address of its start.
    writable: Range<usize>,
    life: PhantomData<&'a mut u8>,
}

impl<'a> Buffer<'a> {
    /// One memory, read and written.
    #[must_use]
    pub fn in_place(bytes: &'a mut [u8]) -> Self {
        let ptr = bytes.as_mut_ptr();
        let whole = 0..bytes.len();
        Self {
            input: ptr,
            output: ptr,
            readable: whole.clone(),
            writable: whole,
            life: PhantomData,
        }
    }

    /// Reads `input`; offset `at` of the result is stored at the start of `output`, and only
    /// offsets from there on are stored at all.
    #[must_use]
    pub fn apart(input: &'a [u8], output: &'a mut [u8], at: usize) -> Self {
        Self {
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            readable: 0..input.len(),
            writable: at..at + output.len(),
            life: PhantomData,
        }
    }

    /// The addresses of what may be read, and of what may be stored to.
    #[inline]
    pub(crate) fn addresses(&self) -> (Range<usize>, Range<usize>) {
        let input = self.input.addr() + self.readable.start;
        let output = self.output.addr();
        (input..input + self.readable.len(), output..output + self.writable.len())
    }

    /// The local data at `range`.
    ///
    /// # Panics
    /// If the range lies outside: a plan that does not fit its buffer is a bug, caught here.
    #[inline]
    #[must_use]
    pub fn src(&self, range: Range<usize>) -> Src<'_> {
        assert!(self.readable.start <= range.start && range.end <= self.readable.end);
        assert!(range.start <= range.end);
        let start = self.input.wrapping_add(range.start);
        // SAFETY: the range was just checked to lie inside the input, which is borrowed for 'a.
        unsafe { Src::new(start, range.len()) }
    }

    /// Where the result at `range` goes.
    ///
    /// # Panics
    /// If the range lies outside: a plan that does not fit its buffer is a bug, caught here.
    #[inline]
    #[must_use]
    pub fn dst(&self, range: Range<usize>) -> Dst<'_> {
        assert!(self.writable.start <= range.start && range.end <= self.writable.end);
        assert!(range.start <= range.end);
        let start = self.output.wrapping_add(range.start - self.writable.start);
        // SAFETY: the range was just checked to lie inside the output, which is borrowed
        // exclusively for 'a; views of it are raw pointers and may coincide with a `Src`.
        unsafe { Dst::new(start, range.len()) }
    }
}
