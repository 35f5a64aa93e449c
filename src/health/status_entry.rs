//! The status entry of a rank in a communicator, which the other ranks of its host map: the current
//! call, the failure cause and the last vote. Unsafe: addresses inside the mapping.
//! Law: any bytes of an entry are valid for its readers, and no reader pairs the number of one call
//! with the fingerprint of another.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::control_message::Failure;
use super::last_vote;
use crate::error::Result;
use crate::error::cause::{FailureCause, WORDS};
use crate::memory::mapping::Region;

const LINE: usize = 64;
/// Fingerprints in an entry, of the latest calls. All but the oldest can be read: that one may
/// just be overwritten.
const FINGERPRINTS: usize = LINE / size_of::<u64>();
/// Bytes of a last vote in an entry.
const VOTE_BYTES: usize = (last_vote::VOTE_WORDS * size_of::<u64>()).next_multiple_of(LINE);

const OPEN: u64 = 1;
const CLOSED: u64 = 2;

/// The progress of a rank with the calls of the communicator.
#[repr(C, align(64))]
pub(super) struct Progress {
    /// 0 until the rank opens its entry, then [`OPEN`], and [`CLOSED`] after the rank has dropped a
    /// communicator that has not failed.
    state: AtomicU64,
    /// The number of the latest call that the rank has entered, and of the latest it has left.
    pub(super) entered: AtomicU64,
    pub(super) done: AtomicU64,
    /// The rank plus one for whose message the rank waits outside calls; 0 for none.
    waits_for: AtomicU64,
    /// The failure cause, with [`FIRST_HAND`] in its first word; 0 there without a failure.
    cause: [AtomicU64; WORDS],
}

impl Progress {
    /// True while the entry tells of the rank's communicator.
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// True from when the rank could vote on.
    pub(super) fn was_opened(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    /// Tells that the rank has dropped its communicator. The cause of a failed one stays readable.
    pub(super) fn close(&self) {
        if !self.has_failed() {
            self.state.store(CLOSED, Ordering::Release);
        }
    }

    pub(super) fn wait_for_message(&self, peer: Option<usize>) {
        let peer = peer.map_or(0, |peer| peer as u64 + 1);
        self.waits_for.store(peer, Ordering::Relaxed);
    }

    /// The rank for whose message the rank waits outside calls.
    pub(super) fn waits_for(&self) -> Option<usize> {
        self.waits_for.load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as usize)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.cause[0].load(Ordering::Acquire) != 0
    }

    /// The failure of the rank, if it has failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        let first = self.cause[0].load(Ordering::Acquire);
        let [_, a, b, c] = self.cause.each_ref().map(|word| word.load(Ordering::Relaxed));
        let cause = FailureCause::from_words([first & !FIRST_HAND, a, b, c])?;
        Some(Failure { cause, first_hand: first & FIRST_HAND != 0 })
    }

    /// Publishes the failure cause; only the first one counts.
    pub(super) fn fail(&self, cause: &FailureCause, first_hand: bool) {
        if self.has_failed() {
            return;
        }
        let words = cause.words();
        for (place, word) in self.cause.iter().zip(words).skip(1) {
            place.store(word, Ordering::Relaxed);
        }
        let first = if first_hand { words[0] | FIRST_HAND } else { words[0] };
        self.cause[0].store(first, Ordering::Release);
    }
}

/// The rank found the cause itself; no other rank reported it.
const FIRST_HAND: u64 = 1 << 63;

/// The fingerprints of the latest calls, each at its number modulo the length; 0 is unknown.
type Fingerprints = [AtomicU64; FINGERPRINTS];

/// The entry of a rank: a line of its progress, a line of fingerprints, and its last vote.
#[derive(Clone, Debug)]
pub(super) struct StatusEntry {
    region: Arc<Region>,
    /// Where it begins in the region, in bytes.
    start: usize,
}

impl StatusEntry {
    pub(super) const BYTES: NonZeroUsize = NonZeroUsize::new(2 * LINE + VOTE_BYTES).unwrap();

    /// The entry at this byte of a region, whose bytes there are zeros until its rank opens it.
    pub(super) fn at(region: Arc<Region>, start: usize) -> Self {
        assert!(start.is_multiple_of(LINE));
        assert!(start.saturating_add(Self::BYTES.get()) <= region.len());
        Self { region, start }
    }

    /// Shows the entry to readers: its rank has made its communicator.
    ///
    /// # Errors
    /// [`Error::Exhausted`](crate::Error::Exhausted) if there is no memory for the entry.
    pub(super) fn open(&self) -> Result<()> {
        self.region.populate(std::iter::once(self.start..self.start + Self::BYTES.get()))?;
        self.progress().state.store(OPEN, Ordering::Release);
        Ok(())
    }

    /// Byte `offset` of the entry.
    fn byte(&self, offset: usize) -> *const u8 {
        self.region.start().as_ptr().wrapping_add(self.start + offset)
    }

    /// A word of the last vote: see [`last_vote`].
    pub(super) fn vote_word(&self, word: usize) -> &AtomicU64 {
        assert!(word < VOTE_BYTES / size_of::<u64>());
        let start = self.byte(2 * LINE + word * size_of::<u64>());
        // SAFETY: inside the region (checked here and where this is made), at a multiple of its
        // size, and of words only.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    pub(super) fn progress(&self) -> &Progress {
        // SAFETY: inside the region (checked where this is made), at a multiple of a line; progress
        // is atomics only, for which any bytes are valid.
        unsafe { &*self.byte(0).cast::<Progress>() }
    }

    fn fingerprint_of(&self, call: u64) -> &AtomicU64 {
        // SAFETY: as above; a line of words.
        let all = unsafe { &*self.byte(LINE).cast::<Fingerprints>() };
        &all[call as usize % FINGERPRINTS]
    }

    /// Publishes that the rank enters a call.
    pub(super) fn enter(&self, call: u64, fingerprint: u64) {
        // Fingerprint first: a reader that meets the fingerprint of a later call here also sees
        // that the call before it was entered, and so discards what it read.
        self.fingerprint_of(call).store(fingerprint, Ordering::Release);
        self.progress().entered.store(call, Ordering::Release);
    }

    /// The fingerprint of this call, while the entry still has it.
    pub(super) fn fingerprint(&self, call: u64) -> Option<u64> {
        let has = |entered: u64| entered >= call && entered - call < FINGERPRINTS as u64 - 1;
        let entered = &self.progress().entered;
        if !has(entered.load(Ordering::Acquire)) {
            return None;
        }
        let fingerprint = self.fingerprint_of(call).load(Ordering::Acquire);
        fence(Ordering::Acquire);
        (fingerprint != 0 && has(entered.load(Ordering::Relaxed))).then_some(fingerprint)
    }
}
