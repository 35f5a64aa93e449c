//! Operations on the memory of a CUDA device.
//! Unsafe: a caller's addresses and streams go to the driver.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUmemorytype, CUpointer_attribute, CUresult};
use ringreduce::{Buffers, Communicator, DeviceRef, Error, OnStream, Verb, device_count};

use crate::operation::Operation;

/// True if the driver is there and has a device.
#[must_use]
pub fn is_present() -> bool {
    device_count().is_ok_and(|devices| devices > 0)
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
#[must_use]
pub fn is_device_memory(address: usize) -> bool {
    is_present() && memory_type(address) == Some(CUmemorytype::CU_MEMORYTYPE_DEVICE)
}

/// Puts the operations on their streams if their buffers are a device's; false if they are the
/// host's. An operation without bytes goes with the others. Operations on several streams go, as in
/// NCCL, on one of them, after all work that the others have, and before what they are given next.
///
/// # Errors
/// If only some are, and those of the calls.
pub fn put_all(comm: &mut Communicator, operations: &[Operation]) -> Result<bool, Error> {
    let is_on_device = |op: &Operation| {
        let used = if op.send != 0 { op.send } else { op.recv };
        used != 0 && memory_type(used).is_some()
    };
    let Some(first) = operations.iter().find(|op| is_on_device(op)) else { return Ok(false) };
    let is_on_host = |op: &Operation| op.send_len + op.recv_len > 0 && !is_on_device(op);
    if operations.iter().any(is_on_host) {
        return refuse("a group", "buffers of the host and of a device", "a group for each");
    }
    let mut streams: Vec<_> = operations.iter().map(|op| op.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let stream = borrow(comm, first.stream)?;
    let others = streams.into_iter().filter(|&other| other != first.stream);
    let others = others.map(|other| borrow(comm, other)).collect::<Result<Vec<_>, _>>()?;
    others.iter().try_for_each(|other| comm.on_stream(&stream).join(other))?;
    let is_message = |op: &&Operation| op.is_message();
    let messages: Vec<_> = operations.iter().filter(is_message).copied().collect();
    put_messages(comm, &stream, &messages)?;
    for op in operations.iter().filter(|op| !op.is_message()) {
        put(&mut comm.on_stream(&stream), op)?;
    }
    others.iter().try_for_each(|other| comm.on_stream(other).join(&stream))?;
    Ok(true)
}

fn borrow(comm: &Communicator, stream: usize) -> Result<Arc<CudaStream>, Error> {
    // SAFETY: the caller says that it is a stream, which stays until its work is done.
    unsafe { comm.borrow_stream(stream as sys::CUstream) }
}

/// Puts messages on the stream in an order that is the same at both ends and ends: by the distance
/// between sender and receiver, each send beside the receive at that distance.
fn put_messages(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    messages: &[Operation],
) -> Result<(), Error> {
    let (me, size) = (comm.rank(), comm.size());
    for distance in 0..size {
        let by = |verb| move |op: &&Operation| op.call.verb == verb;
        let (to, from) = ((me + distance) % size, (me + size - distance) % size);
        let mut sends = messages.iter().filter(by(Verb::Send { to }));
        let mut recvs = messages.iter().filter(by(Verb::Recv { from }));
        loop {
            match (sends.next(), recvs.next()) {
                (Some(send), Some(recv)) if send.call.dtype == recv.call.dtype => {
                    put_pair(&mut comm.on_stream(stream), send, recv, (to, from))?;
                }
                (Some(_), Some(_)) => {
                    let expected = "one type for what a group sends and receives at one distance";
                    return refuse("a group", "two types", expected);
                }
                (Some(one), None) | (None, Some(one)) => {
                    put(&mut comm.on_stream(stream), one)?;
                }
                (None, None) => break,
            }
        }
    }
    Ok(())
}

fn put_pair(
    stream: &mut OnStream<'_>,
    send: &Operation,
    recv: &Operation,
    (to, from): (usize, usize),
) -> Result<(), Error> {
    let sent = device_ref(send.send, send.send_len);
    let received = device_ref(recv.recv, recv.recv_len);
    stream.send_recv_bytes(sent, to, received, from, send.call.dtype)
}

/// Puts one operation on a stream.
fn put(stream: &mut OnStream<'_>, op: &Operation) -> Result<(), Error> {
    let &Operation { send, send_len, recv, recv_len, .. } = op;
    let buffers = match op.is_in_place() {
        true if send_len > recv_len => Buffers::InPlace(device_ref(send, send_len)),
        true => Buffers::InPlace(device_ref(recv, recv_len)),
        false => Buffers::OutOfPlace {
            send: device_ref(send, send_len),
            recv: device_ref(recv, recv_len),
        },
    };
    stream.call(&op.call, buffers)
}

#[cold]
fn refuse<T>(argument: &'static str, given: &str, expected: &str) -> Result<T, Error> {
    Err(Error::argument("on_stream", argument, given, expected))
}

fn device_ref(start: usize, bytes: usize) -> DeviceRef {
    // SAFETY: a caller of NCCL's interface promises for each call that the buffers stay until the
    // stream has passed the call, and that nothing else touches what it writes.
    unsafe { DeviceRef::from_raw_parts(start as u64, bytes) }
}
