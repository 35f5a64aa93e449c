//! The cost of the C interface: `rr_all_reduce` beside `all_reduce_bytes` of the library, on host
//! memory in place, the least of many batches.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a benchmark ends by panicking")]

use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Instant;

use ringreduce::{Communicator, DataType, ReduceOp};
use ringreduce_c::exports::collectives::rr_all_reduce;
use ringreduce_c::exports::making::{rr_close, rr_init_local};
use ringreduce_c::types::{rr_datatype, rr_op, rr_status};

/// Calls of a batch, and batches.
const CALLS: u32 = 2000;
const BATCHES: u32 = 300;

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
        "bytes", "all_reduce_bytes ns", "rr_all_reduce ns", "added"
    );
    let mut comm = Communicator::local(1).unwrap().remove(0);
    let mut handle = null_mut();
    // SAFETY: it is a place for one communicator.
    assert_eq!(unsafe { rr_init_local(&raw mut handle, 1, null(), 0) }, rr_status::RR_OK);
    let (float, sum) = (rr_datatype::RR_FLOAT as i32, rr_op::RR_SUM as i32);
    for bytes in [8, 1024, 65536] {
        let mut buffer = vec![0_u8; bytes];
        let core = fastest(|| {
            comm.all_reduce_bytes(black_box(&mut buffer), DataType::F32, ReduceOp::Sum).unwrap();
        });
        let (start, count) = (buffer.as_mut_ptr(), bytes / 4);
        let interface = fastest(|| {
            let from = black_box(start.cast_const().cast());
            // SAFETY: the buffer has so many floats, and the handle is a communicator's.
            let status = unsafe { rr_all_reduce(handle, from, start.cast(), count, float, sum) };
            assert_eq!(status, rr_status::RR_OK);
        });
        println!("{bytes:>8} {core:>20.1} {interface:>16.1} {:>8.1}", interface - core);
    }
    // SAFETY: it is a communicator.
    assert_eq!(unsafe { rr_close(handle) }, rr_status::RR_OK);
}
