//! All interleavings of the two ends of a FIFO in shared memory, and of a rank and those that sleep
//! until it publishes, by loom: the library's own files, with loom's atomics and a futex built from
//! loom's locks. Law: in no interleaving are both ends at one slot, does a slot differ from the one
//! sent, or does an end sleep for ever. A futex has no time limit here, so a lost wake-up is a
//! deadlock.
#![allow(dead_code, reason = "the files have functions that loom does not call")]
#![cfg(test)]

/// The library's module `sync`.
mod sync {
    #[path = "../../../../src/sync/sleeper.rs"]
    mod sleeper;
    mod system;
    #[path = "../../../../src/sync/waiters.rs"]
    mod waiters;

    pub(crate) use sleeper::Sleeper;
    pub(crate) use waiters::{FencedBy, Waiters};

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

        /// Loom has the weakest order of the processor, so the compiler's fence does nothing.
        pub(crate) fn compiler_fence(_: Ordering) {}
    }
}

/// The library's module `transport`.
mod transport {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Frame {
        pub(crate) len: u32,
        pub(crate) sequence: u64,
        pub(crate) fingerprint: u64,
    }
}

mod fifo;
mod waiters;
