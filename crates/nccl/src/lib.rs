//! `libnccl.so.2`: NCCL's C interface (`nccl.h` of version 2.32) on ringreduce. Every function is
//! there under its name and, for profilers, under the name with a `p` before it. A function that
//! can't work returns `ncclInvalidUsage`, and `ncclGetLastError` says why.
//!
//! `exports` has the functions; `numbers` knows what their arguments name, and `group` keeps
//! operations until the group ends. `handle` is what an `ncclComm_t` points to, `start` makes
//! communicators, `device` is the device of one. The crate `foreign` carries operations out.
#![deny(unsafe_code)]

pub mod abi;
mod device;
mod environment;
pub mod exports;
mod failure;
mod group;
pub mod handle;
mod numbers;
mod start;
