//! Pending calls: ranks that come after a failure, long replays, streams and graphs that outlive
//! their communicator, and calls far ahead of another rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::standin::{self, DEPTH, on_standin, this_body};
use super::fixture::{
    Hold, address, attach_direct, attach_for_graphs, capture, capture_in, on_processes, raw,
    refused, stream,
};
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL;
use cudarc::driver::{CudaSlice, CudaStream};
use harness::barrier::Barrier;
use harness::{on_ranks, ranks};
use ringreduce::{Communicator, DataType, ReduceOp};

fn ones(comm: &mut Communicator, stream: &Arc<CudaStream>) -> CudaSlice<i32> {
    let buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    buf
}

/// Aborts, and waits for the error of the abort.
fn abort(comm: &mut Communicator, stream: &Arc<CudaStream>) {
    comm.monitor().abort();
    while comm.on_stream(stream).check().is_ok() {
        std::thread::yield_now();
    }
    stream.synchronize().unwrap();
}

/// A rank that makes a call after the other one has aborted it gets an error, whichever rank
/// executes calls for both.
fn late_rank(aborts: usize) {
    let gate = Barrier::new(2);
    on_ranks(2, |comm| {
        let stream = attach_direct(comm);
        let mut buf = ones(comm, &stream);
        if comm.rank() == aborts {
            comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            abort(comm, &stream);
            stream.memcpy_htod(&[7_i32; 100], &mut buf).unwrap();
            stream.synchronize().unwrap();
            gate.wait();
            gate.wait();
            // No kernel touches the buffer after the abort.
            assert_eq!(stream.clone_dtoh(&buf).unwrap(), [7; 100]);
        } else {
            gate.wait();
            let done = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
            stream.synchronize().unwrap();
            let done = done.and_then(|()| comm.on_stream(&stream).check());
            gate.wait();
            refused(done, &format!("aborted by rank {aborts}"));
        }
    });
}

fn local(n: usize, timeout: Duration) -> Vec<Communicator> {
    let mut all = Communicator::local(n).unwrap();
    all.iter_mut().for_each(|one| one.set_timeout(timeout));
    all
}

/// Many launches, each shorter than the timeout and all together longer.
fn replayed_long(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let mut buf = comm.alloc_device::<i64>(&stream, 30_000).unwrap();
    comm.barrier().unwrap();
    let graph = capture_in(&stream, GLOBAL, || {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    });
    comm.barrier().unwrap();
    let (began, timeout) = (Instant::now(), comm.timeout());
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    let one = began.elapsed().max(Duration::from_millis(1));
    let mut count = [(2.0 * timeout.as_secs_f64() / one.as_secs_f64()).ceil() as u64];
    comm.broadcast(&mut count, 0).unwrap();
    (0..count[0]).for_each(|_| graph.launch().unwrap());
    stream.synchronize().unwrap();
    comm.on_stream(&stream).check().unwrap();
    drop(graph);
    comm.barrier().unwrap();
}

/// A timeout that is set after `use_device` applies to the next call.
fn times_out(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut buf = ones(comm, &stream);
    comm.set_timeout(Duration::from_millis(300));
    if comm.rank() == 0 {
        let began = Instant::now();
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        stream.synchronize().unwrap();
        // The timeout at `use_device` was longer.
        assert!(began.elapsed() < Duration::from_secs(20));
        let want = "in all_reduce #1, step 0: nothing from rank 1";
        refused(comm.on_stream(&stream).check(), want);
    } else {
        while comm.on_stream(&stream).check().is_ok() {
            std::thread::yield_now();
        }
    }
}

/// A communicator is dropped before its stream comes to a call: the drop ends soon, and so does the
/// stream when it comes to the call.
fn dropped_early(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut buf = ones(comm, &stream);
    let hold = Hold::new(&stream);
    comm.barrier().unwrap();
    hold.hold(&stream);
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    let began = Instant::now();
    drop(std::mem::replace(comm, Communicator::local(1).unwrap().remove(0)));
    assert!(began.elapsed() < Duration::from_secs(20));
    hold.release();
    stream.synchronize().unwrap();
}

/// A launch of a graph that outlives its communicator does nothing, and ends.
fn launched_alone() {
    let gate = Barrier::new(2);
    on_ranks(2, |comm| {
        let stream = attach_for_graphs(comm);
        let mut buf = ones(comm, &stream);
        let graph = capture(&stream, || {
            comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        });
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        gate.wait();
        let rank = comm.rank();
        drop(std::mem::replace(comm, Communicator::local(1).unwrap().remove(0)));
        gate.wait();
        for _ in 0..if rank == 0 { 3 } else { 0 } {
            graph.launch().unwrap();
            stream.synchronize().unwrap();
        }
        assert_eq!(stream.clone_dtoh(&buf).unwrap(), [2; 100]);
    });
}

/// Far more calls than may be pending, each with buffers of its own, while the stream of the peer
/// executor is held.
fn far_ahead() {
    let gate = Barrier::new(3);
    on_ranks(3, |comm| {
        let (stream, rank) = (attach_direct(comm), comm.rank() as i64);
        let own: Vec<i64> = (0..300).map(|i| i * (rank + 1)).collect();
        let (send, recv) = (stream.clone_htod(&own).unwrap(), stream.clone_htod(&own).unwrap());
        let [from, to] = [&send, &recv].map(|buf| address(buf, &stream));
        let hold = Hold::new(&stream);
        comm.barrier().unwrap();
        if rank == 0 {
            hold.hold(&stream);
        }
        std::thread::scope(|scope| {
            if rank == 0 {
                scope.spawn(|| {
                    gate.wait();
                    hold.release();
                });
            }
            for k in 0..300 {
                if k == 32 && rank > 0 {
                    gate.wait();
                }
                let [one, other] = [from, to].map(|start| raw(start + 8 * k, 8));
                let mut on = comm.on_stream(&stream);
                on.all_reduce_into_bytes(one, other, DataType::I64, ReduceOp::Sum).unwrap();
            }
        });
        let found = stream.clone_dtoh(&recv).unwrap();
        assert!(found.into_iter().zip(0..).all(|(it, i)| it == 6 * i));
        comm.on_stream(&stream).check().unwrap();
    });
}

/// One rank launches far ahead of a slower one: each launch is in time.
fn uneven_pace(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let mut buf = ones(comm, &stream);
    let graph = capture(&stream, || {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    });
    for _ in 0..4 {
        if comm.rank() == 1 {
            std::thread::sleep(comm.timeout() / 3);
        }
        graph.launch().unwrap();
    }
    stream.synchronize().unwrap();
    comm.on_stream(&stream).check().unwrap();
    drop(graph);
    if comm.rank() == 1 {
        // Rank 0 leaves meanwhile, which does not change the results of earlier calls.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(1));
            comm.on_stream(&stream).check().unwrap();
        }
    }
}

/// More calls in a graph than there are operation slots: the last calls are refused, and the others
/// work.
fn captured_too_often(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let mut buf = ones(comm, &stream);
    let mut refusals = 0;
    let graph = capture(&stream, || {
        for _ in 0..230 {
            if let Err(error) = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max) {
                assert!(error.to_string().contains("captured once more"), "{error}");
                refusals += 1;
            }
        }
    });
    assert_eq!(refusals, 6);
    graph.launch().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 100]);
    drop(graph);
    comm.barrier().unwrap();
}

/// Calls on the default stream, which all threads share, are refused.
fn default_stream(comm: &mut Communicator) {
    let own = attach_direct(comm);
    let mut buf = ones(comm, &own);
    let shared = own.context().default_stream();
    let done = comm.on_stream(&shared).all_reduce(&mut buf, ReduceOp::Sum);
    refused(done, "stream is the default one");
}

/// Rank 0 puts calls on its stream until it is blocked or has made all; then rank 1 makes the calls
/// that rank 0's wait for. A full hardware queue would block the context of rank 0.
fn ahead(comm: &mut Communicator, made: &AtomicUsize) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i64; 100]).unwrap();
    // Streams and memory are allocated while no stream waits.
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    comm.on_stream(&stream).check().unwrap();
    stream.synchronize().unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        // Rank 0 is blocked, or has made all calls, once the number no longer changes.
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
    for _ in 0..100 {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
        if comm.rank() == 0 {
            made.fetch_add(1, Ordering::Relaxed);
        }
    }
    comm.on_stream(&stream).check().unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 100]);
}

/// An abort ends a long call that the stream does not come to.
fn aborted(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&vec![1_i32; 10 << 20]).unwrap();
    let hold = Hold::new(&stream);
    hold.hold(&stream);
    let abort = comm.monitor();
    let done = std::thread::scope(|scope| {
        // By then all pieces that may be pending are.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            abort.abort();
        });
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum)
    });
    refused(done, "abort");
    hold.release();
    stream.synchronize().unwrap();
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        [0, 1].into_iter().for_each(late_rank);
        ranks::on(local(2, Duration::from_millis(1500)), replayed_long);
        ranks::on(local(2, Duration::from_secs(60)), times_out);
        far_ahead();
        ranks::on(local(2, Duration::from_secs(3)), uneven_pace);
        on_ranks(2, captured_too_often);
        on_ranks(2, default_stream);
        launched_alone();
        ranks::on(local(2, Duration::from_secs(3)), dropped_early);
    }

    pub(crate) fn processes() {
        on_processes(this_body!(processes), [2], |comm| {
            comm.set_timeout(Duration::from_secs(3));
            dropped_early(comm);
        });
    }

    pub(crate) fn aborted() {
        on_ranks(1, super::aborted);
    }

    pub(crate) fn ahead() {
        let made = AtomicUsize::new(0);
        on_ranks(2, |comm| super::ahead(comm, &made));
    }
}

on_standin! {
    a_late_rank_gets_an_error_and_harms_no_other: threads [], processes [];
    an_abort_reaches_a_rank_that_waits_for_its_stream: aborted [];
    a_rank_far_ahead_fills_no_queue: ahead [DEPTH = "200"];
}
