//! Plans: which schedule a call walks, how its buffer is cut, and the fingerprint by which ranks
//! notice that they make different calls. May touch: element, partition, schedule. Pure.
//!
//! Schedules depend on the ring, the collective and the algorithm alone and are made once. Cutting
//! is arithmetic, remembered for one call: training repeats a few, and small ones show it.

mod choose;
#[cfg(feature = "cuda")]
mod device;
mod explain;
pub(crate) mod fingerprint;
mod links;
mod messages;
mod planner;
mod price;
#[cfg(feature = "cuda")]
mod reach;
mod request;
mod slots;
mod tuning;
mod uneven;
mod user_schedule;
mod way;

pub use choose::Candidate;
#[cfg(feature = "cuda")]
pub(crate) use device::DeviceCall;
#[cfg(feature = "cuda")]
pub use device::{DeviceCandidate, DeviceExplanation, DeviceForm};
pub use explain::{Choice, Explanation};
// See `internals` in lib.rs.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use self::{
    messages::lanes,
    planner::{Plan, Planner, Rules},
    request::{Blocks, Message},
    slots::{Slots, least_chunk, stage},
    tuning::Tuning,
};
#[cfg(not(feature = "internals"))]
pub(crate) use self::{
    messages::lanes,
    planner::{Plan, Planner, Rules},
    request::{Blocks, Message},
    slots::{Slots, least_chunk, stage},
    tuning::Tuning,
};
pub use price::{Source, Speeds};
#[cfg(feature = "cuda")]
pub(crate) use reach::{DeviceSeat, Reach};
pub use request::Request;
pub(crate) use request::{digest, mix};
