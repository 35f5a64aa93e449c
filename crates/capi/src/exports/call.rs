//! Any collective as a value: what it is, and how a program's one is read.
//! Unsafe: a caller's pointer is read.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of C")]

use core::ffi::{c_int, c_void};

use ringreduce::Collective;

use crate::failure::{Failure, Outcome};

/// Which collective a call is: those of the functions with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rr_verb {
    /// rr_all_reduce
    RR_ALL_REDUCE = 0,
    /// rr_reduce
    RR_REDUCE = 1,
    /// rr_reduce_scatter
    RR_REDUCE_SCATTER = 2,
    /// rr_broadcast
    RR_BROADCAST = 3,
    /// rr_all_gather
    RR_ALL_GATHER = 4,
    /// rr_all_to_all
    RR_ALL_TO_ALL = 5,
    /// rr_gather
    RR_GATHER = 6,
    /// rr_scatter
    RR_SCATTER = 7,
    /// rr_scan
    RR_SCAN = 8,
    /// rr_exscan
    RR_EXSCAN = 9,
}

/// The collectives in the order of `rr_verb`. A call names its root.
pub(super) const COLLECTIVES: [Collective; 10] = [
    Collective::AllReduce,
    Collective::Reduce { root: 0 },
    Collective::ReduceScatter,
    Collective::Broadcast { root: 0 },
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Gather { root: 0 },
    Collective::Scatter { root: 0 },
    Collective::Scan,
    Collective::Exscan,
];

/// Bytes of a call of this version.
const SIZE: usize = size_of::<rr_call>();
/// The most bytes that a call of any version will have.
const MOST_BYTES: usize = 4096;

/// A collective as a value. Members that a collective has no use for are not looked at, but have to
/// be zero: later versions may add members, and give them a use.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_call {
    /// sizeof(rr_call), by which the library knows the members that the program knows.
    pub size: usize,
    /// The collective, of rr_verb.
    pub verb: c_int,
    /// The data that this rank sends.
    pub sendbuff: *const c_void,
    /// The buffer in which this rank receives.
    pub recvbuff: *mut c_void,
    /// Elements, as the collective's function counts them.
    pub count: usize,
    /// Their type, of rr_datatype.
    pub datatype: c_int,
    /// The reduction, of rr_op.
    pub op: c_int,
    /// The root.
    pub root: c_int,
}

impl rr_call {
    /// A collective without a reduction and a root.
    #[inline]
    pub(super) fn new(
        verb: rr_verb,
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
    ) -> Self {
        let verb = verb as c_int;
        Self { size: SIZE, verb, sendbuff, recvbuff, count, datatype, op: 0, root: 0 }
    }
}

/// A caller's call. One of a newer program is longer, with zero where this library knows no member.
///
/// # Safety
/// `call` is null, or points to as many bytes as its first member says.
#[inline]
pub(super) unsafe fn given<'a>(call: *const rr_call) -> Outcome<&'a rr_call> {
    if call.is_null() {
        return Err(Failure::argument("call is NULL"));
    }
    // SAFETY: the caller passes a call, which begins with its size.
    let size = unsafe { call.cast::<usize>().read() };
    if !(SIZE..=MOST_BYTES).contains(&size) {
        let wrong = format_args!("the call's size is {size}, expected sizeof(rr_call)");
        return Err(Failure::argument(wrong));
    }
    let more = call.cast::<u8>().wrapping_add(SIZE);
    // SAFETY: the call has so many bytes.
    let more = unsafe { std::slice::from_raw_parts(more, size - SIZE) };
    if more.iter().any(|&byte| byte != 0) {
        let wrong = "the call is of a newer ringreduce.h and uses members that this library does \
                     not know: install the library of that header";
        return Err(Failure::argument(wrong));
    }
    // SAFETY: it is a whole call.
    Ok(unsafe { &*call })
}
