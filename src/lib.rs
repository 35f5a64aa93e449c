//! Collectives over a logical ring of ranks: every rank brings a buffer, every rank leaves with the
//! sum. What NCCL does for GPUs and MPI or Gloo for CPUs, between processes (over shared memory and
//! TCP) or threads.
//!
//! ```
//! use ringreduce::{Communicator, ReduceOp};
//!
//! let mut comm = Communicator::from_env()?;
//! let mut numbers = vec![comm.rank() as f32, 1.0, 10.0];
//! comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
//! println!("rank {} of {}: {numbers:?}", comm.rank(), comm.size());
//! # Ok::<(), ringreduce::Error>(())
//! ```
//!
//! Started alone, this program is a world of one rank. `ringrun -n 4 PROGRAM` starts four ranks,
//! and torchrun, Open MPI, MPICH, Intel MPI and Slurm start ranks as well.
//!
//! # Where to go
//! - [`Communicator`] has all calls, grouped by what they are for; [`Builder`] makes one by hand,
//!   and [`CallOptions`] change single calls.
//! - [`Error`] says what went wrong, at which rank, host and step, and what to do.
//! - [`Element`] and [`DataType`] are what buffers hold; [`ReduceOp`] and [`Reduction`] combine it.
//! - [`Algorithm`] is how a call is made; [`Communicator::explain`] says which one and why.
//! - [`schedule`] describes a collective as a list of steps, [`sim`] proves such a list, and
//!   [`plan`] chooses one. A program may bring its own: [`Communicator::prove`].
//!
//! # Features
//! - `host` (default): the communicator and all else that needs an operating system, which is
//!   Linux. Without it there are [`element`], [`schedule`], [`sim`] and [`plan`], also for wasm32.
//! - `cuda` (default): buffers of CUDA devices. It needs nothing to build; the driver is loaded by
//!   the first call on a device.
//! - `aws-lc`: encryption by AWS-LC, several times as fast where the CPU has AVX-512. It needs a C
//!   compiler.
#![deny(unsafe_code)]
#![cfg_attr(
    not(all(feature = "host", feature = "internals")),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "tests and tools of this tree use the rest"
    )
)]

#[cfg(all(feature = "host", not(target_os = "linux")))]
compile_error!(
    "ringreduce's feature `host` needs Linux. For the simulator and schedules alone, which build \
     anywhere, set `default-features = false`."
);

// What the feature `internals` makes public is no promise: it is for the benches, tests and tools
// of this tree alone, and changes with them.

#[cfg(feature = "host")]
mod comm;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod config;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "cuda")]
mod device;
pub mod element;
#[cfg(feature = "host")]
pub mod error;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod exec;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod exec;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod flight;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod flight;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod kernel;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod kernel;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod link;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod link;
#[cfg(not(feature = "internals"))]
mod membership;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod membership;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod memory;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod memory;
#[cfg(not(feature = "internals"))]
mod partition;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod partition;
pub mod plan;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod rendezvous;
#[cfg(all(feature = "host", feature = "internals"))]
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
/// The crate whose contexts and streams calls on devices take.
#[cfg(feature = "cuda")]
pub use cudarc;
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
