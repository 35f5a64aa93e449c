//! What the C interfaces share: a call as a value, whose buffers are addresses of the host's memory
//! or of a device's. It is checked once, and carried out at once, later, or as part of a group.

mod calls;
pub mod device;
mod operation;

pub use calls::{add, call_all};
pub use operation::{Operation, RawCall};
