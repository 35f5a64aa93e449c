//! An allocator that counts. Law: a decoder that holds more than 1 MiB at a time ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::abort;
use std::thread::panicking;

/// The most bytes of one input at a time.
const MOST: usize = 1 << 20;

thread_local! {
    /// Bytes that the current input holds; none between inputs.
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
        // The report of a panic takes much.
        if after > MOST && !panicking() {
            taken.set(None);
            eprintln!("an input takes {after} bytes of memory");
            abort();
        }
    });
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|taken| taken.saturating_add(layout.size()));
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(|taken| taken.saturating_sub(layout.size()));
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Ends the count, after a panic too.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        TAKEN.set(None);
    }
}

/// Runs `work` with its allocations counted.
pub(crate) fn watched(work: impl FnOnce()) {
    TAKEN.set(Some(0));
    let _counted = Counted;
    work();
}
