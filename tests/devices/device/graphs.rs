//! Calls that are captured into graphs.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::super::standin::on_standin;
use super::direct::{Known, until_told};
use super::stream;
use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;
use cudarc::driver::{CudaGraph, CudaStream};
use harness::on_ranks;
use harness::processes::{run, this_rank};
use ringreduce::{Communicator, ReduceOp};

/// How graphs are made.
pub(super) const AUTO_FREE: CUgraphInstantiate_flags =
    CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// As [`attached`], for graphs: cudarc's own events can't be waited for in one and outside.
pub(super) fn attached_for_graphs(comm: &mut Communicator) -> Arc<CudaStream> {
    let stream = stream(comm);
    // SAFETY: one stream uses all that is allocated from here on.
    unsafe { stream.context().disable_event_tracking() };
    comm.use_device(stream.context()).unwrap();
    stream
}

/// A graph with calls, launched again and again, with other calls in between.
pub(super) fn graph(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let (n, count) = (comm.size() as i64, 500);
    let mut a = Known::<i64>::new(comm, &stream, count);
    let mut b = Known::<i64>::new(comm, &stream, count);
    comm.barrier().unwrap();
    let graph = capture(&stream, || {
        comm.on_stream(&stream).all_reduce(&mut a.memory, ReduceOp::Sum).unwrap();
        comm.on_stream(&stream).all_reduce(&mut a.memory, ReduceOp::Max).unwrap();
        let send = a.memory.slice(..);
        let mut view = b.memory.view_mut();
        comm.on_stream(&stream).all_reduce_into(&send, &mut view, ReduceOp::Sum).unwrap();
    });
    for round in 0..20 {
        a.put(&vec![round + 1; count]);
        graph.launch().unwrap();
        graph.launch().unwrap();
        assert!(b.get(count).iter().all(|&it| it == (round + 1) * n * n * n), "{round}");
        comm.on_stream(&stream).all_reduce(&mut b.memory, ReduceOp::Min).unwrap();
    }
    comm.on_stream(&stream).check().unwrap();
    // Nobody launches it after this.
    drop(graph);
    comm.barrier().unwrap();
}

pub(super) fn capture(stream: &Arc<CudaStream>, calls: impl FnOnce()) -> CudaGraph {
    captured_by(stream, RELAXED, calls)
}

pub(super) fn captured_by(
    stream: &Arc<CudaStream>,
    mode: CUstreamCaptureMode,
    calls: impl FnOnce(),
) -> CudaGraph {
    stream.begin_capture(mode).unwrap();
    calls();
    stream.end_capture(AUTO_FREE).unwrap().unwrap()
}

/// Captured by one rank alone: both are told.
pub(super) fn one_captures(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let mut buf = Known::<i64>::new(comm, &stream, 10);
    comm.barrier().unwrap();
    let first = if comm.rank() == 0 {
        stream.begin_capture(RELAXED).unwrap();
        let done = comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum);
        drop(stream.end_capture(AUTO_FREE));
        done
    } else {
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum)
    };
    let error = first.and_then(|()| until_told(comm, &stream)).unwrap_err().to_string();
    assert!(error.contains("captured into a graph"), "{error}");
    stream.synchronize().unwrap();
}

/// Calls that graphs of a communicator may have.
const MOST: usize = 224;

/// More captures than there are places for calls: a graph that is no more gives its own back.
fn recaptured(comm: &mut Communicator) {
    let stream = attached_for_graphs(comm);
    let n = comm.size() as i64;
    let mut buf = Known::<i64>::new(comm, &stream, 10);
    comm.barrier().unwrap();
    let mut captured = |comm: &mut Communicator, op: ReduceOp| {
        let memory = &mut buf.memory;
        capture(&stream, || comm.on_stream(&stream).all_reduce(memory, op).unwrap())
    };
    let kept = captured(comm, ReduceOp::Max);
    for _ in 0..2 * MOST {
        drop(captured(comm, ReduceOp::Min));
    }
    let graph = captured(comm, ReduceOp::Sum);
    let living: Vec<_> = (2..MOST).map(|_| captured(comm, ReduceOp::Sum)).collect();
    buf.put(&[1; 10]);
    for graph in [&graph, &kept, &living[0]] {
        graph.launch().unwrap();
    }
    assert_eq!(buf.get(10), [n * n; 10]);
    stream.begin_capture(RELAXED).unwrap();
    let error = comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap_err();
    drop(stream.end_capture(AUTO_FREE));
    assert!(error.to_string().contains("224 calls in all living graphs"), "{error}");
    drop(living);
    comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Max).unwrap();
    let again = capture(&stream, || {
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
    });
    again.launch().unwrap();
    assert_eq!(buf.get(10), [n * n * n; 10]);
    comm.on_stream(&stream).check().unwrap();
    drop((again, graph, kept));
    comm.barrier().unwrap();
}

/// Rank 2 keeps its graphs and the others do not: they wait in vain for a place, and name it.
fn kept_by_one(comm: &mut Communicator, all_have_tried: &Barrier) {
    let stream = attached_for_graphs(comm);
    let mut buf = Known::<i64>::new(comm, &stream, 10);
    let mut kept = Vec::new();
    for _ in 0..MOST {
        let graph = capture(&stream, || {
            comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        });
        kept.extend((comm.rank() == 2).then_some(graph));
    }
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_secs(2));
    let done = (comm.rank() < 2).then(|| {
        stream.begin_capture(RELAXED).unwrap();
        let done = comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum);
        drop(stream.end_capture(AUTO_FREE));
        done.unwrap_err().to_string()
    });
    all_have_tried.wait();
    // Who waits longer hears of it from the other.
    let named = |error: &String| {
        ["nothing from", "lost"].iter().any(|what| error.contains(&format!(": {what} rank 2 (")))
    };
    assert!(done.iter().all(named), "{done:?}");
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn recaptured_threads() {
        on_ranks(2, recaptured);
    }

    pub(crate) fn kept_by_one() {
        let all_have_tried = Barrier::new(3);
        on_ranks(3, |comm| super::kept_by_one(comm, &all_have_tried));
    }

    pub(crate) fn recaptured_processes() {
        match this_rank() {
            Some(mut comm) => recaptured(&mut comm),
            None => run("device::graphs::body::recaptured_processes", 3, "shm"),
        }
    }
}

#[test]
fn who_keeps_its_graphs_is_named() {
    on_standin("device::graphs::body::kept_by_one", &[]);
}

#[test]
fn graphs_that_are_no_more_give_their_places_back() {
    on_standin("device::graphs::body::recaptured_threads", &[]);
    on_standin("device::graphs::body::recaptured_processes", &[]);
}
