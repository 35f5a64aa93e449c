//! `libringreduce`: the library's C interface, whose header `include/ringreduce.h` cbindgen makes
//! of these sources. `exports` has the functions, `types` what they are given and return, `handle`
//! what a communicator's pointer points to, and `failure` how a call fails. The crate `foreign`
//! carries the calls out.
#![deny(unsafe_code)]

pub mod exports;
pub mod failure;
pub mod handle;
pub mod types;
