//! The state of a communicator's calls, which its writer keeps and any thread reads.
//! Law: a reader never waits, and outlives the communicator.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::metrics::Metrics;
use super::reader::{OperationRecord, State, operation};
use super::recorder::Recorder;
use crate::error::Peer;
use crate::error::communicator_name::CommunicatorName;

/// The state of one communicator's calls.
#[derive(Debug, Default)]
pub(super) struct CallState {
    /// Made with the first count: a program may keep hundreds of communicators that call nothing.
    metrics: OnceLock<Box<Metrics>>,
    /// The number of the current or last operation.
    pub(super) current: AtomicU64,
    /// The steps of the current operation's walk over links; 0 if it makes none.
    pub(super) steps: AtomicU64,
    /// The steps of the rounds before the current one.
    pub(super) steps_before: AtomicU64,
    /// True once the communicator was dropped.
    pub(super) is_closed: AtomicBool,
}

impl CallState {
    #[inline]
    pub(super) fn metrics(&self) -> &Metrics {
        self.metrics.get_or_init(Box::default)
    }
}

/// Reads the state of one communicator's calls.
#[derive(Clone, Debug)]
pub(crate) struct CallStatus {
    pub(super) recorder: Arc<Recorder>,
    /// The number of this rank in the communicator.
    pub(crate) rank: usize,
    /// All ranks of the communicator.
    pub(crate) peers: Arc<[Peer]>,
    pub(crate) name: Arc<CommunicatorName>,
    pub(super) state: Arc<CallState>,
}

impl CallStatus {
    /// The counters so far, in the text format of Prometheus; messages have sent so many bytes.
    pub(crate) fn metrics(&self, message_bytes: u64) -> String {
        self.state.metrics().text(self.rank, self.name.get().as_deref(), message_bytes)
    }

    /// True once the communicator was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed.load(Ordering::Acquire)
    }

    /// The operation that the communicator is in, the number of steps that it has begun, and the
    /// number of all its steps if it walks over links.
    pub(crate) fn current(&self) -> Option<(OperationRecord, u64, Option<u64>)> {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let number = read(&self.state.current);
        let record = operation(&self.recorder.memory, number)?;
        let steps = Some(read(&self.state.steps)).filter(|&steps| steps > 0);
        let before = steps.map_or(0, |_| read(&self.state.steps_before));
        // A call that began meanwhile has other steps.
        let is_current = read(&self.state.current) == number
            && matches!(record.state, State::Entered | State::AtStep);
        let step = before + record.step;
        is_current.then_some((record, steps.map_or(step, |all| step.min(all)), steps))
    }
}
