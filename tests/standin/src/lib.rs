//! A CUDA driver on the CPU, for tests: `libcuda.so` whose kernels are interpreted PTX. This
//! package's README.md lists its features, its settings and the features that it lacks. May touch
//! the operating system. Law: an unknown instruction, setting or flag is an error that names it,
//! and misuse is logged.

#![deny(unsafe_code)]

mod api;
mod c;
mod code;
mod context;
mod counts;
mod delayed_writes;
mod failing_calls;
pub mod harness;
mod log;
mod memory;
mod module;
mod ptx;
mod registry;
mod settings;
mod stream;
