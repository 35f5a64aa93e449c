//! Views of memory that another thread or process may access too: `Src` to read, `Dst` to write. A
//! view holds a raw pointer, never `&mut`, so that kernels treat a slot in shared memory and a
//! user's buffer alike.
//! Law: a view is valid for `len` bytes during `'a`. The code that makes a view guarantees it; the
//! code that uses one need promise nothing more.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;

/// Bytes that one `memmove` copies. For more, glibc takes string moves (`rep movsb`), which AMD's
/// CPUs make at a quarter of the speed where the output begins 1 to 31 bytes after the source in
/// its page of 4 KiB: copies of 64 KiB between two ranks took 21 to 43 us with them and 5 to 13 us
/// without.
const LONGEST_MOVE: usize = 2 << 10;

/// Memory to read.
#[derive(Clone, Copy, Debug)]
pub struct Src<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a u8>,
}

/// Memory to write. It may coincide with a [`Src`] used beside it, or not overlap it at all; if the
/// two overlap in part, the result is unspecified bytes.
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
    /// The memory is mapped and initialised for `len` bytes during `'a`, and not written meanwhile
    /// except through a [`Dst`] used beside this view, or through the protocol of the link that
    /// lends it.
    #[must_use]
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, life: PhantomData }
    }

    /// The first byte.
    #[must_use]
    pub fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of `part`, counted from the start of the view.
    ///
    /// # Panics
    /// If the part exceeds the view.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= self.len);
        Self { ptr: self.ptr.wrapping_add(part.start), len: part.len(), ..*self }
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
    /// The memory is mapped and writable for `len` bytes during `'a`, and not accessed elsewhere
    /// meanwhile except through the protocol of the link that lends it.
    #[must_use]
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, streaming: false, life: PhantomData }
    }

    /// Copies the bytes of `source`, which must be as long.
    ///
    /// # Panics
    /// If the lengths differ: a bug of the caller.
    pub fn fill(self, source: Src<'_>) {
        assert_eq!(self.len, source.len, "lengths differ");
        if self.len <= LONGEST_MOVE {
            // SAFETY: both views vouch for `len` bytes; they may be the same.
            return unsafe { self.ptr.copy_from(source.ptr, self.len) };
        }
        for at in (0..self.len).step_by(LONGEST_MOVE) {
            let (to, from) = (self.ptr.wrapping_add(at), source.ptr.wrapping_add(at));
            // SAFETY: as above; each move ends with the last byte at most.
            unsafe { to.copy_from(from, LONGEST_MOVE.min(self.len - at)) };
        }
    }

    /// The bytes of `part`, counted from the start of the view.
    ///
    /// # Panics
    /// If the part exceeds the view.
    #[must_use]
    pub fn part(&mut self, part: Range<usize>) -> Dst<'_> {
        assert!(part.start <= part.end && part.end <= self.len);
        Dst { ptr: self.ptr.wrapping_add(part.start), len: part.len(), ..*self }
    }

    /// This memory, to be filled with stores past the cache or with ordinary ones.
    #[must_use]
    pub fn streaming(self, streaming: bool) -> Self {
        Self { streaming, ..self }
    }

    /// True if stores past the cache are best, because no near CPU reads the memory soon.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// The first byte.
    #[must_use]
    pub fn ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the length is 0.
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
