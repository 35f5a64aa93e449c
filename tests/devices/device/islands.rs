//! Ranks of which only some reach each other: calls by islands are the host's, whatever ranks are
//! in them, and what fails is told by the names that ranks have in the whole.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, CudaView, CudaViewMut, DeviceRepr};
use ringreduce::{Communicator, DevicePath, OnStream, ReduceOp, Reduction};

use super::super::standin::on_standin;
use super::verbs::same;
use super::{Both, Nowhere};
use harness::processes::{run, this_rank};
use harness::{Value, on_ranks, share};

/// The device of each rank.
pub(super) const LAYOUTS: [&[usize]; 5] =
    [&[0, 0, 1], &[0, 1, 1], &[0, 0, 1, 1], &[0, 1, 1, 2], &[0, 1, 0, 1]];

/// A stream of the rank's device, and all is said of that.
pub(super) fn attached(comm: &mut Communicator, layout: &[usize]) -> Arc<CudaStream> {
    let stream = CudaContext::new(layout[comm.rank()]).unwrap().new_stream().unwrap();
    comm.use_device(stream.context()).unwrap();
    assert_eq!(comm.device_path(), DevicePath::Islands);
    comm.barrier().unwrap();
    stream
}

/// Collectives that this rank has made by way of the host.
fn calls(comm: &mut Communicator) -> String {
    let said = format!("{comm:?}");
    said.split("calls: ").nth(1).unwrap().split(',').next().unwrap().to_owned()
}

/// Reductions that are put together of several.
fn reductions<T: Value + DeviceRepr>(both: &mut Both<'_>, ops: &[Reduction], count: usize) {
    let (n, rank) = (both.comm.size(), both.comm.rank());
    for &op in ops {
        same!(both, both.input::<T>(count), all_reduce(op));
        same!(both, both.input::<T>(count), count, all_reduce_into(op));
        same!(both, both.input::<T>(n * count), count, reduce_scatter(op));
        same!(both, both.input::<T>(n * count), reduce_scatter_in_place(op));
        for root in 0..n {
            same!(both, both.input::<T>(count), reduce(op, root));
            let len = if rank == root { count } else { 0 };
            same!(both, both.input::<T>(count), len, reduce_into(op, root));
        }
    }
}

fn moves<T: Value + DeviceRepr>(both: &mut Both<'_>, count: usize) {
    let (n, rank) = (both.comm.size(), both.comm.rank());
    same!(both, both.input::<T>(count), n * count, all_gather());
    same!(both, both.input::<T>(n * count), all_gather_in_place());
    for root in 0..n {
        let all = if rank == root { n * count } else { 0 };
        same!(both, both.input::<T>(count), broadcast(root));
        same!(both, both.input::<T>(count), all, gather(root));
        same!(both, both.input::<T>(all), count, scatter(root));
    }
}

/// Every verb, on memory of which others know nothing.
fn every_verb(comm: &mut Communicator, layout: &[usize]) {
    let stream = attached(comm, layout);
    let mut both = Both { comm, stream };
    let [sum, max, avg] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg].map(Reduction::from);
    for count in [0, 1, 1001] {
        reductions::<f32>(&mut both, &[sum, avg, Reduction::premul_sum(2.0_f32)], count);
        moves::<f32>(&mut both, count);
    }
    reductions::<i64>(&mut both, &[max, avg], 33);
    reductions::<f64>(&mut both, &[avg, Reduction::premul_sum(0.5_f64)], 1000);
    moves::<u8>(&mut both, 10_001);
    both.every::<u8>(77);
    both.comm.on_stream(&both.stream).check().unwrap();
}

/// None of these is a call of all by way of the host.
fn by_islands(comm: &mut Communicator, layout: &[usize]) {
    let stream = attached(comm, layout);
    let (n, rank) = (comm.size(), comm.rank());
    let known = comm.alloc_device::<i32>(&stream, 100 * n);
    let mut long = known.unwrap();
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

/// Calls on two streams of which none is waited for; longer than there is memory for at once.
fn in_pieces(comm: &mut Communicator, layout: &[usize]) {
    let first = attached(comm, layout);
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

/// What is refused at once changes nothing, at any rank.
fn refused(comm: &mut Communicator, layout: &[usize]) {
    let stream = attached(comm, layout);
    let (n, rank) = (comm.size(), comm.rank());
    let mut buf = stream.clone_htod(&vec![rank as i32; n]).unwrap();
    comm.barrier().unwrap();
    let mut nowhere = Nowhere(Arc::clone(&stream));
    let error = comm.on_stream(&stream).reduce(&mut nowhere, ReduceOp::Sum, 0).unwrap_err();
    let said = "reduce: finding out what memory a buffer is";
    assert!(error.to_string().contains(said), "{error}");
    let error = comm.on_stream(&stream).reduce(&mut buf, ReduceOp::Sum, n).unwrap_err();
    assert!(error.to_string().starts_with("reduce: root is"), "{error}");
    if layout.iter().filter(|&&device| device == layout[rank]).count() > 1 {
        let shared = stream.context().default_stream();
        let mut on = comm.on_stream(&shared);
        let sum = on.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err().to_string();
        let parts = on.reduce_scatter_in_place(&mut buf, ReduceOp::Sum).unwrap_err().to_string();
        assert!([sum, parts].iter().all(|it| it.contains("stream is the default one")));
    }
    comm.on_stream(&stream).all_gather_in_place(&mut buf).unwrap();
    assert!(stream.clone_dtoh(&buf).unwrap().into_iter().eq(0..n as i32));
    comm.on_stream(&stream).check().unwrap();
}

/// The last rank makes another call: who meets it is told which, not which part of it.
fn mismatch(comm: &mut Communicator, layout: &[usize]) {
    let stream = attached(comm, layout);
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
        let said = format!("does not make the same call: the call is {theirs} of int32");
        assert!(error.contains(&said), "{rank} of {layout:?}: {error}");
    } else {
        assert!(error.contains(": lost rank "), "{rank} of {layout:?}: {error}");
    }
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    const LAYOUT: &str = "TEST_ISLANDS_LAYOUT";

    fn all(comm: &mut Communicator, layout: &[usize]) {
        every_verb(comm, layout);
        by_islands(&mut comm.duplicate().unwrap(), layout);
    }

    pub(crate) fn threads() {
        for layout in share::of(&LAYOUTS, 2) {
            on_ranks(layout.len(), |comm| all(comm, layout));
        }
    }

    pub(crate) fn wrong() {
        for layout in [LAYOUTS[0], LAYOUTS[4]] {
            on_ranks(layout.len(), |comm| refused(comm, layout));
        }
        for layout in [LAYOUTS[1], LAYOUTS[2], LAYOUTS[4]] {
            on_ranks(layout.len(), |comm| mismatch(comm, layout));
        }
    }

    pub(crate) fn long() {
        for layout in share::of(&[LAYOUTS[0], LAYOUTS[4]], 2) {
            on_ranks(layout.len(), |comm| in_pieces(comm, layout));
        }
    }

    pub(crate) fn processes() {
        let at = std::env::var(LAYOUT).unwrap().parse::<usize>().unwrap();
        match this_rank() {
            Some(mut comm) => all(&mut comm, LAYOUTS[at]),
            None => run("device::islands::body::processes", LAYOUTS[at].len(), "shm"),
        }
    }
}

pub(super) const SEPARATE: [(&str, &str); 2] =
    [("STANDIN_CUDA_DEVICES", "3"), ("STANDIN_CUDA_PEERS", "none")];

#[test]
fn every_verb_by_islands_is_the_hosts() {
    on_standin("device::islands::body::threads", &SEPARATE);
}

#[test]
fn islands_of_processes() {
    for at in share::of(&[0, 1, 2, 3, 4], 3) {
        let [devices, peers] = SEPARATE;
        let layout = ("TEST_ISLANDS_LAYOUT", &*at.to_string());
        on_standin("device::islands::body::processes", &[devices, peers, layout]);
    }
}

#[test]
fn long_calls_by_islands_are_made_in_pieces() {
    on_standin("device::islands::body::long", &SEPARATE);
}

#[test]
fn what_is_wrong_is_told_as_of_the_whole() {
    on_standin("device::islands::body::wrong", &SEPARATE);
}
