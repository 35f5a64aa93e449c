//! Streams, buffers, worlds and expectations that the tests on devices share.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaGraph, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DeviceRepr,
};
use harness::processes::{run, this_rank};
use harness::{Value, input, share, skip};
use ringreduce::{
    Communicator, DeviceMemory, DevicePath, DeviceRef, OnStream, ReduceOp, Reduction, Result,
};

pub(super) use CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;

/// Longer than two pieces of 1 MiB, and no whole number of pieces.
pub(super) const LONG: usize = 600_001;

/// The limit of the time until dropped memory is freed, where CPUs are few.
const FREE_LIMIT: Duration = Duration::from_secs(60);

/// An address that no device has.
pub(super) const NOWHERE: u64 = 16;

/// How graphs are instantiated.
pub(super) const AUTO_FREE: CUgraphInstantiate_flags =
    CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// A stream of the rank's device. Ranks are dealt out to the devices.
pub(super) fn stream(comm: &Communicator) -> Arc<CudaStream> {
    let device = comm.rank() % CudaContext::device_count().unwrap() as usize;
    CudaContext::new(device).unwrap().new_stream().unwrap()
}

/// True if there are so many devices; otherwise reports that the test is skipped.
pub(super) fn has_devices(least: i32, test: &str) -> bool {
    let has = CudaContext::device_count().unwrap() >= least;
    if !has {
        skip(test, &format!("needs {least} devices"));
    }
    has
}

/// A stream of the rank's device, which the communicator uses.
pub(super) fn attach(comm: &mut Communicator) -> Arc<CudaStream> {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    stream
}

/// Attaches, and calls must take this path.
pub(super) fn attach_as(comm: &mut Communicator, path: DevicePath) -> Arc<CudaStream> {
    let stream = attach(comm);
    assert_eq!(comm.device_path(), path);
    stream
}

/// Attaches, and calls must go from device to device.
pub(super) fn attach_direct(comm: &mut Communicator) -> Arc<CudaStream> {
    let stream = attach(comm);
    assert!(matches!(comm.device_path(), DevicePath::Direct | DevicePath::Ring));
    stream
}

/// Attaches for graphs: a captured stream can't wait for cudarc's own events.
pub(super) fn attach_for_graphs(comm: &mut Communicator) -> Arc<CudaStream> {
    let stream = stream(comm);
    // SAFETY: one stream uses all that is allocated from here on.
    unsafe { stream.context().disable_event_tracking() };
    comm.use_device(stream.context()).unwrap();
    stream
}

/// Waits for the calls on a stream, or for the error of one. The kernel of a stopped rank holds the
/// streams whose buffers it writes, so that waiting for the stream alone might not end.
pub(super) fn finish(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let event = stream.record_event(None).unwrap();
    while !event.is_complete() {
        comm.on_stream(stream).check()?;
        std::thread::yield_now();
    }
    comm.on_stream(stream).check()
}

/// The error of the calls so far, which comes when the communicator finds it.
pub(super) fn until_error(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        comm.on_stream(stream).check()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A call must fail, at once or later, with an error that contains `want`.
pub(super) fn fails(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    done: Result<()>,
    want: &str,
) {
    refused(done.and_then(|()| until_error(comm, stream)), want);
}

/// A result must be an error that contains `want`.
pub(super) fn refused<T>(done: Result<T>, want: &str) {
    let error = done.err().unwrap_or_else(|| panic!("no error with {want}")).to_string();
    assert!(error.contains(want), "{error}: no {want}");
}

/// The values that this rank gives to a sum.
pub(super) fn given<T: Value>(comm: &Communicator, len: usize) -> Vec<T> {
    let (n, rank) = (comm.size(), comm.rank());
    (0..len).map(|i| input(ReduceOp::Sum, n, rank, i)).collect()
}

/// Device memory that the other ranks' devices access.
pub(super) struct Shared<T> {
    pub(super) memory: DeviceMemory<T>,
    stream: Arc<CudaStream>,
}

impl<T: Value + DeviceRepr> Shared<T> {
    pub(super) fn new(comm: &Communicator, stream: &Arc<CudaStream>, len: usize) -> Self {
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

/// Waits until the memory that this rank has dropped is freed, for which it needs no other rank's
/// program.
pub(super) fn until_freed(comm: &Communicator) {
    let began = Instant::now();
    while comm.dropped_device_memory() > 0 {
        assert!(began.elapsed() < FREE_LIMIT, "{} are not freed", comm.dropped_device_memory());
        std::thread::yield_now();
    }
}

/// The address of a buffer.
pub(super) fn address<T>(buf: &impl DevicePtr<T>, stream: &CudaStream) -> u64 {
    buf.device_ptr(stream).0
}

/// A buffer by its address, which outlives the calls on it or is refused by them.
pub(super) fn raw(start: u64, bytes: usize) -> DeviceRef {
    // SAFETY: callers keep the memory, or pass an address that the library refuses.
    unsafe { DeviceRef::from_raw_parts(start, bytes) }
}

/// A word of device memory that a stream waits for.
pub(super) struct Hold {
    word: CudaSlice<u32>,
    other: Arc<CudaStream>,
}

impl Hold {
    pub(super) fn new(stream: &Arc<CudaStream>) -> Self {
        let word = stream.clone_htod(&[0_u32]).unwrap();
        let other = stream.context().new_stream().unwrap();
        stream.synchronize().unwrap();
        Self { word, other }
    }

    /// The stream waits until [`release`](Self::release).
    pub(super) fn hold(&self, stream: &Arc<CudaStream>) {
        let (at, stream) = (address(&self.word, stream), stream.cu_stream());
        // SAFETY: the word lives until it is written.
        unsafe { sys::cuStreamWaitValue32_v2(stream, at, 1, 1).result() }.unwrap();
    }

    pub(super) fn release(&self) {
        self.other.context().bind_to_thread().unwrap();
        let (at, other) = (address(&self.word, &self.other), self.other.cu_stream());
        // SAFETY: the word lives until the stream has written it.
        unsafe { sys::cuStreamWriteValue32_v2(other, at, 1, 0).result() }.unwrap();
    }
}

pub(super) fn capture(stream: &Arc<CudaStream>, calls: impl FnOnce()) -> CudaGraph {
    capture_in(stream, RELAXED, calls)
}

pub(super) fn capture_in(
    stream: &Arc<CudaStream>,
    mode: CUstreamCaptureMode,
    calls: impl FnOnce(),
) -> CudaGraph {
    stream.begin_capture(mode).unwrap();
    calls();
    stream.end_capture(AUTO_FREE).unwrap().unwrap()
}

/// Makes a call in a capture whose graph is dropped.
pub(super) fn in_capture<T>(stream: &Arc<CudaStream>, call: impl FnOnce() -> T) -> T {
    stream.begin_capture(RELAXED).unwrap();
    let done = call();
    drop(stream.end_capture(AUTO_FREE));
    done
}

/// Runs `rank` if this process is one, or else worlds of `n` processes over shared memory.
pub(super) fn on_processes(
    body: &str,
    worlds: impl IntoIterator<Item = usize>,
    rank: impl FnOnce(&mut Communicator),
) {
    match this_rank() {
        Some(mut comm) => rank(&mut comm),
        None => worlds.into_iter().for_each(|n| run(body, n, "shm")),
    }
}

/// Makes calls on the host and on the device, and compares the results.
pub(super) struct Both<'a> {
    pub(super) comm: &'a mut Communicator,
    pub(super) stream: Arc<CudaStream>,
}

/// A call on the host, then on the device, with the same result.
macro_rules! same {
    ($both:ident, $input:expr, $name:ident($($arg:expr),*)) => {{
        let input = $input;
        let mut host = input.clone();
        $both.comm.$name(&mut host, $($arg),*).unwrap();
        let found = $both.in_place(&input, |on: &mut OnStream, buf| on.$name(buf, $($arg),*));
        same!(@ $both, $name, found, host);
    }};
    ($both:ident, $input:expr, $len:expr, $name:ident($($arg:expr),*)) => {{
        let (input, mut host) = ($input, $both.before($len));
        $both.comm.$name(&input, &mut host, $($arg),*).unwrap();
        let call = |on: &mut OnStream, send: &CudaView<_>, recv: &mut CudaViewMut<_>| {
            on.$name(send, recv, $($arg),*)
        };
        let found = $both.apart(&input, host.len(), call);
        same!(@ $both, $name, found, host);
    }};
    (@ $both:ident, $name:ident, $found:ident, $host:ident) => {{
        let at = $found.iter().zip(&$host).position(|(found, host)| found != host);
        let at = at.map(|at| (at, $found[at], $host[at]));
        let (name, rank) = (stringify!($name), $both.comm.rank());
        assert!($found == $host, "{name} of {} at rank {rank}: {at:?}", $host.len());
    }};
}
pub(super) use same;

impl<'a> Both<'a> {
    /// A rank with a stream. Creating a stream may wait for other streams, so that the barrier
    /// keeps them from waiting for this rank.
    pub(super) fn new(comm: &'a mut Communicator) -> Self {
        let stream = stream(comm);
        comm.barrier().unwrap();
        Self { comm, stream }
    }

    pub(super) fn input<T: Value>(&self, len: usize) -> Vec<T> {
        given(self.comm, len)
    }

    /// Copies to the device, with one element more: no allocation is empty.
    pub(super) fn up<T: Value + DeviceRepr>(&self, host: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(&[host, &[T::from_integer(99)]].concat()).unwrap()
    }

    /// Copies back, without that element, which must be unchanged.
    pub(super) fn down<T: Value + DeviceRepr>(&self, device: &CudaSlice<T>) -> Vec<T> {
        let mut host = self.stream.clone_dtoh(device).unwrap();
        assert!(host.pop() == Some(T::from_integer(99)), "more than the buffer was written");
        host
    }

    /// The content of an output before a call.
    pub(super) fn before<T: Value>(&self, len: usize) -> Vec<T> {
        vec![T::from_integer(77); len]
    }

    /// The result of a call in place.
    pub(super) fn in_place<T: Value + DeviceRepr>(
        &mut self,
        input: &[T],
        call: impl FnOnce(&mut OnStream<'_>, &mut CudaViewMut<'_, T>) -> Result<()>,
    ) -> Vec<T> {
        let mut device = self.up(input);
        let mut view = device.slice_mut(..input.len());
        call(&mut self.comm.on_stream(&self.stream), &mut view).unwrap();
        self.down(&device)
    }

    /// The result of a call into another buffer, of `len` elements.
    pub(super) fn apart<T, F>(&mut self, input: &[T], len: usize, call: F) -> Vec<T>
    where
        T: Value + DeviceRepr,
        F: FnOnce(&mut OnStream<'_>, &CudaView<'_, T>, &mut CudaViewMut<'_, T>) -> Result<()>,
    {
        let (send, mut recv) = (self.up(input), self.up(&self.before::<T>(len)));
        let (view, mut to) = (send.slice(..input.len()), recv.slice_mut(..len));
        call(&mut self.comm.on_stream(&self.stream), &view, &mut to).unwrap();
        self.down(&recv)
    }

    pub(super) fn every<T: Value + DeviceRepr>(&mut self, count: usize) {
        let ops = [ReduceOp::Sum, ReduceOp::Max].map(Reduction::from);
        self.reductions::<T>(&ops, count);
        for op in ops {
            same!(self, self.input::<T>(count), scan(op));
            same!(self, self.input::<T>(count), exscan(op));
            same!(self, self.input::<T>(count), count, scan_into(op));
            same!(self, self.input::<T>(count), count, exscan_into(op));
        }
        self.moves::<T>(count);
        self.comm.on_stream(&self.stream).check().unwrap();
    }

    pub(super) fn reductions<T: Value + DeviceRepr>(&mut self, ops: &[Reduction], count: usize) {
        let all = self.comm.size() * count;
        for &op in ops {
            same!(self, self.input::<T>(count), all_reduce(op));
            same!(self, self.input::<T>(count), count, all_reduce_into(op));
            same!(self, self.input::<T>(all), count, reduce_scatter(op));
            same!(self, self.input::<T>(all), reduce_scatter_in_place(op));
            for root in self.roots() {
                same!(self, self.input::<T>(count), reduce(op, root));
                let len = if self.comm.rank() == root { count } else { 0 };
                same!(self, self.input::<T>(count), len, reduce_into(op, root));
            }
        }
    }

    pub(super) fn moves<T: Value + DeviceRepr>(&mut self, count: usize) {
        let all = self.comm.size() * count;
        same!(self, self.input::<T>(count), all, all_gather());
        same!(self, self.input::<T>(all), all_gather_in_place());
        same!(self, self.input::<T>(all), all, all_to_all());
        same!(self, self.input::<T>(all), all_to_all_in_place());
        for root in self.roots() {
            same!(self, self.input::<T>(count), broadcast(root));
            same!(self, self.input::<T>(count), all, gather(root));
            let given = if self.comm.rank() == root { all } else { 0 };
            same!(self, self.input::<T>(given), count, scatter(root));
        }
    }

    /// The first rank, one in the middle, and the last.
    fn roots(&self) -> BTreeSet<usize> {
        let n = self.comm.size();
        BTreeSet::from([0, n / 2, n - 1])
    }
}

/// Every verb, at the lengths that an interpreter of kernels has time for. A share has the longest
/// one in every second world.
pub(super) fn every_verb_short(comm: &mut Communicator) {
    let mut both = Both::new(comm);
    let long = share::has(both.comm.size() as u64 / 2, 2).then_some(10_001);
    for count in [0, 1, 1000].into_iter().chain(long) {
        both.every::<f32>(count);
    }
    both.every::<i64>(1001);
    both.every::<u8>(1001);
}

/// Calls one after the other, none of which is waited for; the result of the last shows the order.
pub(super) fn in_order(comm: &mut Communicator) {
    let (n, streams) = (comm.size() as i64, [stream(comm), stream(comm)]);
    let mut bufs = streams.each_ref().map(|stream| stream.clone_htod(&[1_i64; 1000]).unwrap());
    comm.barrier().unwrap();
    for _ in 0..12 {
        for (stream, buf) in streams.iter().zip(&mut bufs) {
            comm.on_stream(stream).all_reduce(buf, ReduceOp::Sum).unwrap();
            comm.on_stream(stream).all_reduce(buf, ReduceOp::Avg).unwrap();
        }
    }
    for (stream, buf) in streams.iter().zip(&mut bufs) {
        comm.on_stream(stream).all_reduce(buf, ReduceOp::Sum).unwrap();
        let expected = n.pow(13);
        assert!(stream.clone_dtoh(buf).unwrap().iter().all(|&found| found == expected));
    }
}
