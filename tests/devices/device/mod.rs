//! Collectives on device buffers, on a stand-in for the driver: what comes out is what the host
//! makes of the same, in the order of the stream; and what fails has a name and leaves no stream
//! waiting. Each test is this program again, with the stand-in where the loader looks first.

pub(crate) mod devices;
pub(crate) mod direct;
pub(crate) mod faults;
pub(crate) mod forms;
pub(crate) mod graphs;
pub(crate) mod islands;
pub(crate) mod islands_faults;
pub(crate) mod lacking;
pub(crate) mod late;
pub(crate) mod meet;
pub(crate) mod mixed;
pub(crate) mod order;
pub(crate) mod planted;
pub(crate) mod refused;
pub(crate) mod throttle;
pub(crate) mod trouble;
pub(crate) mod types;
pub(crate) mod verbs;

use std::sync::Arc;

use super::standin::on_standin;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop,
};
use harness::processes::{run, this_rank};
use harness::{Value, input, on_ranks};
use ringreduce::{Communicator, ReduceOp, Reduction, Result};

/// Longer than two pieces of 1 MiB, and not whole ones.
const LONG: usize = 600_001;

/// A stream of the rank's device: ranks take devices in turns.
fn stream(comm: &Communicator) -> Arc<CudaStream> {
    let device = comm.rank() % CudaContext::device_count().unwrap() as usize;
    CudaContext::new(device).unwrap().new_stream().unwrap()
}

/// Waits for the calls on a stream, or for the error of one. A kernel of a rank that is stopped
/// holds the streams whose buffers it writes for as long as that rank is, and whoever waits for
/// such a stream alone.
fn finish(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let event = stream.record_event(None).unwrap();
    while !event.is_complete() {
        comm.on_stream(stream).check()?;
        std::thread::yield_now();
    }
    comm.on_stream(stream).check()
}

/// One rank's calls, each on the host and on the device.
struct Both<'a> {
    comm: &'a mut Communicator,
    stream: Arc<CudaStream>,
}

macro_rules! both {
    ($self:ident, $input:expr, $name:ident($($arg:expr),*)) => {{
        let mut host = $input;
        let mut device = $self.up(&host);
        $self.comm.$name(&mut host, $($arg),*).unwrap();
        let mut view = device.slice_mut(..host.len());
        $self.comm.on_stream(&$self.stream).$name(&mut view, $($arg),*).unwrap();
        assert!($self.down(&device) == host, "{} of {}", stringify!($name), host.len());
    }};
    ($self:ident, $input:expr, $len:expr, $name:ident($($arg:expr),*)) => {{
        let (from, mut host) = ($input, $self.before($len));
        let (send, mut device) = ($self.up(&from), $self.up(&host));
        $self.comm.$name(&from, &mut host, $($arg),*).unwrap();
        let (send, mut view) = (send.slice(..from.len()), device.slice_mut(..host.len()));
        $self.comm.on_stream(&$self.stream).$name(&send, &mut view, $($arg),*).unwrap();
        let found = $self.down(&device);
        let at = found.iter().zip(&host).position(|(found, host)| found != host);
        assert!(
            found == host,
            "{} of {} at {}: {:?}",
            stringify!($name),
            host.len(),
            $self.comm.rank(),
            at.map(|at| (at, found[at], host[at]))
        );
    }};
}

impl Both<'_> {
    fn input<T: Value>(&self, len: usize) -> Vec<T> {
        let (n, rank) = (self.comm.size(), self.comm.rank());
        (0..len).map(|i| input(ReduceOp::Sum, n, rank, i)).collect()
    }

    /// On the device, with one element more: there is no memory without any.
    fn up<T: Value + DeviceRepr>(&self, host: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(&[host, &[T::whole(99)]].concat()).unwrap()
    }

    /// Back, without that element, which is as it was.
    fn down<T: Value + DeviceRepr>(&self, device: &CudaSlice<T>) -> Vec<T> {
        let mut host = self.stream.clone_dtoh(device).unwrap();
        assert!(host.pop() == Some(T::whole(99)), "more than the buffer was written");
        host
    }

    /// What is there before a call.
    fn before<T: Value>(&self, len: usize) -> Vec<T> {
        vec![T::whole(77); len]
    }

    fn every<T: Value + DeviceRepr>(&mut self, count: usize) {
        let (n, whole) = (self.comm.size(), self.comm.size() * count);
        for op in [ReduceOp::Sum, ReduceOp::Max].map(Reduction::from) {
            both!(self, self.input::<T>(count), all_reduce(op));
            both!(self, self.input::<T>(count), scan(op));
            both!(self, self.input::<T>(count), exscan(op));
            both!(self, self.input::<T>(count), count, all_reduce_into(op));
            both!(self, self.input::<T>(count), count, scan_into(op));
            both!(self, self.input::<T>(count), count, exscan_into(op));
            both!(self, self.input::<T>(whole), count, reduce_scatter(op));
        }
        both!(self, self.input::<T>(count), whole, all_gather());
        both!(self, self.input::<T>(whole), whole, all_to_all());
        let sum = Reduction::from(ReduceOp::Sum);
        for root in [0, n - 1] {
            both!(self, self.input::<T>(count), broadcast(root));
            both!(self, self.input::<T>(count), reduce(sum, root));
            let len = if self.comm.rank() == root { count } else { 0 };
            both!(self, self.input::<T>(count), len, reduce_into(sum, root));
            both!(self, self.input::<T>(count), whole, gather(root));
            both!(self, self.input::<T>(whole), count, scatter(root));
        }
        self.comm.on_stream(&self.stream).check().unwrap();
    }
}

fn every_verb(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut both = Both { comm, stream };
    // To make a stream waits for others: no rank's shall wait for this one before.
    both.comm.barrier().unwrap();
    for count in [0, 1, 1000] {
        both.every::<f32>(count);
        both.every::<i64>(count);
        both.every::<u8>(count);
    }
    both.every::<f32>(LONG);
}

/// The same with fewer, for what runs on an interpreter.
fn every_verb_shortly(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut both = Both { comm, stream };
    // To make a stream waits for others: no rank's shall wait for this one before.
    both.comm.barrier().unwrap();
    for count in [0, 1, 1000, 10_001] {
        both.every::<f32>(count);
    }
    both.every::<i64>(1001);
    both.every::<u8>(1001);
}

/// Calls one after the other, none waited for; the last one says what all did.
fn in_order(comm: &mut Communicator) {
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

/// A rank that makes another call: both are told, and no stream waits for ever.
fn mismatch(comm: &mut Communicator) {
    let stream = stream(comm);
    let count = if comm.rank() == 0 { 1000 } else { 1001 };
    let mut buf = stream.clone_htod(&vec![1_i32; count]).unwrap();
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    stream.synchronize().unwrap();
    let error = comm.on_stream(&stream).check().unwrap_err().to_string();
    assert!(error.contains("does not make the same call"), "{error}");
    let error = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let error = error.and_then(|()| comm.on_stream(&stream).check()).unwrap_err().to_string();
    assert!(error.contains("failed before"), "{error}");
    stream.synchronize().unwrap();
}

/// A buffer that is nowhere.
struct Nowhere(Arc<CudaStream>);

impl DeviceSlice<i32> for Nowhere {
    fn len(&self) -> usize {
        10
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.0
    }
}

impl DevicePtrMut<i32> for Nowhere {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (16, SyncOnDrop::Record(None))
    }
}

/// What the device refuses is said at once, and the other rank does not wait for it.
fn foreign(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        let mut nowhere = Nowhere(Arc::clone(&stream));
        let error = comm.on_stream(&stream).all_reduce(&mut nowhere, ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    } else {
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        let error = comm.on_stream(&stream).check().unwrap_err().to_string();
        assert!(error.contains("lost rank 0"), "{error}");
    }
    stream.synchronize().unwrap();
}

/// A call in a graph is refused, and the stream and the communicator go on.
fn captured(comm: &mut Communicator) {
    use cudarc::driver::sys::CUgraphInstantiate_flags;
    use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let error = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("stream is being captured"), "{error}");
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    drop(stream.end_capture(flags).unwrap());
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
}

/// No pinned memory: the call says so, and the communicator goes on.
fn no_memory(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let error = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 1..=4 {
            on_ranks(n, every_verb);
            on_ranks(n, in_order);
        }
        on_ranks(2, mismatch);
        on_ranks(2, captured);
        on_ranks(2, foreign);
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                every_verb(&mut comm);
                in_order(&mut comm);
            }
            None => ["shm", "tcp"].into_iter().for_each(|by| run("device::body::processes", 2, by)),
        }
    }

    pub(crate) fn without_memory() {
        on_ranks(1, no_memory);
    }
}

#[test]
fn every_verb_is_the_hosts() {
    on_standin("device::body::threads", &[]);
}

/// Streams that share a queue wait for each other in the order in which calls were made. (Thread
/// ranks of one device need queues of their own: one's wait would keep another from copying in.)
#[test]
fn streams_of_a_process_may_share_a_queue() {
    on_standin("device::body::processes", &[("STANDIN_CUDA_QUEUES", "1")]);
    on_standin("device::body::processes", &[("STANDIN_CUDA_QUEUES", "2")]);
}

#[test]
fn ranks_may_be_processes() {
    on_standin("device::body::processes", &[]);
}

#[test]
fn memory_that_is_not_to_be_had_is_an_error_of_the_call() {
    on_standin("device::body::without_memory", &[("STANDIN_CUDA_FAIL_ALLOC", "2")]);
}
