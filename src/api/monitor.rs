//! The state of a communicator, for any thread: failures, the current call and counters; and the
//! abort of calls.
//! Law: no method waits, and none touches what calls use but words that they write anyway.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Communicator;
#[cfg(feature = "cuda")]
use crate::device::stream::StreamFailures;
use crate::error::{Error, Peer};
use crate::trace::{self, CallStatus};

/// Tells any thread how a communicator is, and ends its calls. No method waits, also while a call
/// of the communicator hangs. See [`Communicator::monitor`].
#[derive(Clone)]
pub struct Monitor {
    calls: CallStatus,
    abort: Arc<AtomicBool>,
    failure: Arc<OnceLock<Error>>,
    /// For each rank, whether its messages are lost.
    lost: Arc<[AtomicBool]>,
    /// The bytes that messages have sent.
    message_bytes: Arc<AtomicU64>,
    #[cfg(feature = "cuda")]
    streams: Arc<StreamFailures>,
}

/// A call that a communicator is in: from [`Monitor::current_call`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CurrentCall {
    /// The name of the collective or message.
    pub name: &'static str,
    /// The number of the call on this communicator, from 1; of a message, of the collective before.
    pub sequence: u64,
    /// The name of the algorithm, once it is chosen.
    pub algorithm: Option<&'static str>,
    /// Bytes of the result.
    pub bytes: u64,
    /// The step that the rank is at, from 0: of its walk over links, or else the phase in shared
    /// memory.
    pub step: u64,
    /// The number of steps of a walk over links.
    pub steps: Option<u64>,
    /// The time since the call began, accurate to a few milliseconds.
    pub elapsed: Duration,
    /// The rank at the other end of the step: if this rank waits, it is the one that it waits for.
    pub peer: Option<Peer>,
}

impl Communicator {
    /// A handle by which any thread asks how this communicator is, and ends its calls. It may be
    /// asked at any time: during a call, and after the communicator was dropped, when
    /// [`Monitor::error`] says so. It belongs to this communicator: the ones that
    /// [`Self::shrink`] or [`Self::grow`] make have monitors of their own.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    /// let mut comm = Communicator::local(1)?.remove(0);
    /// let monitor = comm.monitor();
    /// comm.all_reduce(&mut [1.0_f32, 2.0], ReduceOp::Sum)?;
    /// let text = std::thread::spawn(move || {
    ///     assert!(monitor.error().is_none() && monitor.current_call().is_none());
    ///     monitor.metrics()
    /// });
    /// let line = "ringreduce_bytes_total{collective=\"all_reduce\",rank=\"0\"} 8";
    /// assert!(text.join().is_ok_and(|text| text.lines().any(|it| it == line)));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor {
            calls: self.rank_info.record.status().clone(),
            abort: Arc::clone(&self.abort),
            failure: Arc::clone(&self.failure),
            lost: self.rank_info.messages.lost_flags(),
            message_bytes: self.rank_info.messages.sent(),
            #[cfg(feature = "cuda")]
            streams: Arc::clone(&self.streams.failures),
        }
    }
}

impl Monitor {
    /// The first failure that broke the communicator, of whatever call: also of a started one, or
    /// of one on a stream, that no call has reported yet (NCCL's `ncclCommGetAsyncError`). After
    /// the communicator was dropped, [`Error::Broken`] says so.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        let closed = || {
            let first = "the communicator was dropped".into();
            self.calls.is_closed().then_some(Error::Broken { call: "monitor", first })
        };
        self.failure().or_else(closed)
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<Error> {
        let first = self.failure.get().cloned();
        #[cfg(feature = "cuda")]
        let first = first.or_else(|| self.streams.known(&self.calls));
        first
    }

    /// Makes the rank's pending call, or else its next one, fail with [`Error::Aborted`], and tells
    /// the other ranks.
    pub fn abort(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }

    /// Counters of the communicator in Prometheus' text format: for each collective that was
    /// called, its calls, bytes of results, bytes sent over links, seconds asleep while it waited
    /// for other ranks, and errors by kind; and the bytes that messages have sent.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.calls.metrics(self.message_bytes.load(Ordering::Relaxed))
    }

    /// The call that the communicator is in, its own thread's or a started one; `None` between
    /// calls. Calls that go from device to device are not seen.
    #[must_use]
    pub fn current_call(&self) -> Option<CurrentCall> {
        let (record, step, steps) = self.calls.current()?;
        Some(CurrentCall {
            name: record.code.name(),
            sequence: record.sequence,
            algorithm: record.code.algorithm(),
            bytes: record.bytes,
            step,
            steps,
            elapsed: Duration::from_nanos(trace::now().saturating_sub(record.start)),
            peer: record
                .waits_for
                .and_then(|(_, peer)| self.calls.peers.get(peer as usize))
                .cloned(),
        })
    }

    /// The ranks that are lost, as far as this rank has seen: those whose messages
    /// ([`Communicator::messenger`]) fail, and the one that [`Self::error`] names as lost.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        let named = match self.failure() {
            Some(Error::PeerLost { peer, .. }) => Some(peer),
            _ => None,
        };
        let is_named = |rank: usize| named.as_deref() == self.calls.peers.get(rank);
        let is_lost = |&rank: &usize| self.lost[rank].load(Ordering::Relaxed) || is_named(rank);
        (0..self.lost.len()).filter(is_lost).collect()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, call) = (self.error(), self.current_call());
        f.debug_struct("Monitor").field("error", &error).field("current_call", &call).finish()
    }
}
