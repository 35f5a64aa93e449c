//! Plans: which schedule a call walks, how its buffer is cut, and the fingerprint by which ranks
//! notice that they make different calls. Pure arithmetic, without input or output.
//!
//! A schedule depends only on the ring, the collective and the algorithm, and is made once. The
//! partition is cached for a few calls: training repeats a few, and its cost would show in small
//! ones.

mod choose;
#[cfg(feature = "cuda")]
mod device;
mod explain;
pub(crate) mod fingerprint;
mod links;
mod planner;
mod price;
#[cfg(feature = "cuda")]
mod reach;
mod request;
mod slots;
mod tuning;
mod uneven;
mod user_schedule;

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
    choose::PeerReads,
    planner::{ExecutedBy, Parts, Plan, Planner, Rules},
    request::Blocks,
    slots::{Distance, Slots, least_chunk, message_slots},
    tuning::{Factors, Tuning},
};
#[cfg(not(feature = "internals"))]
pub(crate) use self::{
    choose::PeerReads,
    planner::{ExecutedBy, Parts, Plan, Planner, Rules},
    request::Blocks,
    slots::{Distance, Slots, least_chunk, message_slots},
    tuning::{Factors, Tuning},
};
pub use price::{Source, Speeds};
#[cfg(feature = "cuda")]
pub(crate) use reach::{DeviceReach, Topology};
pub use request::Request;
pub(crate) use request::{digest, mix};
