//! Recovery after failures: survivors agree on the next membership by a quorum (`membership`, a
//! pure state machine of Paxos kind, and `driver`, which feeds it), then go on in a new
//! communicator without the dead (`shrink`) or with joiners (`grow`). `uniform` makes calls end
//! alike everywhere.

#[cfg(feature = "host")]
pub(crate) mod driver;
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
pub(crate) mod uniform;

#[cfg(feature = "host")]
pub use origin::Recovery;
