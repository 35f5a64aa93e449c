//! Calls that go straight to the ranks' buffers, by kernels that the stand-in interprets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::standin::on_standin;
use super::graphs::{graph, one_captures};
use super::{every_verb_shortly, in_order, stream};
use cudarc::driver::{CudaStream, DeviceRepr};
use harness::processes::{run, this_rank};
use harness::{Value, input, on_ranks, share};
use ringreduce::{Communicator, DeviceMemory, DevicePath, DeviceRef, ReduceOp, Reduction};

/// A stream, and the device is this rank's.
pub(super) fn attached(comm: &mut Communicator) -> Arc<CudaStream> {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    assert!(matches!(comm.device_path(), DevicePath::Direct | DevicePath::Ring));
    stream
}

/// Memory that all ranks know, and what is in it.
pub(super) struct Known<T> {
    pub(super) memory: DeviceMemory<T>,
    stream: Arc<CudaStream>,
}

impl<T: Value + DeviceRepr> Known<T> {
    pub(super) fn new(comm: &mut Communicator, stream: &Arc<CudaStream>, len: usize) -> Self {
        let memory = comm.alloc_device(stream, len).unwrap();
        Self { memory, stream: Arc::clone(stream) }
    }

    pub(super) fn put(&mut self, values: &[T]) {
        let mut view = self.memory.view_mut();
        self.stream.memcpy_htod(values, &mut view.slice_mut(..values.len())).unwrap();
    }

    pub(super) fn get(&self, len: usize) -> Vec<T> {
        self.stream.clone_dtoh(&self.memory.slice(..len)).unwrap()
    }
}

fn given<T: Value>(comm: &Communicator, len: usize) -> Vec<T> {
    let (n, rank) = (comm.size(), comm.rank());
    (0..len).map(|i| input(ReduceOp::Sum, n, rank, i)).collect()
}

/// Verbs on memory that all ranks know, at whole buffers and at parts of them.
pub(super) fn known_memory(comm: &mut Communicator) {
    let stream = attached(comm);
    let n = comm.size();
    for count in [1, 1000, 20_011] {
        let mut one = Known::<f32>::new(comm, &stream, n * count + 7);
        let mut other = Known::<f32>::new(comm, &stream, n * count + 7);
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

/// Every type and operation.
fn every_kernel(comm: &mut Communicator) {
    let stream = attached(comm);
    macro_rules! each {
        ($($type:ty),*) => {$(
            for op in ReduceOp::ALL {
                if op.is_defined_for(<$type as ringreduce::Element>::DTYPE) {
                    same::<$type>(comm, &stream, op, op.into());
                }
            }
            let by = <$type>::whole(2);
            same::<$type>(comm, &stream, ReduceOp::Sum, Reduction::premul_sum(by));
        )*};
    }
    each!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);
    each!(ringreduce::f16, ringreduce::bf16, ringreduce::Complex<f32>, ringreduce::Complex<f64>);
}

fn same<T: Value>(comm: &mut Communicator, stream: &Arc<CudaStream>, of: ReduceOp, op: Reduction) {
    let (n, rank) = (comm.size(), comm.rank());
    let mut host: Vec<T> = (0..33).map(|i| input(of, n, rank, i)).collect();
    // Types of others are no types of devices for cudarc: by their bytes.
    let bytes: &[u8] = bytemuck::cast_slice(&host);
    let device = stream.clone_htod(bytes).unwrap();
    let start = cudarc::driver::DevicePtr::device_ptr(&device, stream).0;
    // SAFETY: it is as long, and lives until the call is over.
    let mut part = unsafe { DeviceRef::<T>::from_raw_parts(start, host.len(), stream) };
    comm.on_stream(stream).all_reduce(&mut part, op).unwrap();
    comm.all_reduce(&mut host, op).unwrap();
    let found = stream.clone_dtoh(&device).unwrap();
    assert!(found == bytemuck::cast_slice::<T, u8>(&host), "{op} of {}", T::DTYPE);
}

/// Another call than the others make: all are told in what it differs, and no stream waits.
fn mismatch(comm: &mut Communicator) {
    let stream = attached(comm);
    let count = if comm.rank() == 0 { 1000 } else { 1001 };
    let mut buf = stream.clone_htod(&vec![1_i32; count]).unwrap();
    comm.barrier().unwrap();
    let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    stream.synchronize().unwrap();
    let error = first.and_then(|()| until_told(comm, &stream)).unwrap_err().to_string();
    let want = if comm.rank() == 0 { "the count is 1001 there, 1000 here" } else { "1000 there" };
    assert!(error.contains(want), "{error}");
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert!(again.to_string().contains("failed before"), "{again}");
    // Nobody has touched it, and the context is as good as before.
    assert!(stream.clone_dtoh(&buf).unwrap().iter().all(|&it| it == 1));
}

/// The error of the calls so far, which comes when it is found.
pub(super) fn until_told(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
) -> ringreduce::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        comm.on_stream(stream).check()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A rank that leaves without the call that the others make.
fn one_leaves(comm: &mut Communicator) {
    let stream = attached(comm);
    let mut buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        return;
    }
    let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let error = first.and_then(|()| until_told(comm, &stream)).unwrap_err().to_string();
    assert!(error.contains("lost rank 1") && error.contains("closed"), "{error}");
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 100]);
}

/// An abort ends a call that somebody does not come to.
fn aborted(comm: &mut Communicator) {
    let stream = attached(comm);
    let mut buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        comm.abort_handle().abort();
        let error = until_told(comm, &stream).unwrap_err().to_string();
        assert!(error.contains("aborted"), "{error}");
    } else {
        let error = until_told_by_calling(comm, &stream);
        assert!(error.contains("rank 0"), "{error}");
    }
    stream.synchronize().unwrap();
}

fn until_told_by_calling(comm: &mut Communicator, stream: &Arc<CudaStream>) -> String {
    while comm.on_stream(stream).check().is_ok() {
        let mut buf = stream.clone_htod(&[1_i32; 50]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        if let Err(error) = comm.on_stream(stream).all_reduce(&mut buf, ReduceOp::Max) {
            return error.to_string();
        }
        if let Err(error) = until_told(comm, stream) {
            return error.to_string();
        }
    }
    "rank 0, as it was told before".into()
}

/// What devices can't touch, and what is too long, is said at once, and the others are told.
fn foreign(comm: &mut Communicator) {
    let stream = attached(comm);
    let buf = stream.clone_htod(&[1_i32; 100]).unwrap();
    let start = cudarc::driver::DevicePtr::device_ptr(&buf, &stream).0;
    comm.barrier().unwrap();
    let host = [1_i32; 10];
    for (start, len, want) in
        [(16, 10, "what memory"), (host.as_ptr().addr() as u64, 10, "memory"), (start, 101, "404")]
    {
        // SAFETY: it is refused.
        let mut nowhere = unsafe { DeviceRef::<i32>::from_raw_parts(start, len, &stream) };
        let error = comm.on_stream(&stream).all_reduce(&mut nowhere, ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
    // Nothing of it was called, so the communicator goes on.
    // SAFETY: it is the buffer.
    let mut good = unsafe { DeviceRef::<i32>::from_raw_parts(start, 100, &stream) };
    comm.on_stream(&stream).all_reduce(&mut good, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), vec![comm.size() as i32; 100]);
}

/// Pinned memory of the host is as good as a device's.
pub(super) fn pinned(comm: &mut Communicator) {
    let stream = attached(comm);
    // SAFETY: it is written before it is read.
    let mut host = unsafe { stream.context().alloc_pinned::<i32>(100) }.unwrap();
    host.as_mut_slice().unwrap().fill(comm.rank() as i32 + 1);
    let start = host.as_ptr().unwrap().addr() as u64;
    comm.barrier().unwrap();
    // SAFETY: it stays until the call is over.
    let mut buf = unsafe { DeviceRef::<i32>::from_raw_parts(start, 100, &stream) };
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    stream.synchronize().unwrap();
    assert!(host.as_slice().unwrap().iter().all(|&it| it == comm.size() as i32));
}

/// Memory that the user has allocated, two buffers in one piece, registered.
fn registered(comm: &mut Communicator) {
    let stream = attached(comm);
    let (n, mut whole) = (comm.size() as i32, 0);
    // SAFETY: asks for memory, which is freed below.
    unsafe { cudarc::driver::sys::cuMemAlloc_v2(&raw mut whole, 4000).result() }.unwrap();
    let [one, other] = [whole, whole + 2000].map(|start| {
        // SAFETY: it is as long, and lives until all calls are over.
        unsafe { DeviceRef::<i32>::from_raw_parts(start, 500, &stream) }
    });
    let all: Vec<i32> = (0..1000).collect();
    // SAFETY: as above.
    let mut both = unsafe { DeviceRef::<i32>::from_raw_parts(whole, 1000, &stream) };
    stream.memcpy_htod(&all, &mut both).unwrap();
    let held = [&one, &other].map(|buf| {
        // SAFETY: the memory is never freed.
        unsafe { comm.register_device(buf) }.unwrap()
    });
    let [mut one, mut other] = [one, other];
    comm.on_stream(&stream).all_reduce(&mut one, ReduceOp::Sum).unwrap();
    comm.on_stream(&stream).all_reduce(&mut other, ReduceOp::Max).unwrap();
    let found = stream.clone_dtoh(&both).unwrap();
    assert!((0..500).all(|i| found[i] == i as i32 * n && found[i + 500] == i as i32 + 500));
    drop(held);
    // Not known any more, but of use all the same.
    comm.on_stream(&stream).all_reduce(&mut other, ReduceOp::Sum).unwrap();
    assert!(stream.clone_dtoh(&both).unwrap()[500] == 500 * n);
}

/// Lengths that differ are an error at all ranks, and they go on; memory that was dropped comes
/// again.
pub(super) fn allocations(comm: &mut Communicator) {
    let stream = attached(comm);
    if comm.size() > 1 {
        let error = comm.alloc_device::<u8>(&stream, 100 + comm.rank()).unwrap_err();
        assert!(error.to_string().contains("the length is"), "{error}");
    }
    for _ in 0..40 {
        let mut buf = Known::<i32>::new(comm, &stream, 1000);
        buf.put(&[1; 1000]);
        comm.on_stream(&stream).all_reduce(&mut buf.memory, ReduceOp::Sum).unwrap();
        assert_eq!(buf.get(1000), [comm.size() as i32; 1000]);
    }
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in share::of(&[2, 3, 1, 4, 8], 2) {
            on_ranks(n, |comm| {
                attached(comm);
                every_verb_shortly(comm);
                in_order(comm);
            });
            for body in [known_memory, registered, pinned, graph, allocations] {
                on_ranks(n.min(4), body);
            }
        }
        on_ranks(3, every_kernel);
    }

    pub(crate) fn troubled_threads() {
        for body in [mismatch, one_leaves, aborted, one_captures] {
            on_ranks(2, body);
        }
        on_ranks(3, foreign);
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                attached(&mut comm);
                every_verb_shortly(&mut comm);
                in_order(&mut comm);
                for body in [known_memory, registered, pinned, graph, allocations] {
                    body(&mut comm.duplicate().unwrap());
                }
            }
            None => {
                let worlds = share::of(&[4, 2], 2);
                worlds.for_each(|n| run("device::direct::body::processes", n, "shm"));
            }
        }
    }
}

#[test]
fn threads_reach_each_others_buffers() {
    on_standin("device::direct::body::threads", &[]);
}

#[test]
fn what_goes_wrong_has_a_name_and_no_stream_waits() {
    on_standin("device::direct::body::troubled_threads", &[]);
}

#[test]
fn processes_reach_each_others_buffers() {
    on_standin("device::direct::body::processes", &[]);
}

#[test]
fn streams_of_a_process_may_share_a_queue() {
    on_standin("device::direct::body::processes", &[("STANDIN_CUDA_QUEUES", "1")]);
}
