//! Phase flags: one page per rank of the host, written by that rank and read by all, which says how
//! far the rank is in the current direct call; and beside it a stage for bytes that are not in
//! shared pages.
//!
//! A rank's phase is a counter modulo 2^32: 2d when the rank is ready in direct call d, 2d + 1 when
//! it is done there. Its claim is the [`CallId`] of the direct call for which it is ready. Stages
//! and claims exist twice, for even and for odd d (two banks): no rank begins call d + 2 before all
//! have begun d + 1 and so have left d.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::mapping::Region;
use super::pages::page_size;
use super::{Dst, Src};
use crate::element::LARGEST;
use crate::sync::Sleeper;

/// Identifies the call that a rank makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    /// The number of the call on its communicator, from 1.
    pub(crate) sequence: u64,
    /// A digest of all arguments that must be equal on all ranks. The lowest bit says whether the
    /// call is on registered buffers.
    pub(crate) fingerprint: u64,
}

impl CallId {
    /// The identity of a call on registered buffers; `digest` is of where they are.
    pub(crate) fn registered(self, digest: u64) -> Self {
        Self { fingerprint: digest | 1, ..self }
    }

    /// The identity of a call whose bytes all go over the stages.
    pub(crate) fn staged(self) -> Self {
        Self { fingerprint: self.fingerprint & !1, ..self }
    }

    /// True for a call on registered buffers.
    pub(crate) fn is_registered(self) -> bool {
        self.fingerprint & 1 == 1
    }
}

/// The start of a rank's region.
#[repr(C)]
struct RankPage {
    line: CachePadded<CallLine>,
    rare: CachePadded<RareLine>,
}

/// The cache line that a rank writes in every call.
#[repr(C)]
struct CallLine {
    phase: AtomicU32,
    /// Sequence number and fingerprint of the rank's latest call over links.
    link_call: [AtomicU64; 2],
    /// For even and for odd direct calls: sequence number and fingerprint of the rank's claim.
    claims: [[AtomicU64; 2]; 2],
}

/// The cache line that is rarely written.
#[repr(C)]
struct RareLine {
    sleeper: Sleeper,
    /// 1 once the rank has closed its communicator.
    closed: AtomicU32,
    /// Bytes of the last-level cache, as that rank sees it.
    cache: AtomicU64,
}

/// The phase flags and stages of all ranks of a communicator, as one rank uses them.
#[derive(Debug)]
pub(crate) struct PhaseFlags {
    me: usize,
    /// By rank.
    regions: Vec<Arc<Region>>,
    /// The number d of the latest direct call.
    number: u32,
}

impl PhaseFlags {
    /// Bytes of a stage. It holds the bytes of a buffer before its first and after its last shared
    /// page, extended to whole elements: at each end less than a page and one element, which has at
    /// most [`LARGEST`] bytes.
    pub(crate) fn stage_len() -> usize {
        2 * (page_size() + LARGEST.next_multiple_of(page_size()))
    }

    /// Bytes of a rank's region: the flags and two stages.
    pub(crate) fn region_len() -> NonZeroUsize {
        // The flags have a page to themselves.
        NonZeroUsize::MIN.saturating_add(page_size() + 2 * Self::stage_len() - 1)
    }

    /// For rank `me`, with `cache` bytes of last-level cache. All ranks' `regions` are zeroed.
    pub(crate) fn new(me: usize, regions: Vec<Arc<Region>>, cache: usize) -> Self {
        assert!(size_of::<RankPage>() <= page_size() && me < regions.len());
        assert!(regions.iter().all(|region| region.len() >= Self::region_len().get()));
        let phase_flags = Self { me, regions, number: 0 };
        phase_flags.page_of(me).rare.sleeper.attach();
        phase_flags.page_of(me).rare.cache.store(cache as u64, Ordering::Relaxed);
        phase_flags
    }

    fn page_of(&self, rank: usize) -> &RankPage {
        // SAFETY: the region is page-aligned, large enough (checked in `new`) and starts zeroed;
        // every field of `RankPage` is atomic, and zero is valid for all.
        unsafe { self.regions[rank].start().cast().as_ref() }
    }

    /// Bytes of the last-level cache as `rank`, which has been ready before, sees it.
    pub(crate) fn cache(&self, rank: usize) -> u64 {
        self.page_of(rank).rare.cache.load(Ordering::Relaxed)
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.regions.len()
    }

    /// The stage of `rank` in the current call, from `range.start` on.
    fn stage(&self, rank: usize, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= Self::stage_len());
        let bank = self.number as usize % 2 * Self::stage_len();
        self.regions[rank].start().as_ptr().wrapping_add(page_size() + bank + range.start)
    }

    /// Begins a direct call: from now on this rank may fill its stage of this call.
    pub(crate) fn begin(&mut self) {
        self.number = self.number.wrapping_add(1);
    }

    /// This rank's stage, to be filled before [`Self::publish_ready`].
    pub(crate) fn my_stage(&mut self, range: Range<usize>) -> Dst<'_> {
        let start = self.stage(self.me, &range);
        // SAFETY: inside the region (checked), which lives as long as this; no peer reads the bank
        // before `publish_ready`.
        unsafe { Dst::new(start, range.len()) }
    }

    /// The bytes on the stage of `rank`, which is ready.
    pub(crate) fn staged(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let start = self.stage(rank, &range);
        // SAFETY: inside the region (checked), which lives as long as this; its owner writes the
        // bank again only after this rank has begun another call.
        unsafe { Src::new(start, range.len()) }
    }

    /// Publishes that this rank is ready: ranks with an equal claim may read its buffer and stage
    /// and write its buffer.
    pub(crate) fn publish_ready(&self, call_id: CallId) {
        let line = &self.page_of(self.me).line;
        let [sequence, fingerprint] = &line.claims[self.number as usize % 2];
        sequence.store(call_id.sequence, Ordering::Relaxed);
        fingerprint.store(call_id.fingerprint, Ordering::Relaxed);
        self.advance(self.phase(false));
    }

    /// Publishes that this rank no longer accesses its peers' buffers.
    pub(crate) fn publish_done(&self) {
        self.advance(self.phase(true));
    }

    fn advance(&self, phase: u32) {
        let word = &self.page_of(self.me).line.phase;
        word.store(phase, Ordering::Release);
        self.wake_all(word);
    }

    fn wake_all(&self, word: &AtomicU32) {
        for rank in (0..self.size()).filter(|&rank| rank != self.me) {
            self.page_of(rank).rare.sleeper.wake(word);
        }
    }

    /// The phase of the current call: ready or done.
    fn phase(&self, done: bool) -> u32 {
        self.number.wrapping_mul(2) | u32::from(done)
    }

    /// True if `rank` is ready in the current call, or done there.
    #[inline]
    pub(crate) fn reached(&self, rank: usize, done: bool) -> bool {
        let phase = self.page_of(rank).line.phase.load(Ordering::Acquire);
        phase.wrapping_sub(self.phase(done)).cast_signed() >= 0
    }

    /// The claim of `rank`, which is ready.
    #[inline]
    pub(crate) fn claim(&self, rank: usize) -> CallId {
        let [sequence, fingerprint] = &self.page_of(rank).line.claims[self.number as usize % 2];
        CallId {
            sequence: sequence.load(Ordering::Relaxed),
            fingerprint: fingerprint.load(Ordering::Relaxed),
        }
    }

    /// Sleeps until `rank` may have reached the phase, for at most `limit`; may return early.
    pub(crate) fn sleep(&self, rank: usize, done: bool, limit: Duration) {
        let word = &self.page_of(rank).line.phase;
        let seen = word.load(Ordering::Acquire);
        if seen.wrapping_sub(self.phase(done)).cast_signed() < 0 {
            self.page_of(self.me).rare.sleeper.sleep(word, seen, limit);
        }
    }

    /// Publishes that this rank makes a call over links.
    pub(crate) fn publish_link_call(&self, call_id: CallId) {
        let [sequence, fingerprint] = &self.page_of(self.me).line.link_call;
        // A reader must not pair one call's number with another call's fingerprint.
        sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        fingerprint.store(call_id.fingerprint, Ordering::Relaxed);
        sequence.store(call_id.sequence, Ordering::Release);
    }

    /// This rank's latest call over links and the call of `rank`, which is ready, under the same
    /// number, if the two calls differ. At least one of two such ranks finds the difference: before
    /// a rank makes its next call over links, the other must have looked.
    #[inline]
    pub(crate) fn link_call_mismatch(&self, rank: usize) -> Option<(CallId, CallId)> {
        let latest = |rank: usize| {
            let [number, fingerprint] = &self.page_of(rank).line.link_call;
            let sequence = number.load(Ordering::Acquire);
            let call_id = CallId { sequence, fingerprint: fingerprint.load(Ordering::Relaxed) };
            fence(Ordering::Acquire);
            (number.load(Ordering::Relaxed) == sequence).then_some(call_id)
        };
        let (ours, theirs) = (latest(self.me)?, latest(rank)?);
        let differ = ours.sequence == theirs.sequence && ours.fingerprint != theirs.fingerprint;
        differ.then_some((ours, theirs))
    }

    /// The latest call of `rank` over links, if that call has number `sequence` or a later one, and
    /// the rank is not ready in the current direct call.
    pub(crate) fn link_call_of(&self, rank: usize, sequence: u64) -> Option<CallId> {
        let [number, fingerprint] = &self.page_of(rank).line.link_call;
        let number = number.load(Ordering::Acquire);
        let fingerprint = fingerprint.load(Ordering::Relaxed);
        let call_id = CallId { sequence: number, fingerprint };
        (number >= sequence && !self.reached(rank, false)).then_some(call_id)
    }

    /// The claim of `rank` if it makes call `sequence` directly, and this rank over links.
    pub(crate) fn direct_call_of(&self, rank: usize, sequence: u64) -> Option<CallId> {
        let line = &self.page_of(rank).line;
        let next = self.number.wrapping_add(1);
        let phase = line.phase.load(Ordering::Acquire);
        let begun = phase.wrapping_sub(next.wrapping_mul(2)).cast_signed() >= 0;
        let [number, fingerprint] = &line.claims[next as usize % 2];
        let fingerprint = fingerprint.load(Ordering::Relaxed);
        let call_id = CallId { sequence: number.load(Ordering::Relaxed), fingerprint };
        (begun && call_id.sequence == sequence).then_some(call_id)
    }

    /// True once `rank` has closed its communicator, after a failure or at the end.
    pub(crate) fn is_closed(&self, rank: usize) -> bool {
        self.page_of(rank).rare.closed.load(Ordering::Acquire) != 0
    }
}

impl Drop for PhaseFlags {
    fn drop(&mut self) {
        let page = self.page_of(self.me);
        page.rare.closed.store(1, Ordering::Release);
        // A peer that sleeps on this rank's phase checks `closed` when it wakes.
        self.wake_all(&page.line.phase);
    }
}
