//! All orders in which the two ends of a FIFO in shared memory can do what they do, by loom: the
//! library's own files, with loom's words instead of the processor's and a futex of loom's parts.
//! Law: no order has both ends at one slot, a slot that is not as it was sent, or an end that
//! sleeps for ever. A futex has no time limit here, so a lost wake-up is a deadlock.
#![allow(dead_code, reason = "not everything in those files is called")]
#![cfg(test)]

/// What the files expect of the library.
mod sync {
    #[path = "../../../../src/sync/sleeper.rs"]
    mod sleeper;
    mod system;

    pub(crate) use sleeper::Sleeper;

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

        /// What is left to the processor's order is the weakest: this is nothing at all.
        pub(crate) fn compiler_fence(_: Ordering) {}
    }
}

/// The same.
mod transport {
    /// As the library has it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Frame {
        pub(crate) len: u32,
        pub(crate) sequence: u64,
        pub(crate) fingerprint: u64,
    }
}

mod fifo;
