//! When the buckets of a step were exchanged, and when the step waited for them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The exchange of one bucket. Times count from the beginning of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketTrace {
    /// The bytes of gradients in the bucket.
    pub bytes: usize,
    /// The beginning of the exchange, at this rank.
    pub started: Duration,
    /// The end of the exchange, at this rank.
    pub ended: Duration,
    /// From when to when the step waited for this bucket and did nothing else.
    pub waited: (Duration, Duration),
}

/// The exchanges that have ended: from, to, bytes.
#[derive(Debug, Default)]
pub(crate) struct Exchanges(Mutex<Vec<(Instant, Instant, usize)>>);

impl Exchanges {
    /// Makes an exchange of so many bytes.
    pub(crate) fn record<T>(&self, bytes: usize, exchange: impl FnOnce() -> T) -> T {
        let from = Instant::now();
        let result = exchange();
        let mut exchanges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.push((from, Instant::now(), bytes));
        result
    }

    /// The trace of a step, whose waits are in the order of the exchanges.
    pub(crate) fn take(&self, start: Instant, waits: &[(Instant, Instant)]) -> Vec<BucketTrace> {
        let mut exchanges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |instant: Instant| instant.saturating_duration_since(start);
        let trace =
            |((from, to, bytes), wait): ((Instant, Instant, usize), &(Instant, Instant))| {
                let waited = (since(wait.0), since(wait.1));
                BucketTrace { bytes, started: since(from), ended: since(to), waited }
            };
        exchanges.drain(..).zip(waits).map(trace).collect()
    }
}
