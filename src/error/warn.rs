//! Warnings, for users who have no subscriber of `tracing` too. May touch: nothing else.

use std::io::Write;

/// Warns where a user without a `tracing` subscriber sees it too.
pub(crate) fn warn(warning: &str) {
    tracing::warn!("{warning}");
    tell(warning);
}

/// The same, where there is no subscriber yet.
pub(crate) fn tell(warning: &str) {
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "ringreduce: warning: {warning}");
}
