//! Warnings that also reach users without a `tracing` subscriber.

use std::io::Write;

/// Warns by `tracing` and on stderr.
pub(crate) fn warn(warning: &str) {
    tracing::warn!("{warning}");
    warn_on_stderr(warning);
}

pub(crate) fn warn_on_stderr(warning: &str) {
    // A closed stderr is no error.
    let _ = writeln!(std::io::stderr(), "ringreduce: warning: {warning}");
}
