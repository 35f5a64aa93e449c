//! An allocator that counts the bytes of the heap. A test program makes it its global allocator.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, and the bytes that are allocated and not freed.
pub struct LiveBytes(AtomicUsize);

impl LiveBytes {
    #[allow(clippy::new_without_default, reason = "a static needs a constant function")]
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// The bytes that are allocated now, by all threads.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: the system's allocator does all the work; `realloc` is made of these two calls.
unsafe impl GlobalAlloc for LiveBytes {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}
