//! Ranks of which only some reach each other: calls of several P2P domains give the host's results,
//! whatever ranks are in each, and errors name ranks by their numbers in the communicator.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use ringreduce::{Communicator, DataType, DevicePath, ReduceOp, Reduction};

use super::super::standin::{self, DEVICES, PEERS, on_standin, run_on_standin, this_body};
use super::fixture::{Both, NOWHERE, on_processes, raw, refused};
use harness::{on_ranks, share};

/// The device of each rank.
pub(super) const LAYOUTS: [&[usize]; 5] =
    [&[0, 0, 1], &[0, 1, 1], &[0, 0, 1, 1], &[0, 1, 1, 2], &[0, 1, 0, 1]];

/// A stream of the rank's device, which the communicator uses.
pub(super) fn attach(comm: &mut Communicator, layout: &[usize]) -> Arc<CudaStream> {
    let stream = CudaContext::new(layout[comm.rank()]).unwrap().new_stream().unwrap();
    comm.use_device(stream.context()).unwrap();
    assert_eq!(comm.device_path(), DevicePath::Islands);
    comm.barrier().unwrap();
    stream
}

/// The number of collectives that this rank has made by way of the host.
fn calls(comm: &mut Communicator) -> String {
    let debug = format!("{comm:?}");
    debug.split("calls: ").nth(1).unwrap().split(',').next().unwrap().to_owned()
}

/// Every verb, on memory that no other rank knows.
fn every_verb(comm: &mut Communicator, layout: &[usize]) {
    let stream = attach(comm, layout);
    let mut both = Both { comm, stream };
    let [sum, max, avg] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg].map(Reduction::from);
    for count in [0, 1, 1001] {
        both.reductions::<f32>(&[sum, avg, Reduction::premul_sum(2.0_f32)], count);
        both.moves::<f32>(count);
    }
    both.reductions::<i64>(&[max, avg], 33);
    both.reductions::<f64>(&[avg, Reduction::premul_sum(0.5_f64)], 1000);
    both.moves::<u8>(10_001);
    both.every::<u8>(77);
    both.comm.on_stream(&both.stream).check().unwrap();
}

/// No rank makes any of these calls by way of the host with all ranks.
fn by_domains(comm: &mut Communicator, layout: &[usize]) {
    let stream = attach(comm, layout);
    let (n, rank) = (comm.size(), comm.rank());
    let mut long = comm.alloc_device::<i32>(&stream, 100 * n).unwrap();
    let mut short = stream.clone_htod(&[1_i32; 100]).unwrap();
    let before = calls(comm);
    for root in 0..n {
        let mut on = comm.on_stream(&stream);
        on.all_gather(&short, &mut long.view_mut()).unwrap();
        on.all_gather_in_place(&mut long.view_mut()).unwrap();
        on.reduce_scatter(&*long, &mut short, ReduceOp::Max).unwrap();
        on.reduce_scatter_in_place(&mut long.view_mut(), ReduceOp::Max).unwrap();
        on.all_reduce(&mut short, ReduceOp::Max).unwrap();
        on.broadcast(&mut short, root).unwrap();
        on.reduce(&mut short, ReduceOp::Max, root).unwrap();
        on.gather(&short, &mut long.view_mut(), root).unwrap();
        on.scatter(&*long, &mut short, root).unwrap();
        stream.synchronize().unwrap();
        on.check().unwrap();
    }
    assert_eq!(before, calls(comm));
    assert_eq!(stream.clone_dtoh(&short).unwrap(), [1; 100], "rank {rank}");
}

/// Calls on two streams, none of which is waited for, of more bytes than staging has memory for.
fn in_pieces(comm: &mut Communicator, layout: &[usize]) {
    let first = attach(comm, layout);
    let second = first.context().new_stream().unwrap();
    comm.barrier().unwrap();
    let (n, rank, count) = (comm.size(), comm.rank(), (5 << 17) + 3);
    let given = |rank: usize| (0..count).map(move |i| (i % 101 + rank) as u64);
    let send: Vec<u64> = given(rank).collect();
    let mut bufs = [&first, &second].map(|stream| {
        let send = stream.clone_htod(&send).unwrap();
        (stream, send, stream.alloc_zeros::<u64>(n * count).unwrap(), stream.alloc_zeros(count))
    });
    comm.barrier().unwrap();
    for (stream, send, recv, back) in &mut bufs {
        let back = back.as_mut().unwrap();
        comm.on_stream(stream).all_gather(send, recv).unwrap();
        comm.on_stream(stream).reduce_scatter(recv, back, ReduceOp::Max).unwrap();
        comm.on_stream(stream).gather(back, recv, 1).unwrap();
        comm.on_stream(stream).scatter(recv, back, 1).unwrap();
    }
    for (stream, _, recv, back) in &bufs {
        let found = stream.clone_dtoh(recv).unwrap();
        let all = found.chunks(count).enumerate();
        all.for_each(|(rank, block)| assert!(block.iter().copied().eq(given(rank)), "{rank}"));
        assert!(stream.clone_dtoh(back.as_ref().unwrap()).unwrap() == send);
        comm.on_stream(stream).check().unwrap();
    }
}

/// A call that is refused at once changes nothing at any rank.
fn refused_at_once(comm: &mut Communicator, layout: &[usize]) {
    let stream = attach(comm, layout);
    let (n, rank) = (comm.size(), comm.rank());
    let mut buf = stream.clone_htod(&vec![rank as i32; n]).unwrap();
    comm.barrier().unwrap();
    let nowhere = raw(NOWHERE, 40);
    let done = comm.on_stream(&stream).reduce_bytes(nowhere, DataType::I32, ReduceOp::Sum, 0);
    refused(done, "reduce: buf is memory that devices can't touch");
    let error = comm.on_stream(&stream).reduce(&mut buf, ReduceOp::Sum, n).unwrap_err();
    assert!(error.to_string().starts_with("reduce: root is"), "{error}");
    if layout.iter().filter(|&&device| device == layout[rank]).count() > 1 {
        let shared = stream.context().default_stream();
        let mut on = comm.on_stream(&shared);
        refused(on.all_reduce(&mut buf, ReduceOp::Sum), "stream is the default one");
        refused(on.reduce_scatter_in_place(&mut buf, ReduceOp::Sum), "stream is the default one");
    }
    comm.on_stream(&stream).all_gather_in_place(&mut buf).unwrap();
    assert!(stream.clone_dtoh(&buf).unwrap().into_iter().eq(0..n as i32));
    comm.on_stream(&stream).check().unwrap();
}

/// The last rank makes another call: the error of a rank in its domain names the whole call.
fn mismatch(comm: &mut Communicator, layout: &[usize]) {
    let stream = attach(comm, layout);
    let (rank, last) = (comm.rank(), comm.size() - 1);
    let mut buf = stream.clone_htod(&[1_i32; 12]).unwrap();
    comm.barrier().unwrap();
    let mut on = comm.on_stream(&stream);
    let done = match rank == last {
        true => on.all_gather_in_place(&mut buf),
        false => on.reduce_scatter_in_place(&mut buf, ReduceOp::Sum),
    };
    stream.synchronize().unwrap();
    let error = done.and_then(|()| on.check()).unwrap_err().to_string();
    if layout[rank] == layout[last] {
        let theirs = if rank == last { "reduce_scatter" } else { "all_gather" };
        let want = format!("does not make the same call: the call is {theirs} of int32");
        assert!(error.contains(&want), "{rank} of {layout:?}: {error}");
    } else {
        assert!(error.contains(": lost rank "), "{rank} of {layout:?}: {error}");
    }
}

/// The number of a layout, for processes.
pub(super) const LAYOUT: &str = "TEST_P2P_DOMAINS_LAYOUT";

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    fn all(comm: &mut Communicator, layout: &[usize]) {
        every_verb(comm, layout);
        by_domains(&mut comm.duplicate().unwrap(), layout);
    }

    fn on_threads(layouts: impl IntoIterator<Item = usize>, rank: fn(&mut Communicator, &[usize])) {
        for layout in layouts.into_iter().map(|at| LAYOUTS[at]) {
            on_ranks(layout.len(), |comm| rank(comm, layout));
        }
    }

    pub(crate) fn threads() {
        on_threads(share::of(&[0, 1, 2, 3, 4], 2), all);
    }

    pub(crate) fn invalid() {
        on_threads([0, 4], refused_at_once);
        on_threads([1, 2, 4], mismatch);
    }

    pub(crate) fn long() {
        on_threads(share::of(&[0, 4], 2), in_pieces);
    }

    pub(crate) fn processes() {
        let layout = LAYOUTS[std::env::var(LAYOUT).unwrap().parse::<usize>().unwrap()];
        on_processes(this_body!(processes), [layout.len()], |comm| all(comm, layout));
    }
}

#[test]
fn p2p_domains_of_processes() {
    for at in share::of(&[0, 1, 2, 3, 4], 3) {
        let settings = [(DEVICES, "3"), (PEERS, "none"), (LAYOUT, &*at.to_string())];
        run_on_standin(&standin::name_of(module_path!(), "body::processes"), &settings);
    }
}

on_standin! {
    (body::processes)

    every_verb_of_p2p_domains_gives_the_hosts_results: threads [DEVICES = "3", PEERS = "none"];
    long_calls_of_p2p_domains_are_made_in_pieces: long [DEVICES = "3", PEERS = "none"];
    errors_of_p2p_domains_name_ranks_of_the_communicator:
        invalid [DEVICES = "3", PEERS = "none"];
}
