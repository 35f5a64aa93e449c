//! No call allocates once it has been made before, on ordinary memory or on registered. An
//! allocator that counts looks on; each thread counts for itself.
#![allow(unsafe_code, reason = "an allocator")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::on_ranks;
use ringreduce::{Communicator, ReduceOp};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn calls(comm: &mut Communicator, buf: &mut [f32], sizes: &[usize]) {
    for &size in sizes {
        let buf = &mut buf[..size * comm.size()];
        comm.all_reduce(buf, ReduceOp::Sum).unwrap();
        comm.reduce_scatter_in_place(buf, ReduceOp::Max).unwrap();
        comm.all_gather_in_place(buf).unwrap();
        comm.broadcast(buf, 0).unwrap();
        comm.barrier().unwrap();
    }
}

#[test]
fn the_second_call_allocates_nothing() {
    const SIZES: [usize; 4] = [1, 700, 1100, 60_000];
    let counts = on_ranks(3, |comm| {
        let mut plain = vec![1.0; 200_000];
        let mut memory = comm.alloc(200_000).unwrap();
        let mut other = vec![1.0; 200_000];
        let mut guard = comm.register(&mut other).unwrap();
        let buffers = [&mut plain[..], &mut memory[..], &mut guard[..]];
        buffers.map(|buf| {
            calls(comm, buf, &SIZES);
            let before = COUNT.get();
            calls(comm, buf, &SIZES);
            COUNT.get() - before
        })
    });
    assert_eq!(counts, [[0; 3]; 3]);
}
