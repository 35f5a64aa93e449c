//! Calls that go straight to the ranks' buffers, by kernels that the stand-in interprets.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::super::standin::{self, QUEUES, on_standin, this_body};
use super::fixture::{
    NOWHERE, Shared, address, attach_direct, every_verb_short, fails, given, in_order,
    on_processes, raw, refused, until_error, until_freed,
};
use super::graphs::{graph, one_captures};
use harness::{on_ranks, share};
use ringreduce::{Communicator, DataType, ReduceOp};

/// Verbs on memory that the other ranks open, on whole buffers and on parts of them.
pub(super) fn shared_memory(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let n = comm.size();
    for count in [1, 1000, 20_011] {
        let mut one = Shared::<f32>::new(comm, &stream, n * count + 7);
        let mut other = Shared::<f32>::new(comm, &stream, n * count + 7);
        let sum = ReduceOp::Sum;
        for from in [0, 3, 4] {
            let mut host = given::<f32>(comm, n * count);
            one.put(&[&vec![5.0; from][..], &host].concat());
            let mut view = one.memory.view_mut();
            let mut part = view.slice_mut(from..from + n * count);
            comm.on_stream(&stream).all_reduce(&mut part, sum).unwrap();
            comm.all_reduce(&mut host, sum).unwrap();
            assert!(one.get(from + n * count)[from..] == host, "{count} from {from}");
            assert!(one.get(from).iter().all(|&before| before == 5.0));
        }
        let host = given::<f32>(comm, n * count);
        one.put(&host);
        let mut short = vec![0.0; count];
        let mut view = other.memory.view_mut();
        let sends = one.memory.slice(..n * count);
        let mut part = view.slice_mut(..count);
        comm.on_stream(&stream).reduce_scatter(&sends, &mut part, sum).unwrap();
        comm.reduce_scatter(&host, &mut short, sum).unwrap();
        assert!(other.get(count) == short);
        let mut long = vec![0.0; n * count];
        let (send, mut view) = (one.memory.slice(..count), other.memory.view_mut());
        let mut all = view.slice_mut(..n * count);
        comm.on_stream(&stream).all_gather(&send, &mut all).unwrap();
        comm.all_gather(&host[..count], &mut long).unwrap();
        assert!(other.get(n * count) == long);
        comm.on_stream(&stream).check().unwrap();
    }
}

/// Two ranks differ in the count: both get an error that says so, and no stream waits for ever.
fn mismatch(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let count = if comm.rank() == 0 { 1000 } else { 1001 };
    let mut buf = stream.clone_htod(&vec![1_i32; count]).unwrap();
    comm.barrier().unwrap();
    let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    stream.synchronize().unwrap();
    let want = if comm.rank() == 0 { "the count is 1001 there, 1000 here" } else { "1000 there" };
    fails(comm, &stream, first, want);
    refused(comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum), "failed before");
    // No kernel has written the buffer, and the context is usable.
    assert!(stream.clone_dtoh(&buf).unwrap().iter().all(|&it| it == 1));
}

/// A rank that leaves without the call that the others make.
fn one_leaves(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return;
    }
    let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let until = Instant::now() + Duration::from_secs(60);
    let known = loop {
        match comm.monitor().error() {
            Some(error) => break error.to_string(),
            None => assert!(Instant::now() < until, "the monitor does not tell"),
        }
        std::thread::yield_now();
    };
    assert!(known.contains("lost rank 1"), "{known}");
    let error = first.and_then(|()| until_error(comm, &stream)).unwrap_err().to_string();
    assert!(error.contains("lost rank 1") && error.contains("closed"), "{error}");
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 100]);
}

/// A buffer that devices can't touch, or that is too long, is refused at once, and the communicator
/// stays usable.
fn foreign(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    let start = address(&buf, &stream);
    comm.barrier().unwrap();
    let host = [1_i32; 10];
    for (start, len, want) in [
        (NOWHERE, 40, "buf is memory that devices can't touch"),
        (host.as_ptr().addr() as u64, 40, "buf is memory that devices can't touch"),
        (start, 404, "buf is 404 bytes long"),
    ] {
        let (nowhere, sum) = (raw(start, len), ReduceOp::Sum);
        refused(comm.on_stream(&stream).all_reduce_bytes(nowhere, DataType::I32, sum), want);
    }
    let good = raw(start, 400);
    comm.on_stream(&stream).all_reduce_bytes(good, DataType::I32, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), vec![comm.size() as i32; 100]);
}

/// Calls take pinned memory of the host like a device's.
pub(super) fn pinned(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    // SAFETY: the memory is written before it is read.
    let mut host = unsafe { stream.context().alloc_pinned::<i32>(100) }.unwrap();
    host.as_mut_slice().unwrap().fill(comm.rank() as i32 + 1);
    let start = host.as_ptr().unwrap().addr() as u64;
    comm.barrier().unwrap();
    let buf = raw(start, 400);
    comm.on_stream(&stream).all_reduce_bytes(buf, DataType::I32, ReduceOp::Max).unwrap();
    stream.synchronize().unwrap();
    assert!(host.as_slice().unwrap().iter().all(|&it| it == comm.size() as i32));
}

/// Two registered buffers in one allocation of the user.
fn registered(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let (n, mut start) = (comm.size() as i32, 0);
    // SAFETY: stores the address of new memory.
    unsafe { cudarc::driver::sys::cuMemAlloc_v2(&raw mut start, 4000).result() }.unwrap();
    let [one, other] = [start, start + 2000].map(|start| raw(start, 2000));
    let all: Vec<i32> = (0..1000).collect();
    // SAFETY: the memory is as long, and is leaked below.
    let mut both = unsafe { stream.upgrade_device_ptr::<i32>(start, 1000) };
    stream.memcpy_htod(&all, &mut both).unwrap();
    let held = [one, other].map(|buf| {
        // SAFETY: the memory is never freed.
        unsafe { comm.register_device(buf) }.unwrap()
    });
    let reduce = |comm: &mut Communicator, buf, op: ReduceOp| {
        comm.on_stream(&stream).all_reduce_bytes(buf, DataType::I32, op).unwrap();
    };
    reduce(comm, one, ReduceOp::Sum);
    reduce(comm, other, ReduceOp::Max);
    let found = stream.clone_dtoh(&both).unwrap();
    assert!((0..500).all(|i| found[i] == i as i32 * n && found[i + 500] == i as i32 + 500));
    drop(held);
    until_freed(comm);
    // A rank whose stream waits in a call closes nothing.
    comm.barrier().unwrap();
    // Calls also take memory that is no longer registered.
    reduce(comm, other, ReduceOp::Sum);
    assert!(stream.clone_dtoh(&both).unwrap()[500] == 500 * n);
    both.leak();
}

/// Dropped memory is used again.
pub(super) fn allocations(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    for _ in 0..40 {
        let mut buf = Shared::<i32>::new(comm, &stream, 1000);
        buf.put(&[1; 1000]);
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        assert_eq!(buf.get(1000), [comm.size() as i32; 1000]);
    }
}

const BODIES: [fn(&mut Communicator); 5] = [shared_memory, registered, pinned, graph, allocations];

/// Every verb, and calls in order, of devices that reach each other.
pub(super) fn verbs(comm: &mut Communicator) {
    attach_direct(comm);
    every_verb_short(comm);
    in_order(comm);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in share::of(&[2, 3, 1, 4, 8], 3) {
            on_ranks(n, verbs);
            BODIES.into_iter().for_each(|body| drop(on_ranks(n.min(4), body)));
        }
    }

    pub(crate) fn failing_threads() {
        for body in [mismatch, one_leaves, one_captures] {
            on_ranks(2, body);
        }
        on_ranks(3, foreign);
    }

    pub(crate) fn processes() {
        on_processes(this_body!(processes), share::of(&[4, 2], 2), |comm| {
            verbs(comm);
            BODIES.into_iter().for_each(|body| body(&mut comm.duplicate().unwrap()));
        });
    }
}

on_standin! {
    threads_reach_each_others_buffers: threads [];
    a_failure_is_named_and_no_stream_waits: failing_threads [];
    processes_reach_each_others_buffers: processes [];
    streams_of_a_process_may_share_a_queue: processes [QUEUES = "1"];
}
