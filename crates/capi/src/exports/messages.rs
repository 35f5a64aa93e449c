//! Messages between two ranks. Any thread may send and receive.
//! Unsafe: functions that C calls, and buffers that it lends.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use ringreduce::{DataType, Messenger, Source, Status, Tag};

use super::requests::{Request, rr_request};
use crate::failure::{Failure, Outcome, entry, give};
use crate::handle::rr_comm;
use crate::types::{RR_ANY, datatype, rr_message, rr_status};

/// A buffer that a caller lends to a message until it has ended.
pub(crate) struct Lent {
    start: *mut u8,
    len: usize,
}

// SAFETY: the caller of C leaves the buffer alone until the message has ended.
unsafe impl Send for Lent {}

impl Lent {
    /// The buffer of so many elements, and their type.
    fn new(start: *const c_void, count: usize, datatype: c_int) -> Outcome<(Self, DataType)> {
        let dtype = self::datatype(datatype)?;
        let len = count.checked_mul(dtype.size()).filter(|&len| isize::try_from(len).is_ok());
        let len = len.ok_or_else(|| {
            Failure::argument(format_args!("count is {count}, which is beyond the address space"))
        })?;
        if len > 0 && start.is_null() {
            return Err(Failure::argument("buffer is NULL"));
        }
        let start = if len == 0 { core::ptr::dangling_mut() } else { start.cast_mut().cast() };
        Ok((Self { start, len }, dtype))
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller has lent so many bytes.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the caller has lent so many bytes, to this message alone.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl rr_message {
    pub(crate) fn of(status: &Status) -> Self {
        let datatype = DataType::ALL.iter().position(|dtype| *dtype == status.dtype);
        Self {
            peer: c_int::try_from(status.rank).unwrap_or(-1),
            tag: status.tag,
            datatype: datatype.map_or(-1, |at| at as c_int),
            count: status.bytes / status.dtype.size(),
        }
    }
}

fn rank(argument: &str, number: c_int) -> Outcome<usize> {
    usize::try_from(number)
        .map_err(|_| Failure::argument(format_args!("{argument} is {number}, expected a rank")))
}

fn source(number: c_int) -> Outcome<Source> {
    if number == RR_ANY { Ok(Source::Any) } else { Ok(Source::Rank(rank("from", number)?)) }
}

fn tag(number: i64) -> Outcome<Tag> {
    if number == i64::from(RR_ANY) {
        return Ok(Tag::Any);
    }
    let tag = u32::try_from(number).map(Tag::Is);
    tag.map_err(|_| Failure::argument(format_args!("tag is {number}, expected 0 to 2^32 - 1")))
}

/// Runs a function on the messages of a communicator.
///
/// # Safety
/// `comm` is what [`rr_comm::of`] asks for.
unsafe fn with(
    function: &str,
    comm: *const rr_comm,
    work: impl FnOnce(&Messenger) -> Outcome,
) -> rr_status {
    // SAFETY: as above.
    entry(function, || work(&unsafe { rr_comm::of(comm) }?.messenger()?))
}

/// Sends `count` elements to rank `to`, and returns once the buffer may be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_send(
    comm: *const rr_comm,
    buffer: *const c_void,
    count: usize,
    datatype: c_int,
    to: c_int,
    tag: u32,
) -> rr_status {
    let send = |messages: &Messenger| {
        let (buffer, dtype) = Lent::new(buffer, count, datatype)?;
        Ok(messages.send_bytes(buffer.as_ref(), dtype, rank("to", to)?, tag)?)
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_send", comm, send) }
}

/// Receives a message of `count` elements from rank `from`, or RR_ANY, with `tag`, or RR_ANY.
/// `message` is NULL, or gets the message. A message of another type or length is RR_MISMATCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_recv(
    comm: *const rr_comm,
    buffer: *mut c_void,
    count: usize,
    datatype: c_int,
    from: c_int,
    tag: i64,
    message: *mut rr_message,
) -> rr_status {
    let recv = |messages: &Messenger| {
        let (mut buffer, dtype) = Lent::new(buffer, count, datatype)?;
        let (source, tag) = (source(from)?, self::tag(tag)?);
        let status = messages.recv_bytes(buffer.as_mut(), dtype, source, tag)?;
        match message.is_null() {
            true => Ok(()),
            // SAFETY: the caller passes a place for a message.
            false => unsafe { give(message, "message", rr_message::of(&status)) },
        }
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_recv", comm, recv) }
}

unsafe extern "C" {
    fn calloc(count: usize, bytes: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

/// Memory of the C library for a message, which a receive that fails frees.
struct Memory(Lent);

impl Memory {
    fn new(len: usize) -> Option<Self> {
        // SAFETY: it takes numbers alone. An empty message has memory, too.
        let start = unsafe { calloc(len.max(1), 1) };
        (!start.is_null()).then_some(Self(Lent { start: start.cast(), len }))
    }

    /// The memory is the caller's from now on.
    fn into_raw(mut self) -> *mut c_void {
        std::mem::replace(&mut self.0.start, null_mut()).cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this memory is from calloc, or null, and nobody else has it.
        unsafe { free(self.0.start.cast()) };
    }
}

/// Receives a message of any length, as rr_recv does one of a known length. `*buffer` becomes
/// memory for it, which you free with free(), or NULL after a failure; `message` has its length. No
/// other thread takes the message in between, as it may between rr_probe and rr_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_recv_any(
    comm: *const rr_comm,
    buffer: *mut *mut c_void,
    datatype: c_int,
    from: c_int,
    tag: i64,
    message: *mut rr_message,
) -> rr_status {
    let recv = |messages: &Messenger| {
        // SAFETY: the caller passes a place for an address.
        unsafe { give(buffer, "buffer", null_mut()) }?;
        let from = (source(from)?, self::tag(tag)?);
        if message.is_null() {
            return Err(Failure::argument("message is NULL"));
        }
        let received =
            messages.recv_new(self::datatype(datatype)?, from, Memory::new, |it| it.0.as_mut());
        let (memory, status) = received?;
        // SAFETY: the caller passes a place for a message, and one for an address.
        unsafe { give(message, "message", rr_message::of(&status)) }?;
        // SAFETY: as above.
        unsafe { give(buffer, "buffer", memory.into_raw()) }
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_recv_any", comm, recv) }
}

/// Starts rr_send and returns at once; the buffer is left alone until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_isend(
    comm: *const rr_comm,
    buffer: *const c_void,
    count: usize,
    datatype: c_int,
    to: c_int,
    tag: u32,
    request: *mut *mut rr_request,
) -> rr_status {
    let send = |messages: &Messenger| {
        // SAFETY: the caller passes a place for a request.
        unsafe { give(request, "request", null_mut()) }?;
        let (buffer, dtype) = Lent::new(buffer, count, datatype)?;
        let sent = messages.isend_bytes(buffer, dtype, rank("to", to)?, tag)?;
        // SAFETY: as above.
        unsafe { give(request, "request", Request::Message(sent).into_raw()) }
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_isend", comm, send) }
}

/// Starts rr_recv and returns at once; the buffer is left alone until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_irecv(
    comm: *const rr_comm,
    buffer: *mut c_void,
    count: usize,
    datatype: c_int,
    from: c_int,
    tag: i64,
    request: *mut *mut rr_request,
) -> rr_status {
    let recv = |messages: &Messenger| {
        // SAFETY: the caller passes a place for a request.
        unsafe { give(request, "request", null_mut()) }?;
        let (buffer, dtype) = Lent::new(buffer, count, datatype)?;
        let awaited = messages.irecv_bytes(buffer, dtype, source(from)?, self::tag(tag)?)?;
        // SAFETY: as above.
        unsafe { give(request, "request", Request::Message(awaited).into_raw()) }
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_irecv", comm, recv) }
}

/// Waits for a message that no receive has met, and says what it is: how long, above all. Another
/// thread may receive that message first: rr_recv_any looks and receives at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_probe(
    comm: *const rr_comm,
    from: c_int,
    tag: i64,
    message: *mut rr_message,
) -> rr_status {
    let probe = |messages: &Messenger| {
        let status = messages.probe(source(from)?, self::tag(tag)?)?;
        // SAFETY: the caller passes a place for a message.
        unsafe { give(message, "message", rr_message::of(&status)) }
    };
    // SAFETY: the caller passes a communicator.
    unsafe { with("rr_probe", comm, probe) }
}
