//! A CUDA driver on the CPU, for tests: `libcuda.so` whose kernels are interpreted PTX. What it
//! does, what it leaves out and how to ask it for trouble is in this package's README.md. May
//! touch the operating system. Law: what is not known is an error by its name, and misuse is
//! noted in a log.

#![deny(unsafe_code)]

mod api;
mod c;
mod code;
mod context;
pub mod harness;
mod log;
mod memory;
mod module;
mod planted;
mod posted;
mod ptx;
mod registry;
mod settings;
mod stream;
