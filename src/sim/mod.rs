//! The simulator that proves schedules: `check` holds them to the laws, `cost` says how long they
//! take; both are the walk of `network`. May touch: partition, schedule; no clock, no system.
//! Law: whatever the order in which ranks run, the verdict is the same.

mod check;
mod collective;
mod contents;
mod cost;
mod network;
mod prove;
mod random;
mod shape;
mod terms;
mod units;
mod violation;

pub use check::{Report, check};

pub use crate::partition::{Partition, SlotShape};
pub use cost::{Span, Speed, cost, timeline};
pub use prove::{Proven, prove};
#[cfg(not(feature = "internals"))]
pub(crate) use random::Random;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use random::Random;
pub use shape::Shape;
pub use units::Time;
pub use violation::{Blocked, Violation, Wants};
