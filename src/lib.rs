//! Collectives (all-reduce, broadcast and others) between the ranks of a job, as NCCL has them for
//! GPUs and MPI or Gloo for CPUs. Ranks are processes (over shared memory and TCP) or threads.
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
//! Started alone, this program is a world of one rank. `ringrun -n 4 PROGRAM` starts four ranks;
//! torchrun, Open MPI, MPICH, Intel MPI and Slurm can start ranks as well.
//!
//! # Where to go
//! - [`Communicator`] has all calls. [`Builder`] makes a communicator with explicit settings, and
//!   [`CallOptions`] change the settings of single calls. A [`Call`] is any of them as a value, for
//!   programs that choose one at run time.
//! - [`Error`] says what went wrong, at which rank, host and step, and what to do.
//! - [`Element`] and [`DataType`] are the types of buffers; [`ReduceOp`] and [`Reduction`] are the
//!   reductions.
//! - [`Algorithm`] lists the algorithms; [`Communicator::explain`] says which one a call uses, and
//!   why.
//! - [`schedule`] describes a collective as a list of steps, [`sim`] proves such a list correct,
//!   and [`plan`] chooses one. A program may bring its own schedule: [`Communicator::prove`].
//!
//! # Features
//! - `host` (default): the communicator and everything else that needs an operating system, which
//!   is Linux. Without it, [`element`], [`schedule`], [`sim`] and [`plan`] remain, also for wasm32.
//! - `cuda` (default): buffers of CUDA devices. It needs no CUDA to build; the driver is loaded by
//!   the first call on a device.
//! - `serde`: calls on values of any type that serde can encode, `broadcast_object` and the like.
//! - `aws-lc`: encryption by AWS-LC, several times as fast on CPUs with AVX-512. It needs a C
//!   compiler.
#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr, clippy::unimplemented)]
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

// The feature `internals` makes modules public for the benches, tests and tools of this tree alone.
// They are no stable interface and change with those users.

#[cfg(feature = "host")]
mod api;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod bootstrap;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod bootstrap;
#[cfg(not(feature = "internals"))]
mod codec;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod codec;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod config;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "cuda")]
mod device;
pub mod element;
#[cfg(feature = "host")]
mod engine;
#[cfg(feature = "host")]
pub mod error;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod exec;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod exec;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod files;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod files;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod health;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod health;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod kernel;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod kernel;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod matching;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod matching;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod memory;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod memory;
#[cfg(feature = "host")]
mod messages;
#[cfg(not(feature = "internals"))]
mod partition;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod partition;
pub mod plan;
#[cfg(not(feature = "internals"))]
mod recovery;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod recovery;
pub mod schedule;
pub mod sim;
#[cfg(feature = "host")]
mod sync;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod trace;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod trace;
#[cfg(all(feature = "host", not(feature = "internals")))]
mod transport;
#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub mod transport;
#[cfg(feature = "host")]
mod tuner;

#[cfg(all(feature = "host", feature = "internals"))]
#[doc(hidden)]
pub use api::fuzz;
#[cfg(feature = "host")]
pub use api::{
    Buffers, Builder, Call, CallOptions, Communicator, Counts, CurrentCall, FoldOrder, Group,
    MessageRequest, Messenger, Monitor, Pending, Queue, Source, Status, Tag, Verb, With, group,
    group_all,
};
#[cfg(feature = "host")]
pub use bootstrap::{GroupCreator, UniqueId, UniqueIdKey};
#[cfg(feature = "host")]
pub use config::{Launched, Transport, launched};
/// The crate of the CUDA contexts and streams that calls on devices take.
#[cfg(feature = "cuda")]
pub use cudarc;
#[cfg(feature = "cuda")]
pub use device::{DeviceMemory, DevicePath, DeviceRef, DeviceRegistration, OnStream, device_count};
pub use element::{
    BlockFormat, Complex, DataType, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32, LocI64,
    ReduceOp, Reduction, UnknownName, Wire, bf16, f16,
};
#[cfg(feature = "host")]
pub use engine::wire_error;
#[cfg(feature = "host")]
pub use error::{Error, Limit, Peer, Place, Result, Stall};
#[cfg(feature = "host")]
pub use kernel::CFunction;
#[cfg(feature = "host")]
pub use memory::Registered;
#[cfg(feature = "host")]
pub use recovery::Recovery;
pub use schedule::{Algorithm, Collective};
#[cfg(feature = "host")]
pub use sync::{Process, set_interrupt};
