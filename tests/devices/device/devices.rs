//! Several devices, and the queues that streams of a device share: calls are the same wherever
//! ranks have their buffers.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use ringreduce::{Communicator, DevicePath, ReduceOp, Reduction};

use super::super::standin::on_standin;
use super::direct::{allocations, attached, known_memory, pinned};
use super::graphs::graph;
use super::{every_verb_shortly, in_order, stream};
use harness::processes::{run, this_rank};
use harness::{on_ranks, share};

const QUEUES: &str = "STANDIN_CUDA_QUEUES";
const DEVICES: &str = "STANDIN_CUDA_DEVICES";
const PEERS: &str = "STANDIN_CUDA_PEERS";

/// What devices that reach each other do.
fn all(comm: &mut Communicator) {
    attached(comm);
    every_verb_shortly(comm);
    in_order(comm);
}

/// Long enough that each rank works on a part of it, over many pieces where it is copied; in the
/// order of streams that take turns.
pub(super) fn long(comm: &mut Communicator) {
    let streams: [Arc<CudaStream>; 2] = [stream(comm), stream(comm)];
    comm.use_device(streams[0].context()).unwrap();
    let (n, len) = (comm.size() as i64, 1 << 15);
    let mut known = comm.alloc_device::<i64>(&streams[0], len).unwrap();
    let mut other = streams[1].clone_htod(&vec![1_i64; len]).unwrap();
    streams[0].memcpy_htod(&vec![1_i64; len], &mut known.view_mut()).unwrap();
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    comm.barrier().unwrap();
    for _ in 0..3 {
        comm.on_stream(&streams[0]).all_reduce(&mut known, ReduceOp::Sum).unwrap();
        comm.on_stream(&streams[1]).all_reduce(&mut other, ReduceOp::Sum).unwrap();
    }
    for (stream, found) in [
        (&streams[0], streams[0].clone_dtoh(&*known).unwrap()),
        (&streams[1], streams[1].clone_dtoh(&other).unwrap()),
    ] {
        assert!(found.into_iter().all(|it| it == n.pow(3)));
        comm.on_stream(stream).check().unwrap();
    }
}

/// What islands have to put together: an average is divided once, a factor multiplies once, and any
/// rank may be the root.
fn averages_and_roots(comm: &mut Communicator, stream: &Arc<CudaStream>) {
    let (n, rank) = (comm.size(), comm.rank());
    let given = |i: usize| (n * (i % 5 + rank)) as f32;
    let mut buf = stream.clone_htod(&(0..1000).map(given).collect::<Vec<_>>()).unwrap();
    comm.barrier().unwrap();
    let all: usize = (0..n).sum();
    comm.on_stream(stream).all_reduce(&mut buf, ReduceOp::Avg).unwrap();
    let want = |i: usize| (n * (i % 5) + all) as f32;
    assert!(stream.clone_dtoh(&buf).unwrap().iter().enumerate().all(|(i, &it)| it == want(i)));
    comm.on_stream(stream).all_reduce(&mut buf, Reduction::premul_sum(2.0_f32)).unwrap();
    let want = |i: usize| 2.0 * n as f32 * want(i);
    assert!(stream.clone_dtoh(&buf).unwrap().iter().enumerate().all(|(i, &it)| it == want(i)));
    for root in 0..n {
        let mut buf = stream.clone_htod(&[rank as i64; 100]).unwrap();
        comm.barrier().unwrap();
        comm.on_stream(stream).broadcast(&mut buf, root).unwrap();
        assert_eq!(stream.clone_dtoh(&buf).unwrap(), [root as i64; 100]);
    }
}

/// Devices that do not reach each other: calls are as before.
fn apart(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    // Ranks that share a device still reach each other.
    let shared = comm.size() > CudaContext::device_count().unwrap() as usize;
    let path = if shared { DevicePath::Islands } else { DevicePath::Host };
    assert_eq!(comm.device_path(), path);
    every_verb_shortly(comm);
    averages_and_roots(comm, &stream);
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

/// A rank that leaves, of another island than two others: all of them are told, also who does not
/// go to other islands.
fn one_island_leaves() {
    on_ranks(3, |comm| {
        let stream = stream(comm);
        comm.use_device(stream.context()).unwrap();
        assert_eq!(comm.device_path(), DevicePath::Islands);
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

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in share::of(&[4, 2], 2) {
            on_ranks(n, all);
            for body in [known_memory, pinned, graph, allocations, long] {
                on_ranks(n, body);
            }
        }
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                all(&mut comm);
                for body in [known_memory, pinned, graph, allocations, long] {
                    body(&mut comm.duplicate().unwrap());
                }
            }
            None => {
                let worlds = share::of(&[2, 4], 2);
                worlds.for_each(|n| run("device::devices::body::processes", n, "shm"));
            }
        }
    }

    pub(crate) fn many() {
        match this_rank() {
            Some(mut comm) => {
                long(&mut comm);
                in_order(&mut comm);
                known_memory(&mut comm.duplicate().unwrap());
            }
            None => run("device::devices::body::many", 8, "shm"),
        }
    }

    pub(crate) fn apart() {
        match this_rank() {
            Some(mut comm) => super::apart(&mut comm),
            None => {
                share::of(&[2, 3, 4], 3).for_each(|n| drop(on_ranks(n, super::apart)));
                one_island_leaves();
                let worlds = share::of(&[4, 2, 3], 3);
                worlds.for_each(|n| run("device::devices::body::apart", n, "shm"));
            }
        }
    }
}

#[test]
fn threads_on_several_devices() {
    on_standin("device::devices::body::threads", &[(DEVICES, "2")]);
    on_standin("device::devices::body::threads", &[(DEVICES, "4")]);
}

#[test]
fn processes_on_several_devices() {
    on_standin("device::devices::body::processes", &[(DEVICES, "2"), (QUEUES, "1")]);
    on_standin("device::devices::body::processes", &[(DEVICES, "4")]);
}

#[test]
fn devices_that_do_not_reach_each_other_go_by_way_of_the_host() {
    on_standin("device::devices::body::apart", &[(DEVICES, "2"), (PEERS, "none")]);
}

#[test]
fn eight_processes_share_a_device() {
    ["1", "2", "unlimited"].into_iter().for_each(|queues| {
        on_standin("device::devices::body::many", &[(QUEUES, queues)]);
    });
}
