//! Calls on buffers known by their addresses, of types known at run time, on streams of other
//! owners: results are the host's, at any alignment, and wrong memory is refused by name.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::Arc;

use bytemuck::cast_slice;
use cudarc::driver::sys::{self, CUstream};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use harness::{Value, on_ranks};
use ringreduce::{Communicator, Complex, DataType, OnStream, ReduceOp, Reduction, Result, bf16};

use super::super::standin::{self, DEVICES, PEERS, on_standin, this_body};
use super::fixture::{NOWHERE, address, attach, given, has_devices, raw, refused};

const SUM: ReduceOp = ReduceOp::Sum;
/// A byte before and behind each buffer.
const EDGE: u8 = 99;

/// A stream that the test makes by the driver, and ends.
struct Foreign {
    context: Arc<CudaContext>,
    raw: CUstream,
}

impl Foreign {
    fn new(context: &Arc<CudaContext>) -> Self {
        context.bind_to_thread().unwrap();
        let mut raw = null_mut();
        // SAFETY: stores the handle of a new stream.
        unsafe { sys::cuStreamCreate(&raw mut raw, 1).result() }.unwrap();
        Self { context: Arc::clone(context), raw }
    }

    fn borrow(&self, comm: &Communicator) -> Result<Arc<CudaStream>> {
        // SAFETY: the stream stays until `end`, when all calls are done.
        unsafe { comm.borrow_stream(self.raw) }
    }

    /// The stream is still the test's, which ends it.
    fn end(self) {
        self.context.bind_to_thread().unwrap();
        // SAFETY: the stream is this value's own.
        unsafe { sys::cuStreamSynchronize(self.raw).result() }.unwrap();
        // SAFETY: as above, and nothing uses it any more.
        unsafe { sys::cuStreamDestroy_v2(self.raw).result() }.unwrap();
    }
}

/// A rank whose buffers begin so many bytes into their allocations.
struct Rank<'a> {
    comm: &'a mut Communicator,
    stream: Arc<CudaStream>,
    offset: usize,
}

/// A call on bytes of the host, then of the device, with the same result.
macro_rules! same {
    ($on:ident, $input:expr, $name:ident($dtype:ident $(, $arg:expr)*)) => {{
        let input: Vec<u8> = $input;
        let (mut host, device) = (input.clone(), $on.up(&input));
        $on.comm.$name(&mut host, $dtype $(, $arg)*).unwrap();
        let buf = $on.part(&device);
        $on.comm.on_stream(&$on.stream).$name(buf, $dtype $(, $arg)*).unwrap();
        assert!($on.down(&device) == host, "{} of {}", stringify!($name), $dtype);
    }};
    ($on:ident, $input:expr, $len:expr,
        $name:ident([$($counts:expr)?] $dtype:ident $(, $arg:expr)*)) => {{
        let (input, mut host): (Vec<u8>, _) = ($input, vec![77_u8; $len * $dtype.size()]);
        let (send, recv) = ($on.up(&input), $on.up(&host));
        $on.comm.$name(&input, &mut host, $($counts,)? $dtype $(, $arg)*).unwrap();
        let [from, to] = [&send, &recv].map(|buf| $on.part(buf));
        $on.comm.on_stream(&$on.stream).$name(from, to, $($counts,)? $dtype $(, $arg)*).unwrap();
        assert!($on.down(&recv) == host, "{} of {}", stringify!($name), $dtype);
        assert!($on.down(&send) == input, "{} of {}", stringify!($name), $dtype);
    }};
}

impl Rank<'_> {
    fn up(&self, bytes: &[u8]) -> CudaSlice<u8> {
        self.stream.clone_htod(&[&vec![EDGE; self.offset], bytes, &[EDGE]].concat()).unwrap()
    }

    fn part(&self, buf: &CudaSlice<u8>) -> ringreduce::DeviceRef {
        let len = buf.len() - self.offset - 1;
        raw(address(buf, &self.stream) + self.offset as u64, len)
    }

    fn down(&self, device: &CudaSlice<u8>) -> Vec<u8> {
        let mut host = self.stream.clone_dtoh(device).unwrap();
        assert!(host.pop() == Some(EDGE) && host[..self.offset].iter().all(|&it| it == EDGE));
        host.split_off(self.offset)
    }

    fn input<T: Value>(&self, len: usize) -> Vec<u8> {
        cast_slice(&given::<T>(self.comm, len)).to_vec()
    }

    fn equal_parts<T: Value>(&mut self, count: usize) {
        let (dtype, n, rank, root) = (T::DTYPE, self.comm.size(), self.comm.rank(), 0);
        let (all, at_root) = (n * count, |len| if rank == root { len } else { 0 });
        same!(self, self.input::<T>(count), all_reduce_bytes(dtype, SUM));
        same!(self, self.input::<T>(count), reduce_bytes(dtype, SUM, root));
        same!(self, self.input::<T>(count), broadcast_bytes(dtype, root));
        same!(self, self.input::<T>(count), scan_bytes(dtype, SUM));
        same!(self, self.input::<T>(count), exscan_bytes(dtype, SUM));
        same!(self, self.input::<T>(all), reduce_scatter_in_place_bytes(dtype, SUM));
        same!(self, self.input::<T>(all), all_gather_in_place_bytes(dtype));
        same!(self, self.input::<T>(all), all_to_all_in_place_bytes(dtype));
        same!(self, self.input::<T>(count), count, all_reduce_into_bytes([] dtype, SUM));
        same!(self, self.input::<T>(count), at_root(count), reduce_into_bytes([] dtype, SUM, root));
        same!(self, self.input::<T>(all), count, reduce_scatter_bytes([] dtype, SUM));
        same!(self, self.input::<T>(count), all, all_gather_bytes([] dtype));
        same!(self, self.input::<T>(count), at_root(all), gather_bytes([] dtype, root));
        same!(self, self.input::<T>(at_root(all)), count, scatter_bytes([] dtype, root));
        same!(self, self.input::<T>(all), all, all_to_all_bytes([] dtype));
        same!(self, self.input::<T>(count), count, scan_into_bytes([] dtype, SUM));
        same!(self, self.input::<T>(count), count, exscan_into_bytes([] dtype, SUM));
    }

    fn uneven_parts<T: Value>(&mut self, count: usize) {
        let (dtype, n, rank, root) = (T::DTYPE, self.comm.size(), self.comm.rank(), 0);
        let counts: Vec<_> = (0..n).map(|rank| count / (rank + 1)).collect();
        let (mine, all) = (counts[rank], counts.iter().sum::<usize>());
        let at_root = |len| if rank == root { len } else { 0 };
        same!(self, self.input::<T>(mine), all, all_gather_v_bytes([&counts] dtype));
        same!(self, self.input::<T>(all), mine, reduce_scatter_v_bytes([&counts] dtype, SUM));
        same!(self, self.input::<T>(mine), at_root(all), gather_v_bytes([&counts] dtype, root));
        same!(self, self.input::<T>(at_root(all)), mine, scatter_v_bytes([&counts] dtype, root));
        let (input, mut host) = (self.input::<T>(n * mine), vec![0; all * dtype.size()]);
        let (given, device) = (vec![mine; n], [self.up(&input), self.up(&host)]);
        self.comm.all_to_all_v_bytes(&input, &given, &mut host, &counts, dtype).unwrap();
        let [send, recv] = device.each_ref().map(|buf| self.part(buf));
        let mut on = self.comm.on_stream(&self.stream);
        on.all_to_all_v_bytes(send, &given, recv, &counts, dtype).unwrap();
        assert!(self.down(&device[1]) == host, "all_to_all_v of {dtype}");
    }

    fn messages<T: Value>(&mut self, count: usize) {
        let (dtype, n, rank) = (T::DTYPE, self.comm.size(), self.comm.rank());
        let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
        let number = |rank: usize| vec![T::from_integer(rank as i64 + 1); count];
        let [mine, theirs] = [rank, before].map(|rank| cast_slice(&number(rank)).to_vec());
        let (send, recv) = (self.up(&mine), [self.up(&mine), self.up(&mine)]);
        let (from, to) = (self.part(&send), recv.each_ref().map(|buf| self.part(buf)));
        let mut on = self.comm.on_stream(&self.stream);
        on.send_recv_bytes(from, next, to[0], before, dtype).unwrap();
        if rank == 0 {
            on.send_bytes(from, dtype, next).unwrap();
        }
        on.recv_bytes(to[1], dtype, before).unwrap();
        if rank > 0 {
            on.send_bytes(from, dtype, next).unwrap();
        }
        assert!(recv.iter().all(|buf| self.down(buf) == theirs), "messages of {dtype}");
    }

    fn many<T: Value>(&mut self, count: usize) {
        let mut host = [count, 0, 3].map(|len| self.input::<T>(len));
        let device = host.each_ref().map(|buf| self.up(buf));
        let scaled = Reduction::premul_sum_bytes(cast_slice(&[T::from_integer(2)]), T::DTYPE);
        self.comm.all_reduce_many_bytes(&mut host, T::DTYPE, scaled.unwrap()).unwrap();
        let parts = device.each_ref().map(|buf| self.part(buf));
        let mut on = self.comm.on_stream(&self.stream);
        on.all_reduce_many_bytes(&parts, T::DTYPE, scaled.unwrap()).unwrap();
        assert!(device.each_ref().map(|buf| self.down(buf)) == host);
    }

    fn every<T: Value>(&mut self, count: usize) {
        self.equal_parts::<T>(count);
        self.uneven_parts::<T>(count);
        self.messages::<T>(count);
        self.many::<T>(count);
        self.comm.on_stream(&self.stream).check().unwrap();
    }
}

/// Every verb of several types, on buffers at any alignment.
fn every_verb(comm: &mut Communicator) {
    let context = Arc::clone(attach(comm).context());
    let foreign = Foreign::new(&context);
    comm.barrier().unwrap();
    let stream = foreign.borrow(comm).unwrap();
    for offset in [0, 1, 4] {
        let mut rank = Rank { comm: &mut *comm, stream: Arc::clone(&stream), offset };
        rank.every::<f32>(331);
        rank.every::<i64>(100);
        rank.every::<u8>(1001);
        rank.every::<bf16>(77);
        rank.every::<Complex<f32>>(50);
        rank.equal_parts::<f32>(0);
    }
    drop(stream);
    foreign.end();
}

/// Memory that can't be a call's is refused by the name of the argument, and the next call
/// succeeds.
fn wrong_memory(comm: &mut Communicator) {
    const DTYPE: DataType = DataType::I32;
    let stream = attach(comm);
    let (n, rank) = (comm.size(), comm.rank());
    let other =
        CudaContext::new((stream.context().ordinal() + 1) % 2).unwrap().new_stream().unwrap();
    let [mut buf, good] = [0, 1].map(|_| stream.clone_htod(&[1_i32; 12]).unwrap());
    let far = other.clone_htod(&[1_i32; 12]).unwrap();
    other.synchronize().unwrap();
    comm.barrier().unwrap();
    let (start, good) = (address(&buf, &stream), raw(address(&good, &stream), 48));
    let host = [1_i32; 12];
    for (start, bytes, want) in [
        (0, 48, "a null pointer, expected the address of 48 bytes"),
        (start, 47, "47 bytes long, expected a multiple of 4, the size of int32"),
        (start, usize::MAX - 3, "expected memory within the address space"),
        (u64::MAX - 7, 48, "expected memory within the address space"),
        (start, 96, "96 bytes long, of which 48 are all that were allocated there"),
        (NOWHERE, 48, "memory that devices can't touch"),
        (host.as_ptr().addr() as u64, 48, "memory that devices can't touch"),
        (address(&far, &other), 48, "memory of device"),
    ] {
        let wrong = raw(start, bytes);
        let mut refuses =
            |argument: &str, call: &mut dyn FnMut(&mut OnStream<'_>) -> Result<()>| {
                let text = call(&mut comm.on_stream(&stream)).unwrap_err().to_string();
                assert!(
                    text.contains(&format!(": {argument} is ")) && text.contains(want),
                    "{text}"
                );
            };
        let peer = (rank + 1) % n;
        refuses("buf", &mut |on| on.all_reduce_bytes(wrong, DTYPE, SUM));
        refuses("buf", &mut |on| on.send_bytes(wrong, DTYPE, peer));
        refuses("buf", &mut |on| on.recv_bytes(wrong, DTYPE, peer));
        refuses("bufs", &mut |on| on.all_reduce_many_bytes(&[good, wrong], DTYPE, SUM));
        refuses("send", &mut |on| on.send_recv_bytes(wrong, peer, good, peer, DTYPE));
        refuses("recv", &mut |on| on.send_recv_bytes(good, peer, wrong, peer, DTYPE));
        if bytes == 48 {
            refuses("send", &mut |on| on.all_reduce_into_bytes(wrong, good, DTYPE, SUM));
            refuses("recv", &mut |on| on.all_reduce_into_bytes(good, wrong, DTYPE, SUM));
            let mut counts = vec![0; n];
            counts[rank] = 12;
            refuses("send", &mut |on| on.all_gather_v_bytes(wrong, good, &counts, DTYPE));
            refuses("recv", &mut |on| on.all_gather_v_bytes(good, wrong, &counts, DTYPE));
        }
    }
    let mut on = comm.on_stream(&stream);
    let [one, next] = [start, start + 12].map(|start| raw(start, 24));
    let overlap = "recv is memory that overlaps send, expected memory of its own";
    refused(on.all_reduce_into_bytes(one, next, DTYPE, SUM), overlap);
    refused(on.send_recv_bytes(next, rank, one, rank, DTYPE), overlap);
    // A rank that is not the root does not use the other buffer.
    let unused = raw(0, 48);
    let recv = if rank == 0 { raw(start, 48) } else { unused };
    on.reduce_into_bytes(good, recv, DTYPE, SUM, 0).unwrap();
    on.all_reduce(&mut buf, ReduceOp::Max).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [n as i32; 12]);
}

/// Streams that can't be a communicator's are refused, and a borrowed one is left alone.
fn wrong_streams(comm: &mut Communicator) {
    let contexts = [0, 1].map(|device| CudaContext::new(device).unwrap());
    let [mine, other] = contexts.each_ref().map(Foreign::new);
    refused(mine.borrow(comm), "self is a communicator without a device");
    comm.use_device(&contexts[0]).unwrap();
    refused(other.borrow(comm), "stream is of another context than use_device was given");
    let mut buf = mine.borrow(comm).unwrap().clone_htod(&[1_i32; 12]).unwrap();
    comm.barrier().unwrap();
    for _ in 0..3 {
        let stream = mine.borrow(comm).unwrap();
        comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    }
    for default in [0, 1] {
        // SAFETY: the handles of the default stream, which stays.
        let shared = unsafe { comm.borrow_stream(std::ptr::without_provenance_mut(default)) };
        let done = comm.on_stream(&shared.unwrap()).all_reduce(&mut buf, SUM);
        refused(done, "stream is the default one");
    }
    let stream = mine.borrow(comm).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 12]);
    drop((stream, buf));
    [mine, other].into_iter().for_each(Foreign::end);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in [2, 3] {
            on_ranks(n, every_verb);
        }
    }

    pub(crate) fn memory() {
        if has_devices(2, this_body!(memory)) {
            on_ranks(2, wrong_memory);
        }
    }

    pub(crate) fn streams() {
        if has_devices(2, this_body!(streams)) {
            on_ranks(2, wrong_streams);
        }
    }
}

on_standin! {
    /// Direct calls, calls by way of the host, and calls by P2P domains.
    verbs_on_borrowed_streams_give_the_hosts_results:
        threads [],
        threads [DEVICES = "2", PEERS = "none"];
    wrong_memory_is_refused_by_name:
        memory [DEVICES = "2"],
        memory [DEVICES = "2", PEERS = "none"];
    wrong_streams_are_refused: streams [DEVICES = "2"];
}
