//! Offers: a rank whose buffers of a call are registered publishes where they are, and waits until
//! each other rank has answered, by an offer for the same call or by beginning the call without
//! one.
//! Law: all ranks of a call come to the same decision. A rank that offers begins the call in
//! another way only after it has seen a rank that has begun without an offer; so if all have
//! offered, no rank sees any that has begun, and else each rank sees the one that has not offered.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{CallId, FileRange, HostRegion};
use crate::schedule::Phase;

/// Flags of an offer.
const HAS_OUTPUT: u64 = 1;
const IS_NEW: u64 = 2;

/// The words of a rank's latest offer: one line, and one more for an output of its own.
#[repr(C)]
pub(super) struct OfferWords {
    sequence: AtomicU64,
    fingerprint: AtomicU64,
    /// Registrations that the rank had released before.
    released: AtomicU64,
    /// [`HAS_OUTPUT`] and [`IS_NEW`].
    flags: AtomicU64,
    input: PlaceWords,
    output: PlaceWords,
}

#[repr(C)]
struct PlaceWords {
    start: AtomicU64,
    len: AtomicU64,
    at: AtomicU64,
    /// `lead` above, and `tail` in the lower half.
    edges: AtomicU64,
}

/// Where a call's buffer lies in the file of the host's region. Its first `lead` and last `tail`
/// bytes do not: they lie in no whole page that is the buffer's alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferPlace {
    /// The registration.
    pub(crate) pages: FileRange,
    /// The offset in the file of the first byte after `lead`.
    pub(crate) at: u64,
    pub(crate) lead: u32,
    pub(crate) tail: u32,
}

/// Where the buffers of a rank are: what peers read, and what they write if that is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) input: BufferPlace,
    pub(crate) output: Option<BufferPlace>,
    /// False if all ranks have mapped these registrations before.
    pub(crate) is_new: bool,
}

/// The answer of a peer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The peer offers its buffers for the call of this number, with this fingerprint.
    Offered(u64),
    /// The peer has begun that call or a later one in another way.
    Begun,
}

impl PlaceWords {
    fn store(&self, place: &BufferPlace) {
        let BufferPlace { pages: FileRange { start, len }, at, lead, tail } = *place;
        let edges = u64::from(lead) << 32 | u64::from(tail);
        for (word, value) in
            [&self.start, &self.len, &self.at, &self.edges].into_iter().zip([start, len, at, edges])
        {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn load(&self) -> BufferPlace {
        let [start, len, at, edges] = [&self.start, &self.len, &self.at, &self.edges]
            .map(|word| word.load(Ordering::Relaxed));
        let (lead, tail) = ((edges >> 32) as u32, edges as u32);
        BufferPlace { pages: FileRange { start, len }, at, lead, tail }
    }
}

impl HostRegion {
    /// Publishes where this rank's buffers of a call are. The call has no block yet.
    pub(crate) fn publish_offer(&self, call_id: CallId, offer: &Offer) {
        let words = &self.words(self.me).offer;
        // A reader must not pair one call's number with another call's fingerprint.
        words.sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        words.fingerprint.store(call_id.fingerprint, Ordering::Relaxed);
        words.released.store(self.file.released(), Ordering::Relaxed);
        let has_output = if offer.output.is_some() { HAS_OUTPUT } else { 0 };
        let flags = has_output | if offer.is_new { IS_NEW } else { 0 };
        words.flags.store(flags, Ordering::Relaxed);
        words.input.store(&offer.input);
        if let Some(output) = &offer.output {
            words.output.store(output);
        }
        words.sequence.store(call_id.sequence, Ordering::Release);
        self.words(self.me).progress.waiters.wake(self.as_publisher.get());
    }

    /// The answer of `peer` to this rank's offer for the call of this number; `None` as long as the
    /// peer has not come to that call.
    #[inline]
    pub(crate) fn answer(&self, peer: usize, sequence: u64) -> Option<Answer> {
        let offered = self.offered(peer, sequence);
        if offered.is_some() {
            return offered;
        }
        // A later offer follows the end of this call.
        let has_begun = self.words(peer).offer.sequence.load(Ordering::Acquire) > sequence
            || self.has(peer, Phase::CopyIn, self.blocks + 1)
            || self.latest_link_call(peer) >= sequence;
        // A peer that has begun may have offered before, and then go on directly.
        has_begun.then(|| self.offered(peer, sequence).unwrap_or(Answer::Begun))
    }

    fn offered(&self, peer: usize, sequence: u64) -> Option<Answer> {
        let words = &self.words(peer).offer;
        let is_it = words.sequence.load(Ordering::Acquire) == sequence;
        let fingerprint = words.fingerprint.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_still = is_it && words.sequence.load(Ordering::Relaxed) == sequence;
        is_still.then_some(Answer::Offered(fingerprint))
    }

    /// The offer of `peer` for a call for which all ranks have offered, and the number of
    /// registrations that it had released before.
    pub(crate) fn offer(&self, peer: usize) -> (Offer, u64) {
        let OfferWords { released, flags, input, output, .. } = &self.words(peer).offer;
        let flags = flags.load(Ordering::Relaxed);
        let output = (flags & HAS_OUTPUT != 0).then(|| output.load());
        let offer = Offer { input: input.load(), output, is_new: flags & IS_NEW != 0 };
        (offer, released.load(Ordering::Relaxed))
    }
}
