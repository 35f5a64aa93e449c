//! Executors: the loops that walk the steps of a plan. `host` walks them over links, `messages`
//! sends messages between pairs of ranks, and `direct` makes a call on memory that the ranks of one
//! host share.
//! Law: a rank blocks only in `wait` and in `direct::phase`.

pub(crate) mod direct;
mod host;
mod messages;
mod wait;

pub use crate::sync::Backoff;
pub use host::{Call, run};
pub use messages::{LaneProgress, exchange};
pub(crate) use wait::warn_of_silence;
pub use wait::{Halt, Stop, Wait};
