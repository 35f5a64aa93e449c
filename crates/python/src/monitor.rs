//! The class Monitor: how a communicator is, for any thread.

use pyo3::prelude::*;

use crate::errors::raised;

/// Tells any thread how a communicator is, and ends its calls. No method waits.
#[pyclass(frozen, module = "ringreduce")]
pub(crate) struct Monitor(pub(crate) ringreduce::Monitor);

/// A call that a communicator is in.
#[pyclass(frozen, get_all, module = "ringreduce")]
pub(crate) struct CurrentCall {
    name: &'static str,
    sequence: u64,
    algorithm: Option<&'static str>,
    bytes: u64,
    step: u64,
    elapsed: f64,
    peer: Option<usize>,
}

#[pymethods]
impl Monitor {
    /// The failure that broke the communicator, or None.
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let error = py.detach(|| self.0.error())?;
        Some(raised(py, &error).into_value(py).into_any())
    }

    /// Ends the communicator's call, or its next one, and tells the other ranks.
    fn abort(&self) {
        self.0.abort();
    }

    /// Counters in Prometheus' text format.
    fn metrics(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.metrics())
    }

    /// The call that the communicator is in, or None.
    fn current_call(&self, py: Python<'_>) -> Option<CurrentCall> {
        let call = py.detach(|| self.0.current_call())?;
        Some(CurrentCall {
            name: call.name,
            sequence: call.sequence,
            algorithm: call.algorithm,
            bytes: call.bytes,
            step: call.step,
            elapsed: call.elapsed.as_secs_f64(),
            peer: call.peer.map(|peer| peer.rank),
        })
    }

    /// The ranks that are lost.
    fn lost(&self, py: Python<'_>) -> Vec<usize> {
        py.detach(|| self.0.lost())
    }
}
