//! The failure detector: dead ranks, stalled ranks (stragglers), ranks in different calls (a
//! mismatch), and the first cause of a failure. Its sources are the pages of the host's processes
//! and the status entries of its ranks (`local_detector`), the launcher's process table, and
//! heartbeats and failure messages over control channels to ranks of other hosts. `peers` asks all
//! of them in one order of trust.

pub(crate) mod control_channel;
pub(crate) mod control_message;
mod exit_futex;
#[cfg(feature = "internals")]
pub mod fuzz;
pub(crate) mod last_vote;
pub(crate) mod local_detector;
mod peers;
mod process_page;
pub mod process_table;
mod status_entry;

use std::time::Duration;

pub use crate::error::cause::FailureCause;
pub(crate) use peers::CAUSE_WAIT;
pub use peers::Peers;
pub(crate) use process_page::is_stopped;

/// The time of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTime {
    /// The time since the wait began.
    pub(crate) waited: Duration,
    /// The longest time that the wait may last.
    pub(crate) timeout: Duration,
}
