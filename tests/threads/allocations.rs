//! A call does not allocate if the same call has been made before, in any order of calls.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use harness::{is_alone, on_ranks};
use ringreduce::{CallOptions, Communicator, DataType, FoldOrder, ReduceOp, Reduction, Wire, bf16};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with a count of allocations for each thread.
struct Counting;

fn count() {
    // A thread that is about to end has no counter.
    let _ = ALLOCATIONS.try_with(|counter| counter.set(counter.get() + 1));
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.realloc(ptr, layout, new) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Counting = Counting;

use super::SUM;

const N: usize = 3;
/// The most elements of a block.
const COUNT: usize = 30_000;

struct Buffers {
    part: Vec<f32>,
    whole: Vec<f32>,
    other_part: Vec<f32>,
    other_whole: Vec<f32>,
}

impl Buffers {
    fn new() -> Self {
        let [part, other_part] = [0, 1].map(|_| vec![1.0; COUNT]);
        let [whole, other_whole] = [0, 1].map(|_| vec![1.0; N * COUNT]);
        Self { part, whole, other_part, other_whole }
    }
}

/// Makes the calls twice; the second time nothing is allocated.
fn twice(comm: &mut Communicator, mut calls: impl FnMut(&mut Communicator)) {
    calls(comm);
    let before = ALLOCATIONS.get();
    calls(comm);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    // No rank closes its communicator yet: one that still receives would allocate the error.
    comm.barrier().unwrap();
}

fn every_verb(comm: &mut Communicator, count: usize, buffers: &mut Buffers) {
    let me = comm.rank();
    let Buffers { part, whole, other_part, other_whole } = buffers;
    let (part, other_part) = (&mut part[..count], &mut other_part[..count]);
    let (whole, other_whole) = (&mut whole[..N * count], &mut other_whole[..N * count]);
    comm.all_reduce(part, SUM).unwrap();
    comm.all_reduce_into(part, other_part, SUM).unwrap();
    comm.reduce_scatter(whole, part, SUM).unwrap();
    comm.reduce_scatter_in_place(whole, SUM).unwrap();
    comm.all_gather(part, whole).unwrap();
    comm.all_gather_in_place(whole).unwrap();
    for root in 0..N {
        comm.broadcast(part, root).unwrap();
        comm.reduce(part, SUM, root).unwrap();
        comm.reduce_into(part, other_part, SUM, root).unwrap();
        comm.gather(part, whole, root).unwrap();
        comm.scatter(whole, part, root).unwrap();
    }
    comm.all_to_all(whole, other_whole).unwrap();
    comm.all_to_all_in_place(whole).unwrap();
    comm.scan(part, SUM).unwrap();
    comm.exscan_into(part, other_part, SUM).unwrap();
    let counts = [count, 0, 2 * count];
    let mine = &whole[..counts[me]];
    comm.all_gather_v(mine, other_whole, &counts).unwrap();
    comm.reduce_scatter_v(other_whole, &mut whole[..counts[me]], &counts, SUM).unwrap();
    comm.gather_v(&whole[..counts[me]], other_whole, &counts, 1).unwrap();
    comm.scatter_v(other_whole, &mut whole[..counts[me]], &counts, 2).unwrap();
    comm.all_to_all_v(whole, &[count; N], other_whole, &[count; N]).unwrap();
    comm.send_recv(part, (me + 1) % N, other_part, (me + 2) % N).unwrap();
    comm.barrier().unwrap();
}

#[test]
fn only_the_first_call_of_each_kind_allocates() {
    on_ranks(N, |comm| {
        let (mut buffers, counts) = (Buffers::new(), [COUNT, 1000, 1, 0]);
        for count in counts {
            every_verb(comm, count, &mut buffers);
        }
        let before = ALLOCATIONS.get();
        for count in counts.into_iter().rev() {
            every_verb(comm, count, &mut buffers);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
        comm.barrier().unwrap();
    });
    assert!(ALLOCATIONS.get() > 0, "the counter counts");
}

#[test]
fn only_the_first_call_on_registered_memory_allocates() {
    const COUNTS: [usize; 4] = [1, 700, 1100, 60_000];
    fn calls(comm: &mut Communicator, buf: &mut [f32]) {
        for count in COUNTS {
            let buf = &mut buf[..count * N];
            comm.all_reduce(buf, SUM).unwrap();
            comm.reduce_scatter_in_place(buf, SUM).unwrap();
            comm.all_gather_in_place(buf).unwrap();
            comm.broadcast(buf, 0).unwrap();
            comm.barrier().unwrap();
        }
    }
    on_ranks(N, |comm| {
        let mut memory = comm.alloc(200_000).unwrap();
        let mut other = vec![1.0; 200_000];
        let mut guard = comm.register(&mut other).unwrap();
        for buf in [&mut memory[..], &mut guard[..]] {
            twice(comm, |comm| calls(comm, buf));
        }
    });
}

#[test]
fn only_the_first_call_on_many_buffers_allocates() {
    fn calls(comm: &mut Communicator, bufs: &mut [[f32; 3000]], out: &[f32; 3000]) {
        let me = comm.rank();
        comm.all_reduce_many(bufs, SUM).unwrap();
        comm.group(|g| {
            for (at, buf) in bufs.iter_mut().enumerate() {
                g.recv(buf, (me + at) % N)?;
            }
            (0..5).rev().try_for_each(|at| g.send(out, (me + 2 * N - at) % N))
        })
        .unwrap();
    }
    on_ranks(N, |comm| {
        let (mut bufs, out) = ([[1.0; 3000]; 5], [2.0; 3000]);
        twice(comm, |comm| calls(comm, &mut bufs, &out));
    });
}

#[test]
fn only_the_first_group_allocates() {
    fn group(comm: &mut Communicator, buffers: &mut Buffers) {
        let (me, counts) = (comm.rank(), [COUNT; N]);
        let Buffers { part, whole, other_part, other_whole } = buffers;
        let (first, second) = part.split_at_mut(COUNT / 2);
        let received = &mut other_part[..COUNT / 2];
        comm.group(|g| {
            g.all_reduce(first, SUM)?;
            g.send_recv(second, (me + 1) % N, received, (me + 2) % N)?;
            g.all_to_all_v(whole, &counts, other_whole, &counts)?;
            g.barrier()
        })
        .unwrap();
        let (first, second) = whole.split_at_mut(N * COUNT / 2);
        comm.group(|g| {
            g.all_reduce_many(std::slice::from_mut(part), SUM)?;
            g.reduce_scatter_v(other_whole, other_part, &counts, SUM)?;
            g.reduce_into(first, second, Reduction::premul_sum(0.5_f32), 0)
        })
        .unwrap();
    }
    on_ranks(N, |comm| {
        let mut buffers = Buffers::new();
        (0..2).for_each(|_| twice(comm, |comm| group(comm, &mut buffers)));
    });
}

#[test]
fn only_the_first_nonblocking_operation_allocates() {
    // Worker threads are the process's, and those of other tests would count here.
    if !is_alone("allocations::only_the_first_nonblocking_operation_allocates") {
        return;
    }
    /// The allocations of this thread, and of the worker thread, by its number.
    fn allocations(comm: &mut Communicator) -> (usize, (ThreadId, usize)) {
        let me = std::thread::current().id();
        let count = |_: &mut Communicator, count: &mut (ThreadId, usize)| {
            *count = (std::thread::current().id(), ALLOCATIONS.get());
            Ok(())
        };
        let there = comm.nonblocking().start((me, 0), count);
        // Only the worker runs what no thread waits for.
        while !there.is_done() {
            std::thread::yield_now();
        }
        (ALLOCATIONS.get(), there.wait().unwrap())
    }
    fn threads_of_process() -> BTreeSet<OsString> {
        let entries = std::fs::read_dir("/proc/self/task").unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }
    fn calls(comm: &mut Communicator, mut buffers: Buffers) -> Buffers {
        let counts = [COUNT; N];
        let Buffers { part, whole, other_part, other_whole } = &mut buffers;
        comm.scope(|s| {
            let sum = s.all_reduce(&mut part[..], SUM);
            let part = s.reduce_scatter_v(&whole[..], &mut other_part[..], counts, SUM);
            let other = s.all_to_all_v(&whole[..], counts, &mut other_whole[..], counts);
            drop(s.barrier());
            // A blocking call follows while operations are still pending.
            drop((sum.wait()?, other.wait()?, part));
            s.start([0_u64; 25], |_, _| Ok(())).wait()?;
            s.start((), |comm, ()| comm.scope(|s| s.barrier().wait())).wait()
        })
        .unwrap();
        comm.barrier().unwrap();
        let mut s = comm.nonblocking();
        let Buffers { part, whole, other_part, other_whole } = buffers;
        let sum = s.reduce(part, Reduction::premul_sum(0.5_f32), 1);
        let gathered = s.all_gather(other_part, whole);
        let exchanged = s.all_to_all_in_place(other_whole);
        let ((other_part, whole), part) = (gathered.wait().unwrap(), sum.wait().unwrap());
        let mut exchanged = std::pin::pin!(exchanged);
        let mut context = Context::from_waker(Waker::noop());
        let other_whole = loop {
            if let Poll::Ready(result) = exchanged.as_mut().poll(&mut context) {
                break result.unwrap();
            }
        };
        Buffers { part, whole, other_part, other_whole }
    }
    on_ranks(N, |comm| {
        let mut buffers = calls(comm, Buffers::new());
        allocations(comm);
        loop {
            let threads = threads_of_process();
            let before = allocations(comm);
            buffers = (0..3).fold(buffers, |buffers, _| calls(comm, buffers));
            let after = allocations(comm);
            // A worker that had to wait for a second has ended, and another one has come. Where
            // more workers had jobs at once than ever before, one has started another thread.
            let is_same = after.1.0 == before.1.0 && threads_of_process() == threads;
            let mut same = [u8::from(is_same)];
            comm.all_reduce(&mut same, ReduceOp::Min).unwrap();
            if same == [1] {
                assert_eq!(after, before);
                break;
            }
        }
        assert_eq!(buffers.part.len(), COUNT);
    });
}

/// Calls by functions, with options and with a wire type, also in worlds of more than 16 ranks,
/// where contributions are gathered.
#[test]
fn only_the_first_call_by_a_function_or_with_options_allocates() {
    fn calls(comm: &mut Communicator, floats: &mut [f32], halves: &mut [bf16], tag: &CallOptions) {
        for order in [FoldOrder::Any, FoldOrder::Ranks] {
            comm.all_reduce_by(floats, order, |a, b| a.max(*b)).unwrap();
            let (part, whole) = (floats.len() / comm.size(), floats.len());
            let (recv, send) = (&mut [0.0; 1000][..part], &floats[..whole - whole % comm.size()]);
            comm.reduce_scatter_by(send, recv, order, |a, b| a.max(*b)).unwrap();
        }
        for options in [tag.clone(), CallOptions::new().wide(true).tag("narrow")] {
            comm.with(options).all_reduce(halves, ReduceOp::Max).unwrap();
        }
        comm.with(CallOptions::new().wide(true)).all_reduce(halves, SUM).unwrap();
        comm.with(tag.clone().wire(DataType::F16)).all_reduce(floats, ReduceOp::Max).unwrap();
        let mut comm = comm.with(tag.clone().wire(Wire::INT8_BLOCK));
        comm.all_reduce(floats, ReduceOp::Max).unwrap();
        let (n, me) = (comm.size(), comm.rank());
        let mut counts = [1; 17];
        counts[0] = 100;
        let send = &floats[..counts[..n].iter().sum()];
        let recv = &mut [0.0; 100][..counts[me]];
        comm.reduce_scatter_v(send, recv, &counts[..n], SUM).unwrap();
    }
    for n in [3, 17] {
        on_ranks(n, |comm| {
            let (mut floats, mut halves) = ([1.0; 2000], [bf16::ONE; 2000]);
            let tag = CallOptions::new().tag(String::from("owned"));
            twice(comm, |comm| calls(comm, &mut floats, &mut halves, &tag));
        });
    }
}
