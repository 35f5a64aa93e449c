//! The entry points of the driver, by subject. Law: thin; the other modules do the work.

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

/// The names of all entry points.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let all = [
        context::NAMES,
        copy::NAMES,
        device::NAMES,
        event::NAMES,
        function::NAMES,
        graph::NAMES,
        memory::NAMES,
        pointer::NAMES,
        pool::NAMES,
        stream::NAMES,
    ];
    all.into_iter().flatten().copied()
}
