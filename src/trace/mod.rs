//! The flight recorder: what a rank's last calls were and how far it is with the present one, in
//! memory that a launcher can read while the rank runs, hangs, or is no more.
//! May touch: element, schedule, plan's requests, error, link's mappings. Law: to write it takes no
//! allocation, no lock and no system call; who reads it trusts nothing in it.

mod clock;
mod dump;
#[cfg(fuzzing)]
pub mod fuzz;
pub(crate) mod launcher_record;
mod layout;
mod metrics;
mod operation;
mod reader;
mod recorder;
mod timeline;

pub use metrics::MetricsHandle;
pub use operation::What;
pub use reader::{Member, Op, Reader, Record, State};

pub(crate) use recorder::{Flight, Recorder, Toward, Where};

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::memory::mapping::Region;

/// Memory for the record of one rank, which it inherits as a descriptor.
///
/// # Errors
/// If there is none.
pub fn create() -> Result<OwnedFd> {
    Region::create(layout::bytes())
}

/// Nanoseconds of the clock that records go by, which is one for all processes of a host.
#[must_use]
pub fn now() -> u64 {
    clock::precise()
}
