//! The exported functions.

pub mod call;
pub mod collectives;
pub mod device;
pub mod making;
pub mod memory;
pub mod messages;
pub mod monitor;
pub mod reductions;
pub mod requests;
