//! Calls with invalid arguments are refused before they begin, and ranks whose arguments differ get
//! an error.

use super::super::standin::{self, on_standin};
use super::fixture::{AUTO_FREE, Both, LONG, RELAXED, refused, stream};
use harness::on_ranks;
use ringreduce::{Communicator, OnStream, ReduceOp, Result};

/// Invalid arguments are refused before the call begins.
fn invalid_arguments(comm: &mut Communicator) {
    let Both { comm, stream } = Both::new(comm);
    let (n, rank) = (comm.size(), comm.rank());
    let send = stream.clone_htod(&[1_i32; 10]).unwrap();
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let mut counts = vec![0; n];
    counts[rank] = 9;
    let twice = [counts.clone(), vec![1]].concat();
    comm.barrier().unwrap();
    let mut refuses = |want: &str, call: &mut dyn FnMut(&mut OnStream<'_>) -> Result<()>| {
        refused(call(&mut comm.on_stream(&stream)), want);
    };
    let to_send = "9, the entry of rank";
    refuses(to_send, &mut |on| on.all_gather_v(&send, &mut buf, &counts));
    refuses(to_send, &mut |on| on.gather_v(&send, &mut buf, &counts, 0));
    refuses(to_send, &mut |on| on.scatter_v(&send, &mut buf, &counts, 0));
    refuses(to_send, &mut |on| on.reduce_scatter_v(&send, &mut buf, &counts, ReduceOp::Sum));
    refuses("one for each rank", &mut |on| on.all_gather_v(&send, &mut buf, &twice));
    refuses("the length of send", &mut |on| on.all_to_all_v(&send, &counts, &mut buf, &counts));
    refuses("one for each rank", &mut |on| on.all_to_all_v(&send, &twice, &mut buf, &counts));
    refuses("below the size", &mut |on| on.gather_v(&send, &mut buf, &counts, n));
    refuses("below the size", &mut |on| on.scatter_v(&send, &mut buf, &counts, n));
    for peer in [rank, n] {
        refuses("below the size", &mut |on| on.send(&send, peer));
        refuses("below the size", &mut |on| on.recv(&mut buf, peer));
        refuses("below the size", &mut |on| on.send_recv(&send, peer, &mut buf, (rank + 1) % n));
    }
    let mut short = buf.slice_mut(..9);
    refuses("this rank sends to itself", &mut |on| on.send_recv(&send, rank, &mut short, rank));
    refuses("a multiple of the size", &mut |on| on.all_gather_in_place(&mut short));
    refuses("a multiple of the size", &mut |on| on.all_to_all_in_place(&mut short));
    refuses("a multiple of the size", &mut |on| {
        on.reduce_scatter_in_place(&mut short, ReduceOp::Sum)
    });
    let mut floats = stream.clone_htod(&[1.0_f32; 10]).unwrap();
    let views = &mut [floats.as_view_mut()];
    refuses("op is", &mut |on| on.all_reduce_many(views, ReduceOp::BitAnd));
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [n as i32; 10]);
}

/// Calls by way of the host are refused in a capture.
fn captured(comm: &mut Communicator) {
    let Both { comm, stream } = Both::new(comm);
    let (n, rank) = (comm.size(), comm.rank());
    let send = stream.clone_htod(&vec![1_i32; n]).unwrap();
    let mut buf = stream.clone_htod(&vec![1_i32; n]).unwrap();
    let (each, next) = (vec![1; n], (rank + 1) % n);
    comm.barrier().unwrap();
    stream.begin_capture(RELAXED).unwrap();
    let mut refuses = |call: &mut dyn FnMut(&mut OnStream<'_>) -> Result<()>| {
        refused(call(&mut comm.on_stream(&stream)), "stream is being captured");
    };
    refuses(&mut |on| on.barrier());
    refuses(&mut |on| on.send(&send, next));
    refuses(&mut |on| on.recv(&mut buf, next));
    refuses(&mut |on| on.send_recv(&send, next, &mut buf, next));
    refuses(&mut |on| on.all_to_all_v(&send, &each, &mut buf, &each));
    refuses(&mut |on| on.all_gather_v(&send.slice(..1), &mut buf, &each));
    refuses(&mut |on| on.all_to_all_in_place(&mut buf));
    refuses(&mut |on| on.all_gather_in_place(&mut buf));
    refuses(&mut |on| on.reduce_scatter_in_place(&mut buf, ReduceOp::Sum));
    refuses(&mut |on| on.all_reduce_many(&mut [buf.as_view_mut()], ReduceOp::Sum));
    drop(stream.end_capture(AUTO_FREE).unwrap());
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), vec![n as i32; n]);
}

/// Ranks that differ in a length both get an error, in the first piece or in a later one, and no
/// stream waits for ever.
fn mismatch(comm: &mut Communicator, len: usize) {
    let (stream, rank) = (stream(comm), comm.rank());
    let send = stream.clone_htod(&vec![1_i32; len]).unwrap();
    let mut recv = stream.clone_htod(&vec![0_i32; len + 1]).unwrap();
    comm.barrier().unwrap();
    let (given, got) = if rank == 0 { ([0, len], [0, len]) } else { ([len, 0], [len + 1, 0]) };
    let mut view = recv.slice_mut(..got[0] + got[1]);
    comm.on_stream(&stream).all_to_all_v(&send, &given, &mut view, &got).unwrap();
    let after = comm.on_stream(&stream).barrier();
    stream.synchronize().unwrap();
    after.and_then(|()| comm.on_stream(&stream).check()).unwrap_err();
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in [2, 4] {
            on_ranks(n, invalid_arguments);
            on_ranks(n, captured);
        }
        on_ranks(2, |comm| mismatch(comm, 100));
        on_ranks(2, |comm| mismatch(comm, LONG));
    }
}

on_standin! {
    invalid_calls_are_refused_or_errors_of_all: threads [];
}
