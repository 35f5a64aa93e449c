//! Executors: the loops that walk the steps of a plan. `host` walks them over links, `direct` makes
//! a call on memory that the ranks of one host share, `staged` one that copies through the stages
//! of the host's region, `two_level` one over the stages of several hosts, and `single_copy` one
//! that reads peers' memory.
//! Law: a rank blocks only in `wait` and in `region_wait`.

pub(crate) mod direct;
mod host;
mod region_wait;
pub(crate) mod single_copy;
pub(crate) mod staged;
pub(crate) mod two_level;
mod wait;

pub use crate::sync::Backoff;
pub use host::{LinkCall, run};
pub(crate) use wait::warn_of_silence;
pub use wait::{Halt, Stop, Wait};
