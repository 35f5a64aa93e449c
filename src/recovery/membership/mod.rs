//! Who belongs to a communicator, and what survivors agree on: one rank's part as a state machine.
//! May touch: core, collections; no clock, no link. Laws: `sim` holds them against faults.
//!
//! After MPI's user-level failure mitigation: a *revoked* epoch fails all calls, *agree* gives one
//! result even if ranks die meanwhile, a *change* drops the dead and admits joiners. Agreements
//! are Paxos's (Lamport 1998), led by the lowest rank that is not believed dead; as in
//! Viewstamped Replication (Liskov 2012) the next epoch is what the last one decided. A leader asks
//! all it believes alive, and decides when all of them have accepted.

mod ballot;
mod calls;
mod choose;
mod evidence;
mod install;
mod member;
mod message;
mod quorum;
mod ranks;
mod receive;
#[cfg(any(test, feature = "internals"))]
pub mod sim;
mod slot;
mod wire;

pub use member::{Input, Member, Outputs, Settings, Time, Verdict};
pub use message::{
    Ballot, Body, Call, Cause, Evidence, Kind, Message, Recovery, Report, Testament, Value, Vote,
};
pub use quorum::quorum;
pub use ranks::Ranks;
pub use wire::{MESSAGE_BYTES, decode, encode};
