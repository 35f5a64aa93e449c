//! ringreduce: collectives over a logical ring of ranks.
#![deny(unsafe_code)]

#[cfg(feature = "host")]
mod comm;
#[cfg(feature = "host")]
pub mod config;
pub mod element;
#[cfg(feature = "host")]
pub mod error;
#[cfg(feature = "host")]
pub mod exec;
#[cfg(feature = "host")]
pub mod kernel;
#[cfg(feature = "host")]
pub mod link;
#[cfg(feature = "host")]
pub mod memory;
pub mod partition;
pub mod plan;
#[cfg(feature = "host")]
pub mod rendezvous;
pub mod schedule;
pub mod sim;
#[cfg(feature = "host")]
mod sync;

#[cfg(feature = "host")]
pub use comm::{AbortHandle, Builder, Communicator};
#[cfg(feature = "host")]
pub use config::Transport;
pub use element::{DataType, Element, ReduceOp, bf16, f16};
#[cfg(feature = "host")]
pub use error::{Error, Result};
