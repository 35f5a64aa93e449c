//! The failure detector: which ranks are dead, which call another collective, and whose failure is
//! the cause of another's. Sources: the status page of each process of a host, the launcher's
//! process table, and control channels to ranks of other hosts.

pub(crate) mod control_channel;
pub(crate) mod control_message;
mod exit_futex;
#[cfg(fuzzing)]
pub mod fuzz;
pub(crate) mod last_vote;
pub(crate) mod local_detector;
mod peers;
pub mod process_table;
mod status_page;

pub use crate::error::cause::Blame;
pub use peers::Links;
pub(crate) use peers::SHORTLY;
