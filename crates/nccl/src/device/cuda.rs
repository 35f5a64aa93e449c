//! The device of a communicator, and operations on it.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemorytype, CUpointer_attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream};
use ringreduce::{Communicator, DeviceRef, OnStream, device_count};

use crate::abi::code;
use crate::calls::carry_out;
use crate::failure::{Failure, Outcome};
use crate::handle::Rank;
use crate::operation::{Operation, Verb};

/// The device that was current when the communicator was made.
#[derive(Debug)]
pub(crate) struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    pub(crate) fn ordinal(&self) -> c_int {
        self.context.ordinal() as c_int
    }
}

/// True if the driver is there and has a device.
fn is_present() -> bool {
    device_count().is_ok_and(|devices| devices > 0)
}

/// Gives the communicator the device with this number, or else the current one. All ranks call
/// this, with and without devices.
pub(crate) fn attach(comm: &mut Communicator, ordinal: Option<c_int>) -> Outcome<Option<Device>> {
    if !is_present() {
        comm.use_no_device()?;
        return Ok(None);
    }
    let ordinal = ordinal.unwrap_or_else(current_device);
    let failed = |error| {
        Failure::new(code::UNHANDLED_CUDA_ERROR, format_args!("using device {ordinal}: {error}"))
    };
    let made = usize::try_from(ordinal)
        .map_err(|_| Failure::argument(format_args!("device {ordinal}: no such device")))
        .and_then(|ordinal| CudaContext::new(ordinal).map_err(failed));
    match made {
        Ok(context) => {
            comm.use_device(&context)?;
            Ok(Some(Device { context }))
        }
        Err(failure) => {
            // The other ranks wait for what this one has.
            comm.use_no_device()?;
            Err(failure)
        }
    }
}

/// The device of the thread's current context, or else the first one.
fn current_device() -> c_int {
    let mut device = 0;
    // SAFETY: the driver is there, and `device` is a place for the answer.
    let answer = unsafe { sys::cuCtxGetDevice(&raw mut device) };
    if answer == CUresult::CUDA_SUCCESS { device } else { 0 }
}

/// The kind of memory at an address; none for memory of the host that the driver does not know.
fn memory_type(address: usize) -> Option<CUmemorytype> {
    let mut kind = 0_u32;
    // SAFETY: the driver is there, and `kind` is a place for this attribute. The address is not
    // followed.
    let answer = unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            address as u64,
        )
    };
    let is_device = kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    match answer {
        CUresult::CUDA_SUCCESS if is_device => Some(CUmemorytype::CU_MEMORYTYPE_DEVICE),
        CUresult::CUDA_SUCCESS if kind != 0 => Some(CUmemorytype::CU_MEMORYTYPE_HOST),
        _ => None,
    }
}

/// True if the host can't read the address.
pub(crate) fn is_device_memory(address: usize) -> bool {
    is_present() && memory_type(address) == Some(CUmemorytype::CU_MEMORYTYPE_DEVICE)
}

/// Puts the operations on their streams if their buffers are a device's; false if they are the
/// host's.
pub(crate) fn carries_out(rank: &mut Rank, operations: &[Operation]) -> Outcome<bool> {
    if rank.device.is_none() {
        return Ok(false);
    }
    let is_on_device = |op: &Operation| {
        let used = if op.send != 0 { op.send } else { op.recv };
        used != 0 && memory_type(used).is_some()
    };
    let on_device = operations.iter().filter(|op| is_on_device(op)).count();
    if on_device == 0 {
        return Ok(false);
    }
    if on_device < operations.len() {
        return Err(Failure::usage(
            "a group has buffers of the host and of a device; use a group for each",
        ));
    }
    let is_message = |op: &&Operation| matches!(op.verb, Verb::Send | Verb::Recv);
    let messages: Vec<_> = operations.iter().filter(is_message).copied().collect();
    put_messages(rank, &messages)?;
    for op in operations.iter().filter(|op| !is_message(op)) {
        on_stream(rank, op.stream, |mut stream| put(&mut stream, op))?;
    }
    Ok(true)
}

fn on_stream(
    rank: &mut Rank,
    stream: usize,
    work: impl FnOnce(OnStream<'_>) -> Outcome<()>,
) -> Outcome<()> {
    // SAFETY: the caller says that it is a stream, which stays until its work is done.
    let stream: Arc<CudaStream> = unsafe { rank.comm.borrow_stream(stream as sys::CUstream) }?;
    work(rank.comm.on_stream(&stream))
}

/// Puts messages on the stream in an order that is the same at both ends and ends: by the distance
/// between sender and receiver, each send beside the receive at that distance.
fn put_messages(rank: &mut Rank, messages: &[Operation]) -> Outcome<()> {
    let (me, size) = (rank.comm.rank(), rank.comm.size());
    for distance in 0..size {
        let of = |verb, peer| move |op: &&Operation| (op.verb, op.peer) == (verb, peer);
        let mut sends = messages.iter().filter(of(Verb::Send, (me + distance) % size));
        let mut recvs = messages.iter().filter(of(Verb::Recv, (me + size - distance) % size));
        loop {
            match (sends.next(), recvs.next()) {
                (Some(send), Some(recv)) if send.dtype == recv.dtype => {
                    put_pair(rank, send, recv, distance)?;
                }
                (Some(_), Some(_)) => {
                    return Err(Failure::usage(
                        "a group on a device sends and receives at one distance by two types",
                    ));
                }
                (Some(one), None) | (None, Some(one)) => {
                    on_stream(rank, one.stream, |mut stream| put(&mut stream, one))?;
                }
                (None, None) => break,
            }
        }
    }
    Ok(())
}

fn put_pair(rank: &mut Rank, send: &Operation, recv: &Operation, distance: usize) -> Outcome<()> {
    let (me, size) = (rank.comm.rank(), rank.comm.size());
    let peers = ((me + distance) % size, (me + size - distance) % size);
    on_stream(rank, send.stream, |mut stream| {
        let sent = device_ref(send.send, send.send_len);
        let received = device_ref(recv.recv, recv.recv_len);
        Ok(stream.send_recv_bytes(sent, peers.0, received, peers.1, send.dtype)?)
    })
}

/// Puts one operation on a stream.
fn put(stream: &mut OnStream<'_>, op: &Operation) -> Outcome<()> {
    let aside = |_, _| -> Outcome<usize> {
        Err(Failure::usage("a gather or a scatter in place is not offered on a device"))
    };
    let copy = |from, to, len| copy_on_stream(op.stream, from, to, len);
    Ok(carry_out!(stream, op, device_ref, device_ref, aside, copy)?)
}

fn copy_on_stream(stream: usize, from: usize, to: usize, len: usize) -> Outcome<()> {
    // SAFETY: the caller promises what `device_ref` says of both buffers, and that it is a stream.
    let answer =
        unsafe { sys::cuMemcpyDtoDAsync_v2(to as u64, from as u64, len, stream as sys::CUstream) };
    answered("copying the root's buffer", answer)
}

fn answered(doing: &str, answer: CUresult) -> Outcome<()> {
    if answer == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Failure::new(code::UNHANDLED_CUDA_ERROR, format_args!("{doing}: {answer:?}")))
}

/// Allocates device memory; none where no context is current.
pub(crate) fn allocate(bytes: usize) -> Outcome<Option<usize>> {
    let mut device = 0;
    // SAFETY: the driver is there if the first part is true, and `device` is a place for an answer.
    if !is_present() || unsafe { sys::cuCtxGetDevice(&raw mut device) } != CUresult::CUDA_SUCCESS {
        return Ok(None);
    }
    let mut start = 0;
    // SAFETY: a context is current, and `start` is a place for the address.
    let answer = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes) };
    answered("allocating device memory", answer).map(|()| Some(start as usize))
}

/// Frees memory of [`allocate`]; false if it is none.
pub(crate) fn free(start: usize) -> Outcome<bool> {
    if !is_device_memory(start) {
        return Ok(false);
    }
    // SAFETY: the caller says that no work on it is left.
    answered("freeing device memory", unsafe { sys::cuMemFree_v2(start as u64) }).map(|()| true)
}

fn device_ref(start: usize, bytes: usize) -> DeviceRef {
    // SAFETY: a caller of NCCL's interface promises for each call that the buffers stay until the
    // stream has passed the call, and that nothing else touches what it writes.
    unsafe { DeviceRef::from_raw_parts(start as u64, bytes) }
}
