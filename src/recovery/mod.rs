//! Recovery after failures: survivors agree on the next membership by a quorum (`membership`, a
//! pure state machine of Paxos kind, which the engine's driver feeds), then go on in a new
//! communicator without the dead (`shrink`) or with joiners (`grow`).

#[cfg(feature = "host")]
pub(crate) mod announcements;
#[cfg(feature = "host")]
mod grow;
pub mod membership;
#[cfg(feature = "host")]
pub(crate) mod origin;
#[cfg(feature = "host")]
pub(crate) mod reconnect;
#[cfg(feature = "host")]
mod shrink;

#[cfg(feature = "host")]
pub use origin::Recovery;
