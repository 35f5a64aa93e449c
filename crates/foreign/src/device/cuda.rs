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
/// host's.
///
/// # Errors
/// If only some are, and those of the calls.
pub fn put_all(comm: &mut Communicator, operations: &[Operation]) -> Result<bool, Error> {
    let is_on_device = |op: &Operation| {
        let used = if op.send != 0 { op.send } else { op.recv };
        used != 0 && memory_type(used).is_some()
    };
    let on_device = operations.iter().filter(|op| is_on_device(op)).count();
    if on_device == 0 {
        return Ok(false);
    }
    if on_device < operations.len() {
        return refuse("a group", "buffers of the host and of a device", "a group for each");
    }
    let messages: Vec<_> = operations.iter().filter(|op| op.is_message()).copied().collect();
    put_messages(comm, &messages)?;
    for op in operations.iter().filter(|op| !op.is_message()) {
        on_stream(comm, op.stream, |mut stream| put(&mut stream, op))?;
    }
    Ok(true)
}

fn on_stream(
    comm: &mut Communicator,
    stream: usize,
    work: impl FnOnce(OnStream<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    // SAFETY: the caller says that it is a stream, which stays until its work is done.
    let stream: Arc<CudaStream> = unsafe { comm.borrow_stream(stream as sys::CUstream) }?;
    work(comm.on_stream(&stream))
}

/// Puts messages on the stream in an order that is the same at both ends and ends: by the distance
/// between sender and receiver, each send beside the receive at that distance.
fn put_messages(comm: &mut Communicator, messages: &[Operation]) -> Result<(), Error> {
    let (me, size) = (comm.rank(), comm.size());
    for distance in 0..size {
        let by = |verb| move |op: &&Operation| op.call.verb == verb;
        let (to, from) = ((me + distance) % size, (me + size - distance) % size);
        let mut sends = messages.iter().filter(by(Verb::Send { to }));
        let mut recvs = messages.iter().filter(by(Verb::Recv { from }));
        loop {
            match (sends.next(), recvs.next()) {
                (Some(send), Some(recv)) if send.call.dtype == recv.call.dtype => {
                    put_pair(comm, send, recv, distance)?;
                }
                (Some(_), Some(_)) => {
                    let expected = "one type for what a group sends and receives at one distance";
                    return refuse("a group", "two types", expected);
                }
                (Some(one), None) | (None, Some(one)) => {
                    on_stream(comm, one.stream, |mut stream| put(&mut stream, one))?;
                }
                (None, None) => break,
            }
        }
    }
    Ok(())
}

fn put_pair(
    comm: &mut Communicator,
    send: &Operation,
    recv: &Operation,
    distance: usize,
) -> Result<(), Error> {
    let (me, size) = (comm.rank(), comm.size());
    let peers = ((me + distance) % size, (me + size - distance) % size);
    on_stream(comm, send.stream, |mut stream| {
        let sent = device_ref(send.send, send.send_len);
        let received = device_ref(recv.recv, recv.recv_len);
        stream.send_recv_bytes(sent, peers.0, received, peers.1, send.call.dtype)
    })
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
