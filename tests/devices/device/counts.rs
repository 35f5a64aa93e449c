//! The cost of a call in calls of the driver, stream memory operations and bytes, as the stand-in
//! counts them: the table in `docs/devices.md` says what each rank may take.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::ops::Range;

use cudarc::driver::{CudaContext, sys};
use harness::{on_ranks, skip};
use ringreduce::{Communicator, ReduceOp};

use super::super::standin::{self, DEVICES, on_standin, this_body};
use super::fixture::{Shared, attach_for_graphs, capture, on_processes};

const PAGE: &str = include_str!("../../../docs/devices.md");

/// The counters that are the columns of the table.
const COLUMNS: [&str; 6] = ["calls", "submissions", "kernels", "waits", "writes", "bytes"];
type Counts = [u64; COLUMNS.len()];

/// Numbers of ranks.
const RANKS: [usize; 3] = [2, 4, 8];
/// Buffers in bytes, with their names. An interpreter of kernels has no time for longer ones.
const BUFFERS: [(usize, &str); 2] = [(8, "8 B"), (1 << 20, "1 MiB")];

/// A counter of the stand-in; none if this is another driver.
fn counter(name: &str) -> Option<u64> {
    type Count = unsafe extern "C" fn(*const c_char) -> u64;
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded and stays so.
    let library = unsafe { sys::culib() };
    // SAFETY: the function has this type.
    let count = unsafe { library.get::<Count>(b"standinCount") }.ok()?;
    // SAFETY: the name ends with a zero.
    Some(unsafe { count(name.as_ptr()) })
}

fn counters() -> Counts {
    COLUMNS.map(|name| counter(name).unwrap())
}

/// The counts of a call by `all` ranks of this process, which meet on the host meanwhile. `finish`
/// waits for a rank's stream, and its calls of the driver do not count.
fn counts_of(
    comm: &mut Communicator,
    all: &Range<usize>,
    finish: impl Fn(),
    mut call: impl FnMut(&mut Communicator),
) -> Counts {
    // The first call loads kernels.
    call(comm);
    finish();
    comm.barrier().unwrap();
    let before = counters();
    comm.barrier().unwrap();
    call(comm);
    comm.barrier().unwrap();
    let [calls, submissions, ..] = counters();
    comm.barrier().unwrap();
    finish();
    comm.barrier().unwrap();
    let [_, _, kernels, waits, writes, bytes] = counters();
    comm.barrier().unwrap();
    // The driver counts the calls of each thread.
    let mut calls = [calls - before[0]];
    if all.len() > 1 {
        comm.all_reduce(&mut calls, ReduceOp::Sum).unwrap();
    }
    let after = [calls[0] + before[0], submissions, kernels, waits, writes, bytes];
    std::array::from_fn(|column| after[column] - before[column])
}

/// The first cells of a rank's row.
fn row_name(comm: &Communicator, rank: usize, buffer: &str) -> String {
    let is_shared = CudaContext::device_count().unwrap() == 1;
    let devices = if is_shared { "one for all" } else { "one for each" };
    let rank = if rank == 0 { "rank 0" } else { "each other" };
    format!("| {devices} | {} | {buffer} | {rank} |", comm.size())
}

/// The cells of a row of the page's table; none if the page has no such row.
fn row(name: &str) -> Option<Counts> {
    let cells = PAGE.lines().find_map(|line| line.strip_prefix(name))?;
    let mut numbers = cells.split('|').map(|cell| cell.trim().parse());
    Some(std::array::from_fn(|_| numbers.next().unwrap().unwrap()))
}

/// The table must have these counts as the sum of the rows of `ranks`.
fn check_row(comm: &Communicator, ranks: Range<usize>, buffer: &str, found: Counts) {
    let rows: Vec<_> =
        ranks.clone().map(|rank| row(&row_name(comm, rank, buffer)).unwrap_or_default()).collect();
    let sum: Counts = std::array::from_fn(|column| rows.iter().map(|row| row[column]).sum());
    let name = row_name(comm, ranks.start, buffer);
    let cells = found.map(|count| format!(" {count} |")).concat();
    assert_eq!(sum, found, "docs/devices.md against ranks {ranks:?}, together {name}{cells}");
}

/// Ranks, all those of this process, make a call, then launch a graph with it. The table has the
/// call; a graph is one submission of each rank, and its work is that of the call.
fn counted(comm: &mut Communicator, ranks: Range<usize>) {
    if counter("calls").is_none() {
        return skip("counts", "another driver than the stand-in counts nothing");
    }
    let stream = attach_for_graphs(comm);
    for (bytes, buffer) in BUFFERS {
        let mut buf = Shared::<f32>::new(comm, &stream, bytes / 4);
        comm.barrier().unwrap();
        let finish = || stream.synchronize().unwrap();
        let found = counts_of(comm, &ranks, finish, |comm| {
            comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        });
        check_row(comm, ranks.clone(), buffer, found);
        let graph = capture(&stream, || {
            comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        });
        let replayed = counts_of(comm, &ranks, finish, |_| graph.launch().unwrap());
        assert_eq!(replayed[1], ranks.len() as u64, "a launch of a graph is one submission");
        assert_eq!(replayed[2..], found[2..], "a graph has the work of the calls in it");
        drop(graph);
        comm.barrier().unwrap();
    }
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in RANKS {
            on_ranks(n, |comm| counted(comm, 0..n));
        }
    }

    pub(crate) fn processes() {
        on_processes(this_body!(processes), RANKS, |comm| {
            counted(comm, comm.rank()..comm.rank() + 1);
        });
    }
}

on_standin! {
    calls_on_one_device_take_what_the_table_says: processes [], threads [];
    calls_between_devices_take_what_the_table_says:
        processes [DEVICES = "8"],
        threads [DEVICES = "8"];
}
