//! Executors: they walk the steps that a schedule lists.
//! May touch: schedule, partition, memory, shared, the link and kernel traits. Blocks only in
//! `wait` and, where ranks share memory, in `direct`.

pub(crate) mod direct;
mod host;
mod messages;
mod wait;

pub use crate::sync::Patience;
pub use host::{Call, run};
pub use messages::{Lanes, exchange};
pub(crate) use wait::remind;
pub use wait::{Halt, Stop, Wait};
