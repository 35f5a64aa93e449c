//! The collectives: a function for each that waits, and any of them as a value, which is made,
//! started or put on a stream.
//! Unsafe: functions that C calls.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of C")]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use foreign::{Operation, RawCall, call_all};

use super::call::{COLLECTIVES, given, rr_call, rr_verb};
use super::requests::{Request, rr_request};
use crate::failure::{Failure, Outcome, entry, give};
use crate::handle::rr_comm;
use crate::types::{datatype, op, rr_status};

/// Checks a call, and passes it on.
///
/// # Safety
/// `comm` is what [`rr_comm::of`] asks for.
#[inline]
unsafe fn check_then(
    comm: *mut rr_comm,
    call: &rr_call,
    stream: *mut c_void,
    submit: impl FnOnce(&'static rr_comm, &Operation) -> Outcome,
) -> Outcome {
    // SAFETY: as above.
    let comm = unsafe { rr_comm::of(comm) }?;
    let collective = usize::try_from(call.verb).ok().and_then(|at| COLLECTIVES.get(at)).copied();
    let collective = collective.ok_or_else(|| {
        Failure::argument(format_args!("verb is {}, expected a number of rr_verb", call.verb))
    })?;
    let (dtype, op) = (datatype(call.datatype)?, op(call.op)?.into());
    let &rr_call { sendbuff, recvbuff, count, root: peer, .. } = call;
    let verb = collective.into();
    let raw = RawCall { verb, sendbuff, recvbuff, count, dtype, op, peer, stream };
    raw.check_then((comm.rank, comm.size), |operation| submit(comm, operation))
}

/// Makes a call, and waits for it.
///
/// # Safety
/// As [`check_then`].
#[inline]
unsafe fn run(function: &str, comm: *mut rr_comm, call: &rr_call) -> rr_status {
    entry(function, || {
        let submit = |comm: &rr_comm, operation: &Operation| {
            comm.with(|state| Ok(call_all(&mut state.comm, std::slice::from_ref(operation))?))
        };
        // SAFETY: as above.
        unsafe { check_then(comm, call, null_mut(), submit) }
    })
}

/// Makes a call, and waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_run(comm: *mut rr_comm, call: *const rr_call) -> rr_status {
    // SAFETY: the caller passes null or a call.
    match unsafe { given(call) } {
        // SAFETY: the caller passes a communicator.
        Ok(call) => unsafe { run("rr_run", comm, call) },
        Err(failure) => entry("rr_run", || Err(failure)),
    }
}

/// Starts a call and returns at once; its buffers are left alone until rr_wait or rr_test says that
/// it has ended. Calls that were started are made in their order, also if nobody waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_start(
    comm: *mut rr_comm,
    call: *const rr_call,
    request: *mut *mut rr_request,
) -> rr_status {
    entry("rr_start", || {
        // SAFETY: the caller passes a place for a request.
        unsafe { give(request, "request", null_mut()) }?;
        // SAFETY: the caller passes null or a call.
        let call = unsafe { given(call) }?;
        let submit = |comm: &rr_comm, operation: &Operation| {
            let operation = [*operation];
            comm.with(|state| {
                let mut queue = state.comm.nonblocking();
                let pending = queue.start((), move |comm, ()| call_all(comm, &operation));
                // SAFETY: as above.
                unsafe { give(request, "request", Request::Call(pending).into_raw()) }
            })
        };
        // SAFETY: the caller passes a communicator.
        unsafe { check_then(comm, call, null_mut(), submit) }
    })
}

/// Puts a call on a CUDA stream (a CUstream or cudaStream_t), after what is there, and returns at
/// once. Its buffers are memory of the device of rr_use_device. rr_check tells of a failure after
/// the stream was synchronised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_enqueue(
    comm: *mut rr_comm,
    call: *const rr_call,
    stream: *mut c_void,
) -> rr_status {
    entry("rr_enqueue", || {
        // SAFETY: the caller passes null or a call.
        let call = unsafe { given(call) }?;
        let submit = |comm: &rr_comm, operation: &Operation| {
            comm.with(|state| {
                if !state.has_device {
                    return Err(Failure::argument("comm has no device; call rr_use_device first"));
                }
                let operation = std::slice::from_ref(operation);
                match foreign::device::put_all(&mut state.comm, operation)? {
                    true => Ok(()),
                    false => Err(Failure::argument("the buffers are not memory of a device")),
                }
            })
        };
        // SAFETY: the caller passes a communicator.
        unsafe { check_then(comm, call, stream, submit) }
    })
}

/// Returns once every rank has called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_barrier(comm: *mut rr_comm) -> rr_status {
    // SAFETY: the caller passes a communicator.
    entry("rr_barrier", || unsafe { rr_comm::of(comm) }?.with(|state| Ok(state.comm.barrier()?)))
}

/// Reduces `count` elements over all ranks; all get the result. In place if the buffers are one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_reduce(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_ALL_REDUCE, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_all_reduce", comm, &rr_call { op, ..call }) }
}

/// Reduces `count` elements over all ranks; `root` gets the result. In place if the buffers are
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_reduce(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    root: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_REDUCE, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_reduce", comm, &rr_call { op, root, ..call }) }
}

/// Reduces size x `count` elements over all ranks; rank r gets part r, of `count` elements. In
/// place if `recvbuff` is part r of `sendbuff`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_reduce_scatter(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_REDUCE_SCATTER, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_reduce_scatter", comm, &rr_call { op, ..call }) }
}

/// Copies `count` elements of the root's `sendbuff` to every rank's `recvbuff`. In place if the
/// buffers are one; other ranks' `sendbuff` is not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_broadcast(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_BROADCAST, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_broadcast", comm, &rr_call { root, ..call }) }
}

/// Gathers `count` elements of each rank, in the order of ranks, at all ranks. In place if
/// `sendbuff` is part r of `recvbuff`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_gather(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_ALL_GATHER, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_all_gather", comm, &call) }
}

/// Sends `count` elements to each rank, and receives as many from each. In place if the buffers are
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_all_to_all(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_ALL_TO_ALL, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_all_to_all", comm, &call) }
}

/// Gathers `count` elements of each rank at the root. In place if the root's `sendbuff` is its part
/// of `recvbuff`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_gather(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_GATHER, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_gather", comm, &rr_call { root, ..call }) }
}

/// Sends `count` elements of the root's `sendbuff` to each rank. In place if the root's `recvbuff`
/// is its part of `sendbuff`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_scatter(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_SCATTER, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_scatter", comm, &rr_call { root, ..call }) }
}

/// Reduces `count` elements; rank r gets the result over ranks 0 to r. In place if the buffers are
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_scan(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_SCAN, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_scan", comm, &rr_call { op, ..call }) }
}

/// Reduces `count` elements; rank r gets the result over the ranks below r, and rank 0 keeps its
/// `recvbuff`. In place if the buffers are one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_exscan(
    comm: *mut rr_comm,
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
) -> rr_status {
    let call = rr_call::new(rr_verb::RR_EXSCAN, sendbuff, recvbuff, count, datatype);
    // SAFETY: the caller passes a communicator.
    unsafe { run("rr_exscan", comm, &rr_call { op, ..call }) }
}
