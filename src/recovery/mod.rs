//! Recovery: survivors of a failure agree on who is left (`membership`, a pure state machine) and
//! go on in a new communicator, without the dead (`shrink`) or with newcomers (`grow`).

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
