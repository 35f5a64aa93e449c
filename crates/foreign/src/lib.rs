//! The shared part of the C interfaces: a call as a value, whose buffers are addresses of the
//! memory of the host or of a device. A call is checked once, and carried out at once, later, or as
//! part of a group.

mod calls;
pub mod device;
mod operation;

pub use calls::{add, call_all};
pub use operation::{Operation, RawCall};
