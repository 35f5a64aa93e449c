//! The entry points of the driver, by subject. Law: thin; what they do is in the other modules.

mod context;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod memory;
mod pointer;
mod pool;
mod stream;

pub(crate) use pool::may_touch;
