//! The latest call of each rank over links, by which ranks notice that their calls differ where one
//! of them goes over links and the other one through the region.

use std::sync::atomic::{Ordering, fence};

use super::{CallId, HostRegion};
use crate::schedule::Phase;

impl HostRegion {
    /// Publishes that this rank makes a call over links.
    pub(crate) fn publish_link_call(&self, call_id: CallId) {
        let [sequence, fingerprint] = &self.words(self.me).rare.link_call;
        // A reader must not pair one call's number with another call's fingerprint.
        sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        fingerprint.store(call_id.fingerprint, Ordering::Relaxed);
        sequence.store(call_id.sequence, Ordering::Release);
        // A peer that has offered registered buffers waits for this rank's answer.
        self.words(self.me).progress.waiters.wake(self.as_publisher.get());
    }

    /// This rank's latest call over links and the call of `peer`, which is in this rank's call,
    /// under the same number, if the two calls differ. At least one of two such ranks finds the
    /// difference: before a rank makes its next call over links, the other must have looked.
    #[inline]
    pub(crate) fn link_call_mismatch(&self, peer: usize) -> Option<(CallId, CallId)> {
        let latest = |peer: usize| {
            let [number, fingerprint] = &self.words(peer).rare.link_call;
            let sequence = number.load(Ordering::Acquire);
            let call_id = CallId { sequence, fingerprint: fingerprint.load(Ordering::Relaxed) };
            fence(Ordering::Acquire);
            (number.load(Ordering::Relaxed) == sequence).then_some(call_id)
        };
        let ours = latest(self.me).filter(|ours| ours.sequence != self.compared.get())?;
        let theirs = latest(peer)?;
        let differ = ours.sequence == theirs.sequence && ours.fingerprint != theirs.fingerprint;
        differ.then_some((ours, theirs))
    }

    /// The number of the latest call of `peer` over links.
    pub(super) fn latest_link_call(&self, peer: usize) -> u64 {
        self.words(peer).rare.link_call[0].load(Ordering::Acquire)
    }

    /// Notes that this rank's latest call over links has been compared with those of all peers.
    pub(crate) fn set_compared(&self) {
        let [sequence, _] = &self.words(self.me).rare.link_call;
        self.compared.set(sequence.load(Ordering::Relaxed));
    }

    /// The latest call of `peer` over links, if that call has number `sequence` or a later one, and
    /// the rank has not copied in `block`.
    pub(crate) fn link_call_of(&self, peer: usize, sequence: u64, block: u64) -> Option<CallId> {
        let [number, fingerprint] = &self.words(peer).rare.link_call;
        let number = number.load(Ordering::Acquire);
        let fingerprint = fingerprint.load(Ordering::Relaxed);
        let call_id = CallId { sequence: number, fingerprint };
        (number >= sequence && !self.has(peer, Phase::CopyIn, block + 1)).then_some(call_id)
    }
}
