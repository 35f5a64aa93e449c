//! Calls that are captured into graphs.

use std::time::Duration;

use super::super::standin::{self, on_standin, this_body};
use super::fixture::{
    Shared, attach_for_graphs, capture, fails, in_capture, on_processes, refused,
};
use harness::barrier::Barrier;
use harness::on_ranks;
use ringreduce::{Communicator, ReduceOp};

/// A graph with calls is launched again and again, with other calls in between.
pub(super) fn graph(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let (n, count) = (comm.size() as i64, 500);
    let mut a = Shared::<i64>::new(comm, &stream, count);
    let mut b = Shared::<i64>::new(comm, &stream, count);
    let mut all = Shared::<i64>::new(comm, &stream, comm.size() * count);
    comm.barrier().unwrap();
    let graph = capture(&stream, || {
        let mut on = comm.on_stream(&stream);
        on.all_reduce(&mut a.memory, ReduceOp::Sum).unwrap();
        on.all_reduce(&mut a.memory, ReduceOp::Max).unwrap();
        on.all_reduce_into(&*a.memory, &mut b.memory.view_mut(), ReduceOp::Sum).unwrap();
        on.all_gather(&*b.memory, &mut all.memory.view_mut()).unwrap();
        on.broadcast(&mut all.memory, n as usize - 1).unwrap();
    });
    for round in 0..20 {
        a.put(&vec![round + 1; count]);
        graph.launch().unwrap();
        graph.launch().unwrap();
        let found = [b.get(count), all.get(n as usize * count)].concat();
        assert!(found.iter().all(|&it| it == (round + 1) * n * n * n), "{round}");
        comm.on_stream(&stream).all_reduce(&mut b.memory, ReduceOp::Min).unwrap();
    }
    comm.on_stream(&stream).check().unwrap();
    // No rank launches the graph after this barrier.
    drop(graph);
    comm.barrier().unwrap();
}

/// One rank alone captures a call: both ranks get an error.
pub(super) fn one_captures(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let mut buf = Shared::<i64>::new(comm, &stream, 10);
    comm.barrier().unwrap();
    let first = if comm.rank() == 0 {
        in_capture(&stream, || comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum))
    } else {
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum)
    };
    fails(comm, &stream, first, "captured into a graph");
    stream.synchronize().unwrap();
}

/// The most calls in all graphs of a communicator.
const MOST: usize = 224;

/// More captures than operation slots: a dropped graph frees its slots.
fn recaptured(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let n = comm.size() as i64;
    let mut buf = Shared::<i64>::new(comm, &stream, 10);
    comm.barrier().unwrap();
    let mut captured = |comm: &mut Communicator, op: ReduceOp| {
        let memory = &mut buf.memory;
        capture(&stream, || comm.on_stream(&stream).all_reduce(memory, op).unwrap())
    };
    let first = captured(comm, ReduceOp::Max);
    for _ in 0..2 * MOST {
        drop(captured(comm, ReduceOp::Min));
    }
    let graph = captured(comm, ReduceOp::Sum);
    let living: Vec<_> = (2..MOST).map(|_| captured(comm, ReduceOp::Sum)).collect();
    buf.put(&[1; 10]);
    for graph in [&graph, &first, &living[0]] {
        graph.launch().unwrap();
    }
    assert_eq!(buf.get(10), [n * n; 10]);
    let call = || comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum);
    refused(in_capture(&stream, call), "224 calls in all living graphs");
    drop(living);
    comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Max).unwrap();
    let again = capture(&stream, || {
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
    });
    again.launch().unwrap();
    assert_eq!(buf.get(10), [n * n * n; 10]);
    comm.on_stream(&stream).check().unwrap();
    drop((again, graph, first));
    comm.barrier().unwrap();
}

/// Rank 2 keeps its graphs and the others do not: these wait in vain for a free operation slot, and
/// name rank 2.
fn one_keeps_graphs(comm: &mut Communicator, all_have_tried: &Barrier) {
    let stream = attach_for_graphs(comm);
    let mut buf = Shared::<i64>::new(comm, &stream, 10);
    let mut graphs = Vec::new();
    for _ in 0..MOST {
        let graph = capture(&stream, || {
            comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        });
        graphs.extend((comm.rank() == 2).then_some(graph));
    }
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_secs(2));
    let done = (comm.rank() < 2).then(|| {
        let call = || comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum);
        in_capture(&stream, call).unwrap_err().to_string()
    });
    all_have_tried.wait();
    // The rank that waits longer gets the error from the other one.
    let named = |error: &String| {
        ["nothing from", "lost"].iter().any(|what| error.contains(&format!(": {what} rank 2 (")))
    };
    assert!(done.iter().all(named), "{done:?}");
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn recaptured_threads() {
        on_ranks(2, recaptured);
    }

    pub(crate) fn one_keeps_graphs() {
        let all_have_tried = Barrier::new(3);
        on_ranks(3, |comm| super::one_keeps_graphs(comm, &all_have_tried));
    }

    pub(crate) fn recaptured_processes() {
        on_processes(this_body!(recaptured_processes), [3], recaptured);
    }
}

on_standin! {
    a_rank_that_keeps_its_graphs_is_named: one_keeps_graphs [];
    dropped_graphs_free_their_operation_slots: recaptured_threads [], recaptured_processes [];
}
