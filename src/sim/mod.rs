//! The simulator of schedules: [`check()`] proves that they obey the laws, [`cost()`] and
//! [`timeline`] say how long they take, [`prove()`] admits a user's schedules. All of them walk the
//! schedules over simulated links.
//! Law: the result does not depend on the order in which ranks run.

mod check;
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
