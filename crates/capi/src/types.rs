//! The types of the header: what functions are given and return.
#![allow(non_camel_case_types, reason = "the names of C")]

use core::ffi::{c_char, c_int};

use ringreduce::{DataType, Error, FoldOrder, ReduceOp};

use crate::failure::{Failure, Outcome};

/// How a function has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rr_status {
    /// It did what it says.
    RR_OK = 0,
    /// An argument is wrong. Nothing was sent.
    RR_ARGUMENT = 1,
    /// A setting or an environment variable is wrong.
    RR_CONFIG = 2,
    /// The ranks could not meet.
    RR_START = 3,
    /// A rank did not come in time.
    RR_TIMEOUT = 4,
    /// A rank has ended.
    RR_PEER_LOST = 5,
    /// Ranks make different calls, or with different lengths.
    RR_MISMATCH = 6,
    /// A rank has ended all calls.
    RR_ABORTED = 7,
    /// An earlier call has failed, the communicator is closed, or this process is a fork.
    RR_BROKEN = 8,
    /// The operating system refuses something.
    RR_SYSTEM = 9,
    /// A device or its driver refuses something.
    RR_DEVICE = 10,
    /// Another failure; the message says which.
    RR_OTHER = 11,
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rr_datatype {
    /// int8_t
    RR_INT8 = 0,
    /// uint8_t
    RR_UINT8 = 1,
    /// int16_t
    RR_INT16 = 2,
    /// uint16_t
    RR_UINT16 = 3,
    /// int32_t
    RR_INT32 = 4,
    /// uint32_t
    RR_UINT32 = 5,
    /// int64_t
    RR_INT64 = 6,
    /// uint64_t
    RR_UINT64 = 7,
    /// IEEE 754 binary16
    RR_FLOAT16 = 8,
    /// bfloat16
    RR_BFLOAT16 = 9,
    /// float
    RR_FLOAT = 10,
    /// double
    RR_DOUBLE = 11,
    /// OCP 8-bit float, 4 bits of exponent
    RR_FLOAT8_E4M3 = 12,
    /// OCP 8-bit float, 5 bits of exponent
    RR_FLOAT8_E5M2 = 13,
    /// float complex
    RR_COMPLEX64 = 14,
    /// double complex
    RR_COMPLEX128 = 15,
    /// struct { float value; uint32_t index; }
    RR_FLOAT_LOC = 16,
    /// struct { double value; uint64_t index; }
    RR_DOUBLE_LOC = 17,
    /// struct { int32_t value; uint32_t index; }
    RR_INT32_LOC = 18,
    /// struct { int64_t value; uint64_t index; }
    RR_INT64_LOC = 19,
}

/// How elements are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rr_op {
    /// a + b; integers wrap.
    RR_SUM = 0,
    /// a * b; integers wrap.
    RR_PROD = 1,
    /// The smaller one; NaN if either is NaN.
    RR_MIN = 2,
    /// The larger one; NaN if either is NaN.
    RR_MAX = 3,
    /// The sum divided by the number of ranks.
    RR_AVG = 4,
    /// Bitwise AND of integers.
    RR_BAND = 5,
    /// Bitwise OR of integers.
    RR_BOR = 6,
    /// Bitwise exclusive OR of integers.
    RR_BXOR = 7,
    /// 1 if both are non-zero, else 0.
    RR_LAND = 8,
    /// 1 if either is non-zero, else 0.
    RR_LOR = 9,
    /// 1 if exactly one is non-zero, else 0.
    RR_LXOR = 10,
    /// The smaller value with its index.
    RR_MINLOC = 11,
    /// The larger value with its index.
    RR_MAXLOC = 12,
}

/// The order in which a user's function combines the ranks' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rr_order {
    /// Any order, the same on every rank; for functions that are commutative.
    RR_ANY_ORDER = 0,
    /// ((rank 0, rank 1), rank 2), ...; for functions that are associative only.
    RR_RANK_ORDER = 1,
}

/// Any rank or tag of a message that is received.
pub const RR_ANY: c_int = -1;

/// Bytes of an rr_unique_id.
pub const RR_UNIQUE_ID_BYTES: usize = 128;

/// Brings ranks together that no launcher starts: rank 0's, in a copy at every rank.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_unique_id {
    /// An address and a secret.
    pub bytes: [u8; RR_UNIQUE_ID_BYTES],
}

/// A setting of a communicator, which goes before the environment's. The names are those of the
/// options in docs/launching.md, such as `timeout` in seconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_setting {
    /// Its name.
    pub name: *const c_char,
    /// Its value.
    pub value: *const c_char,
}

/// A message that was received or sent.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_message {
    /// The rank at the other end.
    pub peer: c_int,
    /// Its tag.
    pub tag: u32,
    /// Its type, of rr_datatype.
    pub datatype: c_int,
    /// Its elements.
    pub count: usize,
}

/// The facts of a failure. Numbers that a failure has not are -1, and texts NULL.
#[derive(Debug)]
#[repr(C)]
pub struct rr_failure {
    /// The status that the function has returned.
    pub status: rr_status,
    /// A sentence: the failure, the rank that it concerns, and the remedy.
    pub message: *const c_char,
    /// The rank that reports.
    pub rank: c_int,
    /// The name of its host.
    pub host: *const c_char,
    /// The step of the call, from 0.
    pub step: i64,
    /// The number of the call on its communicator, from 1.
    pub sequence: i64,
    /// The rank at fault.
    pub peer: c_int,
    /// The name of its host.
    pub peer_host: *const c_char,
}

impl rr_status {
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Argument { .. } | Error::UnknownName(_) => Self::RR_ARGUMENT,
            Error::Config { .. } | Error::Launchers { .. } => Self::RR_CONFIG,
            Error::MissingRanks { .. }
            | Error::DuplicateRank { .. }
            | Error::Store { .. }
            | Error::Handshake { .. } => Self::RR_START,
            Error::Timeout { .. } | Error::NoMessage { .. } | Error::Stalled { .. } => {
                Self::RR_TIMEOUT
            }
            Error::PeerLost { .. } => Self::RR_PEER_LOST,
            Error::Mismatch { .. } => Self::RR_MISMATCH,
            Error::Aborted { .. } => Self::RR_ABORTED,
            Error::Broken { .. } => Self::RR_BROKEN,
            Error::Io { .. } | Error::Exhausted { .. } => Self::RR_SYSTEM,
            Error::Device { .. } => Self::RR_DEVICE,
            _ => Self::RR_OTHER,
        }
    }
}

/// The item of a table that a caller names by its number.
fn numbered<T: Copy>(all: &[T], argument: &'static str, kind: &str, number: c_int) -> Outcome<T> {
    let item = usize::try_from(number).ok().and_then(|at| all.get(at)).copied();
    item.ok_or_else(|| {
        Failure::argument(format_args!("{argument} is {number}, expected a number of {kind}"))
    })
}

pub(crate) fn datatype(number: c_int) -> Outcome<DataType> {
    numbered(&DataType::ALL, "datatype", "rr_datatype", number)
}

pub(crate) fn op(number: c_int) -> Outcome<ReduceOp> {
    numbered(&ReduceOp::ALL, "op", "rr_op", number)
}

pub(crate) fn order(number: c_int) -> Outcome<FoldOrder> {
    numbered(&[FoldOrder::Any, FoldOrder::Ranks], "order", "rr_order", number)
}
