//! Membership: the members of a communicator, and what survivors agree on, as one rank's part of a
//! consensus protocol. A pure state machine without clock, link or thread; a simulator in
//! `tests/laws/membership` checks its laws against faults. The model is MPI's user-level failure
//! mitigation: a *revoked* epoch fails all calls, *agree* gives one result even if ranks die
//! meanwhile, and a *change* drops the dead; joiners come with a new machine.
//! Each agreement is a Paxos instance (Lamport 1998), led by the lowest rank that is not believed
//! dead. As in Viewstamped Replication (Liskov 2012), each epoch decides the next one. The members
//! tell the leader their calls; it asks all ranks that it believes alive, decides when all of them
//! have accepted, and tells all. The others tell their neighbours, in case it ends meanwhile.

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
mod slot;
mod spread;
mod verdict;
mod wire;

pub use ballot::LEADER_TIMEOUTS;
pub use member::{Input, Member, Outputs, Settings, Time};
pub use message::{
    AgreementKind, Ballot, Body, Call, Cause, Ends, Entry, Evidence, LastVotes, Message, Recovery,
    Report, Value, Vote,
};
pub use quorum::is_quorum;
pub use ranks::Ranks;
pub use verdict::Verdict;
pub use wire::{decode, encode};
