//! Several devices, and hardware queues that streams share: results are the same wherever the
//! ranks' buffers are.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use ringreduce::{Communicator, DevicePath, ReduceOp};

use super::super::standin::{self, DEVICES, PEERS, QUEUES, on_standin, this_body};
use super::direct::{allocations, pinned, shared_memory, verbs};
use super::fixture::{attach, attach_as, every_verb_short, in_order, on_processes, stream};
use super::graphs::graph;
use harness::{on_ranks, share};

/// Long buffers, of which each rank reduces a part, and which staging cuts into many pieces; calls
/// alternate between two streams.
pub(super) fn long(comm: &mut Communicator) {
    let streams: [Arc<CudaStream>; 2] = [stream(comm), stream(comm)];
    comm.use_device(streams[0].context()).unwrap();
    let (n, len) = (comm.size() as i64, 1 << 15);
    let mut shared = comm.alloc_device::<i64>(&streams[0], len).unwrap();
    let mut other = streams[1].clone_htod(&vec![1_i64; len]).unwrap();
    streams[0].memcpy_htod(&vec![1_i64; len], &mut shared.view_mut()).unwrap();
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    comm.barrier().unwrap();
    for _ in 0..3 {
        comm.on_stream(&streams[0]).all_reduce(&mut shared, ReduceOp::Sum).unwrap();
        comm.on_stream(&streams[1]).all_reduce(&mut other, ReduceOp::Sum).unwrap();
    }
    for (stream, found) in [
        (&streams[0], streams[0].clone_dtoh(&*shared).unwrap()),
        (&streams[1], streams[1].clone_dtoh(&other).unwrap()),
    ] {
        assert!(found.into_iter().all(|it| it == n.pow(3)));
        comm.on_stream(stream).check().unwrap();
    }
}

/// Calls of devices that do not reach each other.
fn without_peer_access(comm: &mut Communicator) {
    let stream = attach(comm);
    // Ranks that share a device still reach each other.
    let shared = comm.size() > CudaContext::device_count().unwrap() as usize;
    let path = if shared { DevicePath::Islands } else { DevicePath::Host };
    assert_eq!(comm.device_path(), path);
    every_verb_short(comm);
    let mut memory = comm.alloc_device::<i32>(&stream, 100).unwrap();
    stream.memcpy_htod(&[1; 100], &mut memory.view_mut()).unwrap();
    comm.barrier().unwrap();
    for _ in 0..5 {
        comm.on_stream(&stream).all_reduce(&mut memory, ReduceOp::Sum).unwrap();
    }
    let found = stream.clone_dtoh(&*memory).unwrap();
    assert_eq!(found, [(comm.size() as i32).pow(5); 100]);
    comm.on_stream(&stream).check().unwrap();
}

/// A rank leaves that is alone in its P2P domain: both ranks of the other domain get an error, also
/// the one that never calls other domains.
fn a_domain_leaves() {
    on_ranks(3, |comm| {
        let stream = attach_as(comm, DevicePath::Islands);
        let mut buf = stream.clone_htod(&[1_i32; 100]).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            return;
        }
        let done = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
        stream.synchronize().unwrap();
        let error = done.and_then(|()| comm.on_stream(&stream).check()).unwrap_err().to_string();
        assert!(error.contains("lost rank") || error.contains("closed"), "{error}");
    });
}

const BODIES: [fn(&mut Communicator); 5] = [shared_memory, pinned, graph, allocations, long];

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in share::of(&[4, 2], 2) {
            on_ranks(n, verbs);
            BODIES.into_iter().for_each(|body| drop(on_ranks(n, body)));
        }
    }

    pub(crate) fn processes() {
        on_processes(this_body!(processes), share::of(&[2, 4], 2), |comm| {
            verbs(comm);
            BODIES.into_iter().for_each(|body| body(&mut comm.duplicate().unwrap()));
        });
    }

    pub(crate) fn eight_processes() {
        on_processes(this_body!(eight_processes), [8], |comm| {
            long(comm);
            in_order(comm);
            shared_memory(&mut comm.duplicate().unwrap());
        });
    }

    pub(crate) fn without_peer_access() {
        let worlds = share::of(&[4, 2, 3], 3);
        on_processes(this_body!(without_peer_access), worlds, super::without_peer_access);
    }

    pub(crate) fn threads_without_peer_access() {
        share::of(&[2, 3, 4], 3).for_each(|n| drop(on_ranks(n, super::without_peer_access)));
        a_domain_leaves();
    }
}

on_standin! {
    threads_on_several_devices: threads [DEVICES = "2"], threads [DEVICES = "4"];
    processes_on_several_devices:
        processes [DEVICES = "2", QUEUES = "1"],
        processes [DEVICES = "4"];
    devices_without_peer_access_go_by_way_of_the_host:
        without_peer_access [DEVICES = "2", PEERS = "none"],
        threads_without_peer_access [DEVICES = "2", PEERS = "none"];
    eight_processes_share_a_device:
        eight_processes [QUEUES = "1"],
        eight_processes [QUEUES = "2"],
        eight_processes [QUEUES = "unlimited"];
}
