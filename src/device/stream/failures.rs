//! The failures of calls on streams, which calls report and monitors read.
//! Law: a reader takes nothing away and never waits.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::api::Monitor;
use crate::device::cuda::{CallFailure, FailedCall, Watchdog, locked};
use crate::error::communicator_name::CommunicatorName;
use crate::error::{Error, Peer, Place, Result};
use crate::plan::fingerprint;
use crate::trace::CallStatus;

/// The failures of one communicator's calls on streams.
#[derive(Debug, Default)]
pub(crate) struct StreamFailures {
    /// The first failure of the host's part of a call that no call has reported yet.
    unreported: Mutex<Option<Error>>,
    /// The watchdog of direct calls.
    watchdog: OnceLock<Weak<Watchdog>>,
    /// The monitors of the communicators that make parts of the calls.
    parts: OnceLock<Vec<Monitor>>,
}

impl StreamFailures {
    pub(super) fn add(&self, error: Error) {
        locked(&self.unreported).get_or_insert(error);
    }

    /// Reports the first failure that was not reported yet.
    pub(super) fn report(&self) -> Result<()> {
        locked(&self.unreported).take().map_or(Ok(()), Err)
    }

    pub(super) fn set_watchdog(&self, watchdog: &Arc<Watchdog>) {
        // A communicator has one watchdog at most: `use_device` is called once.
        let _ = self.watchdog.set(Arc::downgrade(watchdog));
    }

    pub(super) fn set_parts(&self, parts: Vec<Monitor>) {
        // As above.
        let _ = self.parts.set(parts);
    }

    /// The first failure of calls on streams that is known, of the rank with these calls.
    pub(crate) fn known(&self, calls: &CallStatus) -> Option<Error> {
        let unreported = self.unreported.try_lock().ok().and_then(|error| error.clone());
        let direct = || {
            let failure = self.watchdog.get()?.upgrade()?.known_failure()?;
            let (me, peers) = (calls.rank, &calls.peers);
            Some(error_of("a call on a stream", failure, &calls.name, (me, peers)))
        };
        let parts = || self.parts.get()?.iter().find_map(Monitor::failure);
        unreported.or_else(direct).or_else(parts)
    }
}

/// The error of a failure that breaks no communicator here: the call `operation` fails alone, or no
/// call has reported the failure yet.
pub(super) fn error_of(
    operation: &'static str,
    (header, failure): FailedCall,
    name: &CommunicatorName,
    (me, peers): (usize, &[Peer]),
) -> Error {
    let Peer { rank, host, .. } = peers[me].clone();
    let (sequence, tag, communicator) = (header.number(), None, name.copy());
    let at = Box::new(Place { rank, host, operation, sequence, tag, communicator, step: 0 });
    let peer = |rank: usize| Box::new(peers[rank].clone());
    let lost = |rank, evidence| Error::PeerLost { at: at.clone(), peer: peer(rank), evidence };
    let differs = |other: usize, (field, theirs, ours)| {
        let ranks = Box::new([peers[other].clone(), peers[me].clone()]);
        Error::Mismatch { at: at.clone(), ranks, field, values: [theirs, ours] }
    };
    match failure {
        CallFailure::Lost { peer, evidence } => lost(peer, evidence),
        CallFailure::GaveUp { peer: by, aborted: true, .. } => Error::Aborted { by: peer(by), at },
        CallFailure::GaveUp { peer, by, .. } if peer == by => lost(peer, "it failed".into()),
        CallFailure::GaveUp { peer, by, .. } => {
            lost(peer, format!("rank {} gave up on it", peers[by].rank))
        }
        CallFailure::Late { peer: late, after } => Error::Timeout { peer: peer(late), after, at },
        CallFailure::Mismatch { peer, ours, theirs } => {
            let [ours, theirs] = fingerprint::without_memory_bits([ours, theirs]);
            let (field, ours, theirs) = fingerprint::describe_mismatch((ours, None), theirs, 0);
            differs(peer, (field, theirs, ours))
        }
        CallFailure::CaptureMismatch { peer, ours } => {
            let captured = |is: bool| if is { "captured" } else { "not captured" }.to_owned();
            differs(peer, ("the call", captured(!ours), captured(ours)))
        }
        CallFailure::Aborted => Error::Aborted { by: peer(me), at },
        CallFailure::Refused { reason, .. } => Error::Device { doing: operation.into(), reason },
    }
}
