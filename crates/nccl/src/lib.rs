//! `libnccl.so.2`: NCCL's C interface (`nccl.h` of version 2.32) on ringreduce. Every function is
//! there under its name and, for profilers, under the name with a `p` before it. A function that
//! can't work returns `ncclInvalidUsage`, and `ncclGetLastError` says why.
//!
//! `exports` has the functions; `operation` checks what they are given, `group` keeps it until the
//! group ends, and `calls` makes it a call of the library. `handle` is what an `ncclComm_t` points
//! to, `start` makes communicators, `device` knows device memory.
#![deny(unsafe_code)]

pub mod abi;
mod calls;
mod device;
mod environment;
pub mod exports;
mod failure;
mod group;
pub mod handle;
mod operation;
mod start;
