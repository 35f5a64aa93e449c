//! The cost of NCCL's interface: `ncclAllReduce` beside `all_reduce_bytes` of the library, on host
//! memory in place, the least of many batches.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a benchmark ends by panicking")]

use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

use nccl::exports::collectives::ncclAllReduce;
use nccl::exports::communicators::ncclCommDestroy;
use nccl::exports::making::ncclCommInitAll;
use ringreduce::{Communicator, DataType, ReduceOp};

/// Calls of a batch, and batches.
const CALLS: u32 = 2000;
const BATCHES: u32 = 300;

/// `ncclFloat32` and `ncclSum`.
const FLOAT: i32 = 7;
const SUM: i32 = 0;

/// Nanoseconds of a call, in the fastest batch.
fn fastest(mut call: impl FnMut()) -> f64 {
    let mut batch = || {
        let began = Instant::now();
        (0..CALLS).for_each(|_| call());
        began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..BATCHES).map(|_| batch()).fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "{:>8} {:>20} {:>16} {:>8}",
        "bytes", "all_reduce_bytes ns", "ncclAllReduce ns", "added"
    );
    let mut comm = Communicator::local(1).unwrap().remove(0);
    let mut handle = null_mut();
    // SAFETY: it is a place for one handle.
    assert_eq!(unsafe { ncclCommInitAll(&raw mut handle, 1, std::ptr::null()) }, 0);
    for bytes in [8, 1024, 65536] {
        let mut buffer = vec![0_u8; bytes];
        let core = fastest(|| {
            comm.all_reduce_bytes(black_box(&mut buffer), DataType::F32, ReduceOp::Sum).unwrap();
        });
        let (start, count) = (buffer.as_mut_ptr(), bytes / 4);
        let interface = fastest(|| {
            // SAFETY: the buffer has so many floats, and the handle is a communicator's.
            let code = unsafe {
                let (from, to) = (start.cast_const().cast(), start.cast());
                ncclAllReduce(black_box(from), to, count, FLOAT, SUM, handle, null_mut())
            };
            assert_eq!(code, 0);
        });
        println!("{bytes:>8} {core:>20.1} {interface:>16.1} {:>8.1}", interface - core);
    }
    // SAFETY: it is a communicator.
    assert_eq!(unsafe { ncclCommDestroy(handle) }, 0);
}
