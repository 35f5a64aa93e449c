//! Many calls behind one that another rank has not made yet: a hardware queue that is full blocks
//! whoever adds to it, and its context with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cudarc::driver::{DevicePtr, sys};
use ringreduce::{Communicator, ReduceOp};

use super::super::standin::on_standin;
use super::stream;
use harness::on_ranks;

const CALLS: usize = 100;

/// Rank 0 puts calls on its stream until it is held up or has made all; then rank 1 comes, whose
/// calls rank 0's wait for.
fn ahead(comm: &mut Communicator, made: &AtomicUsize) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i64; 100]).unwrap();
    // Streams and memory are made while no stream waits.
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    comm.on_stream(&stream).check().unwrap();
    stream.synchronize().unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        // Rank 0 is as far as it gets when it gets no farther.
        let mut before = 0;
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = made.load(Ordering::Relaxed);
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
    }
    for _ in 0..CALLS {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
        if comm.rank() == 0 {
            made.fetch_add(1, Ordering::Relaxed);
        }
    }
    comm.on_stream(&stream).check().unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 100]);
}

/// A stream that does not get to a long call, which somebody aborts.
fn aborted(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&vec![1_i32; 10 << 20]).unwrap();
    let mut word = stream.clone_htod(&[0_u32]).unwrap();
    stream.synchronize().unwrap();
    let at = word.device_ptr(&stream).0;
    // SAFETY: the word lives as long as this process.
    unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), at, 1, 1).result() }.unwrap();
    let abort = comm.abort_handle();
    let error = std::thread::scope(|scope| {
        // All pieces that may be under way are so long before.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            abort.abort();
        });
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err()
    });
    assert!(error.to_string().contains("abort"), "{error}");
    let other = stream.context().new_stream().unwrap();
    other.memcpy_htod(&[1_u32], &mut word).unwrap();
    stream.synchronize().unwrap();
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn aborted() {
        on_ranks(1, super::aborted);
    }

    pub(crate) fn ahead() {
        let made = AtomicUsize::new(0);
        on_ranks(2, |comm| super::ahead(comm, &made));
    }
}

#[test]
fn an_abort_reaches_who_waits_for_the_stream() {
    on_standin("device::throttle::body::aborted", &[]);
}

#[test]
fn who_is_ahead_fills_no_queue() {
    on_standin("device::throttle::body::ahead", &[("STANDIN_CUDA_DEPTH", "200")]);
}
