//! The failure detector: dead ranks, stalled ranks (stragglers), ranks in different calls (a
//! mismatch), and the first cause of a failure. Its sources are the status page of each process of
//! the host (`local_detector`), the launcher's process table, and heartbeats and failure messages
//! over control channels to ranks of other hosts. `peers` asks all of them in one order of trust.

pub(crate) mod control_channel;
pub(crate) mod control_message;
mod exit_futex;
#[cfg(feature = "internals")]
pub mod fuzz;
pub(crate) mod last_vote;
pub(crate) mod local_detector;
mod peers;
pub mod process_table;
mod status_page;

use std::time::Duration;

pub use crate::error::cause::FailureCause;
pub(crate) use peers::CAUSE_WAIT;
pub use peers::Peers;

/// The time of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTime {
    /// The time since the wait began.
    pub(crate) waited: Duration,
    /// The longest time that the wait may last.
    pub(crate) timeout: Duration,
}
