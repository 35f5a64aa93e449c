//! The flight recorder: a rank's last calls, and how far it is in the current one, in memory that a
//! launcher can read while the rank runs or hangs, or after it was killed. Also the trace (every
//! call and step as a timeline), the metrics, and the connections that were made anew.
//! Law: to write a record takes no allocation, lock or system call; a reader trusts nothing in it.

mod call_status;
mod clock;
mod dump;
mod free_entries;
#[cfg(feature = "internals")]
pub mod fuzz;
pub(crate) mod launcher_record;
mod layout;
mod metrics;
mod operation;
mod reader;
mod reconnections;
mod recorder;
mod short_name;
mod timeline;

pub use metrics::NameLabels;
pub use operation::OperationCode;
pub use reader::{CommunicatorRecord, OperationRecord, Reader, Record, State};
pub use short_name::ShortName;

pub(crate) use call_status::CallStatus;
pub(crate) use recorder::{Direction, Position, RecordWriter, Recorder};

use std::os::fd::OwnedFd;

use layout::RecordMemory;

use crate::error::Result;
use crate::memory::mapping::Region;

/// Creates the memory of one rank's record, as a descriptor that the rank inherits.
///
/// # Errors
/// If the system has no memory for it.
pub fn create() -> Result<OwnedFd> {
    let (region, fd) = Region::shared_on_use(layout::bytes())?;
    RecordMemory::new(region).populate()?;
    Ok(fd)
}

/// The clock of records, in nanoseconds; it is the same for all processes of a host.
#[must_use]
pub fn now() -> u64 {
    clock::precise()
}
