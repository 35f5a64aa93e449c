//! Collectives on device buffers, on a stand-in for the driver: results are the host's, in the
//! order of the stream; a failure has an error that names it, and no stream waits for ever. Each
//! test runs functions of a module `body` in a process that loads the stand-in.

pub(crate) mod algorithms;
pub(crate) mod call_order;
pub(crate) mod direct;
pub(crate) mod driver_errors;
pub(crate) mod driver_failures;
pub(crate) mod element_types;
pub(crate) mod faults;
mod fixture;
pub(crate) mod graphs;
pub(crate) mod host_buffers;
pub(crate) mod invalid_calls;
pub(crate) mod missing_features;
pub(crate) mod p2p_domains;
pub(crate) mod pending_calls;
pub(crate) mod several_devices;
pub(crate) mod verbs;

use super::standin::{self, FAIL_ALLOC, QUEUES, on_standin, this_body};
use fixture::{Both, LONG, NOWHERE, in_capture, in_order, raw, refused, stream};
use harness::on_ranks;
use harness::processes::{run, this_rank};
use ringreduce::{Communicator, ReduceOp};

fn every_verb(comm: &mut Communicator) {
    let mut both = Both::new(comm);
    for count in [0, 1, 1000] {
        both.every::<f32>(count);
        both.every::<i64>(count);
        both.every::<u8>(count);
    }
    both.every::<f32>(LONG);
}

/// A rank makes another call than the other one: both get an error, and no stream waits for ever.
fn mismatch(comm: &mut Communicator) {
    let stream = stream(comm);
    let count = if comm.rank() == 0 { 1000 } else { 1001 };
    let mut buf = stream.clone_htod(&vec![1_i32; count]).unwrap();
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    stream.synchronize().unwrap();
    refused(comm.on_stream(&stream).check(), "does not make the same call");
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    refused(again.and_then(|()| comm.on_stream(&stream).check()), "failed before");
    stream.synchronize().unwrap();
}

/// A rank reports a refusal of the device at once, and the other rank does not wait for it.
fn foreign_address(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        let mut nowhere = raw::<i32>(NOWHERE, 10, &stream);
        let done = comm.on_stream(&stream).all_reduce(&mut nowhere, ReduceOp::Sum);
        refused(done, "CUDA_ERROR_INVALID_VALUE");
    } else {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        refused(comm.on_stream(&stream).check(), "lost rank 0");
    }
    stream.synchronize().unwrap();
}

/// A call is refused with `error`; the next one, on the same stream, succeeds.
fn refused_once(comm: &mut Communicator, error: &str, captured: bool) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    let mut call = || comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let done = if captured { in_capture(&stream, call) } else { call() };
    refused(done, error);
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 1..=4 {
            on_ranks(n, every_verb);
            on_ranks(n, in_order);
        }
        on_ranks(2, mismatch);
        on_ranks(2, |comm| refused_once(comm, "stream is being captured", true));
        on_ranks(2, foreign_address);
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                every_verb(&mut comm);
                in_order(&mut comm);
            }
            None => ["shm", "tcp"].into_iter().for_each(|by| run(this_body!(processes), 2, by)),
        }
    }

    pub(crate) fn without_memory() {
        on_ranks(1, |comm| refused_once(comm, "CUDA_ERROR_OUT_OF_MEMORY", false));
    }
}

on_standin! {
    every_verb_gives_the_hosts_results: threads [];

    /// Streams that share a queue wait for each other in the order of the calls. (Thread ranks of
    /// one device need queues of their own: the wait of one would keep another one from copying
    /// in.)
    streams_of_a_process_may_share_a_queue:
        processes [QUEUES = "1"],
        processes [QUEUES = "2"];

    ranks_may_be_processes: processes [];
    a_failed_allocation_is_an_error_of_the_call: without_memory [FAIL_ALLOC = "2"];
}
