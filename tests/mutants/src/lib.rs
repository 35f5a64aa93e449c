//! The membership's state machine and its laws, without the rest of the library: `.ci/mutants`
//! breaks one rule of the machine after the other, and some law must fail.
#![cfg(test)]
#![allow(unused, reason = "the files have functions that these tests do not call, as do mutants")]

extern crate self as harness;
extern crate self as ringreduce;

/// The library's modules.
#[path = "../../../src/codec.rs"]
pub mod codec;

#[path = "../../../src/recovery"]
pub mod recovery {
    pub mod membership;
}

#[path = "../../../src/sim"]
pub mod sim {
    mod random;

    pub use random::Random;
}

/// The laws.
#[path = "../../laws/membership/mod.rs"]
mod membership;

/// The tests' shared code, as far as the laws use it: the share that `cargo test` makes.
pub mod share {
    pub const fn seed() -> u64 {
        0
    }

    pub fn count<T>(few: T, _all: T) -> T {
        few
    }
}
