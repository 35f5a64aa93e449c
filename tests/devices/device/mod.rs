//! Collectives on device buffers, on a stand-in for the driver: results are the host's, in the
//! order of the stream; a failure has an error that names it, and no stream waits for ever. Each
//! test runs functions of a module `body` in a process that loads the stand-in.

pub(crate) mod algorithms;
pub(crate) mod call_order;
pub(crate) mod counts;
pub(crate) mod direct;
pub(crate) mod driver_errors;
pub(crate) mod driver_failures;
pub(crate) mod element_types;
pub(crate) mod ending_ranks;
pub(crate) mod faults;
mod fixture;
pub(crate) mod graphs;
pub(crate) mod host_buffers;
pub(crate) mod invalid_calls;
pub(crate) mod local_memory;
pub(crate) mod missing_features;
pub(crate) mod p2p_domains;
pub(crate) mod pending_calls;
pub(crate) mod run_time_types;
pub(crate) mod several_devices;
pub(crate) mod verbs;

use super::standin::{self, FAIL_ALLOC, FAIL_CALL, QUEUES, on_standin, this_body};
use fixture::{Both, LONG, NOWHERE, in_capture, in_order, raw, refused, stream};
use harness::on_ranks;
use harness::processes::{run, this_rank};
use ringreduce::{Communicator, DataType, ReduceOp};

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
    let known = comm.monitor().error().unwrap().to_string();
    assert!(known.contains("does not make the same call"), "{known}");
    refused(comm.on_stream(&stream).check(), "does not make the same call");
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    refused(again.and_then(|()| comm.on_stream(&stream).check()), "failed before");
    stream.synchronize().unwrap();
}

/// An address that is no memory is refused before the call begins; the next call succeeds.
fn foreign_address(comm: &mut Communicator) {
    let (stream, rank) = (stream(comm), comm.rank());
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    let (nowhere, sum) = (raw(NOWHERE, 40), ReduceOp::Sum);
    let mut on = comm.on_stream(&stream);
    refused(on.all_reduce_bytes(nowhere, DataType::I32, sum), "all_reduce: buf is memory that");
    refused(on.send_bytes(nowhere, DataType::I32, 1 - rank), "send: buf is memory that");
    on.all_reduce(&mut buf, sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
}

/// A rank reports a refusal of the device at once, and the other rank does not wait for it.
fn refused_copy(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    let done = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    match done {
        Err(error) => assert!(error.to_string().contains("CUDA_ERROR_OPERATING_SYSTEM"), "{error}"),
        Ok(()) => refused(comm.on_stream(&stream).check(), "lost rank"),
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

    pub(crate) fn without_a_copy() {
        on_ranks(2, refused_copy);
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
    a_failed_copy_is_an_error_of_all: without_a_copy [FAIL_CALL = "cuMemcpyDtoHAsync_v2:1"];
    a_failed_allocation_is_an_error_of_the_call: without_memory [FAIL_ALLOC = "2"];
}
