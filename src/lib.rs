//! Collectives over a logical ring of ranks: every rank brings a buffer, every rank leaves with the
//! sum. Start with [`Communicator`]; `ringrun -n 4 PROGRAM` gives a program four ranks.
//!
//! A collective is a pure list of steps ([`schedule`]), a simulator proves it ([`sim`]), and an
//! executor walks it over links that lend memory to kernels. One call goes from the communicator to
//! its [`plan`], to the executor and, slice by slice, from the neighbour's slot through the kernel
//! into the next neighbour's. ARCHITECTURE.md says which room may touch what; without the feature
//! `host` only the pure rooms are built.
#![deny(unsafe_code)]

// What is hidden from the documentation is no promise: it is public for the benches, tests and
// tools of this tree alone, and changes with them.

#[cfg(feature = "host")]
mod comm;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "cuda")]
mod device;
pub mod element;
#[cfg(feature = "host")]
pub mod error;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod exec;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod flight;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod kernel;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod link;
#[doc(hidden)]
pub mod membership;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod partition;
pub mod plan;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod rendezvous;
pub mod schedule;
#[cfg(feature = "host")]
mod shared;
pub mod sim;
#[cfg(feature = "host")]
mod sync;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use comm::fuzz;
#[cfg(feature = "host")]
pub use comm::{
    AbortHandle, Builder, CallOptions, Communicator, FoldOrder, Group, Pending, Queue, Recovery,
    With, wire_error,
};
#[cfg(feature = "cuda")]
pub use comm::{DeviceMemory, DevicePath, DeviceRef, DeviceRegistration, OnStream, device_count};
#[cfg(feature = "host")]
pub use config::Transport;
pub use element::{
    Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64, ReduceOp,
    Reduction, UnknownName, bf16, f16,
};
#[cfg(feature = "host")]
pub use error::{Error, Limit, Peer, Place, Result, Stall};
#[cfg(feature = "host")]
pub use flight::MetricsHandle;
#[cfg(feature = "host")]
pub use kernel::CFunction;
pub use schedule::{Algorithm, Collective};
#[cfg(feature = "host")]
pub use shared::Registered;
