//! What comes late: ranks after a failure, replays that take long, streams and graphs that outlive
//! their communicator.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::super::standin::on_standin;
use super::direct::attached;
use super::graphs::{attached_for_graphs, captured_by};
use cudarc::driver::sys::CUstreamCaptureMode as Mode;
use cudarc::driver::{CudaStream, DevicePtr, sys};
use harness::processes::{run, this_rank};
use harness::{on_ranks, ranks};
use ringreduce::{Communicator, DeviceRef, ReduceOp};

fn ones(comm: &mut Communicator, stream: &Arc<CudaStream>) -> cudarc::driver::CudaSlice<i32> {
    let buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    buf
}

/// Fails of an abort.
fn abort(comm: &mut Communicator, stream: &Arc<CudaStream>) {
    comm.abort_handle().abort();
    while comm.on_stream(stream).check().is_ok() {
        std::thread::yield_now();
    }
    stream.synchronize().unwrap();
}

/// A rank that comes to a call after another one has failed in it is told, whoever works.
fn straggler(aborts: usize) {
    let gate = Barrier::new(2);
    on_ranks(2, |comm| {
        let stream = attached(comm);
        let mut buf = ones(comm, &stream);
        if comm.rank() == aborts {
            comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            abort(comm, &stream);
            stream.memcpy_htod(&[7_i32; 100], &mut buf).unwrap();
            stream.synchronize().unwrap();
            gate.wait();
            gate.wait();
            // Nobody touches what is this rank's again.
            assert_eq!(stream.clone_dtoh(&buf).unwrap(), [7; 100]);
        } else {
            gate.wait();
            let done = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
            stream.synchronize().unwrap();
            let error = done.and_then(|()| comm.on_stream(&stream).check()).unwrap_err();
            gate.wait();
            assert!(error.to_string().contains(&format!("aborted by rank {aborts}")), "{error}");
        }
    });
}

fn local(n: usize, timeout: Duration) -> Vec<Communicator> {
    let mut all = Communicator::local(n).unwrap();
    all.iter_mut().for_each(|one| one.set_timeout(timeout));
    all
}

/// Many launches, none of which takes as long as the timeout, all of which do.
fn replayed_long(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let mut buf = comm.alloc_device::<i64>(&stream, 30_000).unwrap();
    comm.barrier().unwrap();
    let graph = captured_by(&stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, || {
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

/// A timeout that is set after the device holds for the next call.
fn told_in_time(comm: &mut Communicator) {
    let stream = attached(comm);
    let mut buf = ones(comm, &stream);
    comm.set_timeout(Duration::from_millis(300));
    if comm.rank() == 0 {
        let began = Instant::now();
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        stream.synchronize().unwrap();
        // Long before the time that there was when the device was told of.
        assert!(began.elapsed() < Duration::from_secs(20));
        let error = comm.on_stream(&stream).check().unwrap_err().to_string();
        assert!(error.contains("in all_reduce #1, step 0: nothing from rank 1"), "{error}");
    } else {
        while comm.on_stream(&stream).check().is_ok() {
            std::thread::yield_now();
        }
    }
}

/// A communicator that is dropped before its stream comes to a call: that ends soon, and so does
/// the stream when it gets there.
fn dropped_early(comm: &mut Communicator) {
    let stream = attached(comm);
    let mut buf = ones(comm, &stream);
    let word = stream.clone_htod(&[0_u32; 1]).unwrap();
    let at = word.device_ptr(&stream).0;
    let other = stream.context().new_stream().unwrap();
    stream.synchronize().unwrap();
    comm.barrier().unwrap();
    // SAFETY: the word lives until it was written.
    unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), at, 1, 1).result() }.unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    let began = Instant::now();
    drop(std::mem::replace(comm, Communicator::local(1).unwrap().remove(0)));
    assert!(began.elapsed() < Duration::from_secs(20));
    // SAFETY: as above.
    unsafe { sys::cuStreamWriteValue32_v2(other.cu_stream(), at, 1, 0).result() }.unwrap();
    stream.synchronize().unwrap();
}

/// A graph that outlives its communicator does nothing, and ends.
fn launched_alone() {
    let gate = Barrier::new(2);
    on_ranks(2, |comm| {
        let stream = attached_for_graphs(comm);
        let mut buf = ones(comm, &stream);
        let graph = captured_by(&stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, || {
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

/// Far more calls than may be under way, of which each has buffers of its own, while the stream of
/// the rank that works is held.
fn far_ahead() {
    let gate = Barrier::new(3);
    on_ranks(3, |comm| {
        let (stream, rank) = (attached(comm), comm.rank() as i64);
        let own: Vec<i64> = (0..300).map(|i| i * (rank + 1)).collect();
        let (send, recv) = (stream.clone_htod(&own).unwrap(), stream.clone_htod(&own).unwrap());
        let word = stream.clone_htod(&[0_u32; 1]).unwrap();
        let [from, to] = [&send, &recv].map(|buf| buf.device_ptr(&stream).0);
        let (at, other) = (word.device_ptr(&stream).0, stream.context().new_stream().unwrap());
        stream.synchronize().unwrap();
        comm.barrier().unwrap();
        if rank == 0 {
            // SAFETY: the word lives until it was written.
            unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), at, 1, 1).result() }.unwrap();
        }
        std::thread::scope(|scope| {
            if rank == 0 {
                scope.spawn(|| {
                    gate.wait();
                    other.context().bind_to_thread().unwrap();
                    let stream = other.cu_stream();
                    // SAFETY: as above.
                    unsafe { sys::cuStreamWriteValue32_v2(stream, at, 1, 0).result() }.unwrap();
                });
            }
            for k in 0..300 {
                if k == 32 && rank > 0 {
                    gate.wait();
                }
                // SAFETY: these are parts of the buffers.
                let part = |start| unsafe { DeviceRef::from_raw_parts(start + 8 * k, 1, &stream) };
                let (one, mut other) = (part(from), part(to));
                let mut comm = comm.on_stream(&stream);
                comm.all_reduce_into::<i64>(&one, &mut other, ReduceOp::Sum).unwrap();
            }
        });
        let found = stream.clone_dtoh(&recv).unwrap();
        assert!(found.into_iter().zip(0..).all(|(it, i)| it == 6 * i));
        comm.on_stream(&stream).check().unwrap();
    });
}

/// One rank is slower than the other, which launches far ahead: each launch is in time.
fn uneven_pace(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let mut buf = ones(comm, &stream);
    let graph = captured_by(&stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, || {
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
        // The other one leaves meanwhile: what was called is good all the same.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(1));
            comm.on_stream(&stream).check().unwrap();
        }
    }
}

/// More calls in graphs than there is room for: that is refused, and the rest goes on.
fn captured_too_often(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let mut buf = ones(comm, &stream);
    let mut refused = 0;
    let graph = captured_by(&stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, || {
        for _ in 0..230 {
            if let Err(error) = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max) {
                assert!(error.to_string().contains("captured once more"), "{error}");
                refused += 1;
            }
        }
    });
    assert_eq!(refused, 6);
    graph.launch().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 100]);
    drop(graph);
    comm.barrier().unwrap();
}

/// The stream of all threads is no rank's own.
fn default_stream(comm: &mut Communicator) {
    let own = attached(comm);
    let mut buf = ones(comm, &own);
    let shared = own.context().default_stream();
    let error = comm.on_stream(&shared).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("stream is the default one"), "{error}");
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        [0, 1].into_iter().for_each(straggler);
        ranks::on(local(2, Duration::from_millis(1500)), replayed_long);
        ranks::on(local(2, Duration::from_secs(60)), told_in_time);
        far_ahead();
        ranks::on(local(2, Duration::from_secs(3)), uneven_pace);
        on_ranks(2, captured_too_often);
        on_ranks(2, default_stream);
        launched_alone();
        ranks::on(local(2, Duration::from_secs(3)), dropped_early);
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                comm.set_timeout(Duration::from_secs(3));
                dropped_early(&mut comm);
            }
            None => run("device::late::body::processes", 2, "shm"),
        }
    }
}

#[test]
fn what_comes_late_is_told_and_harms_nobody() {
    on_standin("device::late::body::threads", &[]);
    on_standin("device::late::body::processes", &[]);
}
