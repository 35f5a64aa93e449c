//! Reductions by a function of the caller's, and collectives whose counts differ from rank to rank.
//! Unsafe: functions that C calls, and that call C's.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::{c_char, c_int, c_void};

use ringreduce::CFunction;

use crate::failure::{Failure, Outcome, array, entry, text};
use crate::handle::rr_comm;
use crate::types::{datatype, order, rr_status};

/// Combines `count` elements: `inout[i] = left[i] (op) inout[i]`. The left one comes from the rank
/// that is earlier in the fold. It must not throw or jump out.
#[allow(non_camel_case_types, reason = "the names of C")]
pub type rr_function = Option<
    unsafe extern "C" fn(
        left: *const c_void,
        inout: *mut c_void,
        count: usize,
        context: *mut c_void,
    ),
>;

/// Reduces `count` elements of `size` bytes over all ranks, in place, by a function of the
/// caller's. `name` is the same at all ranks and tells functions apart; `order` is of rr_order;
/// `context` is passed to the function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_reduce_by(
    comm: *mut rr_comm,
    buffer: *mut c_void,
    count: usize,
    size: usize,
    order: c_int,
    name: *const c_char,
    function: rr_function,
    context: *mut c_void,
) -> rr_status {
    entry("rr_all_reduce_by", || {
        // SAFETY: the caller passes a communicator.
        let comm = unsafe { rr_comm::of(comm) }?;
        // SAFETY: the caller passes a text.
        let name = unsafe { text(name, "name") }?;
        let function = function.ok_or_else(|| Failure::argument("function is NULL"))?;
        let order = self::order(order)?;
        // SAFETY: the caller passes so many bytes.
        let buffer = unsafe { written(buffer, count, size, "buffer") }?;
        let by = CFunction { name, function, context, size };
        comm.with(|state| {
            // SAFETY: the caller's function combines elements of this size.
            Ok(unsafe { state.comm.all_reduce_by_function(buffer, order, by) }?)
        })
    })
}

/// Reduces size x `count` elements by a function, as rr_all_reduce_by; rank r gets part r.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_reduce_scatter_by(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    size: usize,
    order: c_int,
    name: *const c_char,
    function: rr_function,
    context: *mut c_void,
) -> rr_status {
    entry("rr_reduce_scatter_by", || {
        // SAFETY: the caller passes a communicator.
        let comm = unsafe { rr_comm::of(comm) }?;
        // SAFETY: the caller passes a text.
        let name = unsafe { text(name, "name") }?;
        let function = function.ok_or_else(|| Failure::argument("function is NULL"))?;
        let order = self::order(order)?;
        let all = count.saturating_mul(comm.size);
        // SAFETY: the caller passes so many bytes.
        let send = unsafe { read(sendbuff, all, size, "sendbuff") }?;
        // SAFETY: as above.
        let recv = unsafe { written(recvbuff, count, size, "recvbuff") }?;
        apart(send, recv)?;
        let by = CFunction { name, function, context, size };
        comm.with(|state| {
            // SAFETY: the caller's function combines elements of this size.
            Ok(unsafe { state.comm.reduce_scatter_by_function(send, recv, order, by) }?)
        })
    })
}

/// Gathers `counts[r]` elements of each rank r, in the order of ranks, at all ranks; `sendbuff` has
/// this rank's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_gather_v(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    counts: *const usize,
    datatype: c_int,
) -> rr_status {
    entry("rr_all_gather_v", || {
        // SAFETY: the caller passes a communicator.
        let comm = unsafe { rr_comm::of(comm) }?;
        let dtype = self::datatype(datatype)?;
        // SAFETY: the caller passes a count for each rank.
        let counts = unsafe { array(counts, comm.size, "counts") }?;
        // SAFETY: the caller passes so many elements.
        let send = unsafe { read(sendbuff, counts[comm.rank], dtype.size(), "sendbuff") }?;
        // SAFETY: as above.
        let recv = unsafe { written(recvbuff, sum(counts), dtype.size(), "recvbuff") }?;
        apart(send, recv)?;
        comm.with(|state| Ok(state.comm.all_gather_v_bytes(send, recv, counts, dtype)?))
    })
}

/// Sends `sendcounts[r]` elements to each rank r, in the order of ranks, and receives
/// `recvcounts[r]` from each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_to_all_v(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    sendcounts: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    datatype: c_int,
) -> rr_status {
    entry("rr_all_to_all_v", || {
        // SAFETY: the caller passes a communicator.
        let comm = unsafe { rr_comm::of(comm) }?;
        let dtype = self::datatype(datatype)?;
        // SAFETY: the caller passes a count for each rank.
        let sendcounts = unsafe { array(sendcounts, comm.size, "sendcounts") }?;
        // SAFETY: as above.
        let recvcounts = unsafe { array(recvcounts, comm.size, "recvcounts") }?;
        // SAFETY: the caller passes so many elements.
        let send = unsafe { read(sendbuff, sum(sendcounts), dtype.size(), "sendbuff") }?;
        // SAFETY: as above.
        let recv = unsafe { written(recvbuff, sum(recvcounts), dtype.size(), "recvbuff") }?;
        apart(send, recv)?;
        comm.with(|state| {
            Ok(state.comm.all_to_all_v_bytes(send, sendcounts, recv, recvcounts, dtype)?)
        })
    })
}

fn sum(counts: &[usize]) -> usize {
    counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count))
}

/// # Safety
/// `start` is null or points to so many elements.
unsafe fn read<'a>(
    start: *const c_void,
    count: usize,
    size: usize,
    argument: &str,
) -> Outcome<&'a [u8]> {
    // SAFETY: as above.
    unsafe { array(start.cast(), count.saturating_mul(size), argument) }
}

/// # Safety
/// `start` is null or points to so many elements, which nobody else uses.
unsafe fn written<'a>(
    start: *mut c_void,
    count: usize,
    size: usize,
    argument: &str,
) -> Outcome<&'a mut [u8]> {
    // SAFETY: as above.
    let checked: &[u8] = unsafe { read(start, count, size, argument) }?;
    match checked.len() {
        0 => Ok(&mut []),
        // SAFETY: as above.
        len => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
    }
}

fn apart(send: &[u8], recv: &[u8]) -> Outcome {
    let (send, recv) = (send.as_ptr_range(), recv.as_ptr_range());
    if send.is_empty() || recv.is_empty() || send.end <= recv.start || recv.end <= send.start {
        return Ok(());
    }
    Err(Failure::argument("recvbuff overlaps sendbuff, expected memory of its own"))
}
