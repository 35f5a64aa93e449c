//! How much a decoder allocates. May touch: the system's allocator. Unsafe: it is one.
//! Law: more than 1 MiB at a time, in all, ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::abort;

/// The most that one input may take at a time.
const MOST: usize = 1 << 20;

thread_local! {
    /// Bytes that the input under way has taken; none, if there is no such.
    static TAKEN: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: impl FnOnce(usize) -> usize) {
    let _ = TAKEN.try_with(|taken| {
        let Some(before) = taken.get() else { return };
        let after = change(before);
        taken.set(Some(after));
        if after > MOST {
            taken.set(None);
            eprintln!("an input takes {after} bytes of memory");
            abort();
        }
    });
}

// SAFETY: everything is the system allocator's; it is only counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|taken| taken.saturating_add(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(|taken| taken.saturating_sub(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Does it, and looks at what it takes.
pub(crate) fn watched(work: impl FnOnce()) {
    TAKEN.set(Some(0));
    work();
    TAKEN.set(None);
}
