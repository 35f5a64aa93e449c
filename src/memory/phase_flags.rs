//! Where every rank of the host is: a line that each writes and all read, and a stage for bytes
//! that are not in shared pages. May touch: region, memory, sync. Unsafe: addresses inside regions.
//!
//! A rank's phase counts up: twice the number of its direct call once it is ready, one more when it
//! is done there. Stages and claims have two banks, by the parity of that number: nobody begins
//! call d + 2 before everybody has begun d + 1, and so has left d.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::mapping::Region;
use super::pages::page;
use super::{Dst, Src};
use crate::element::LARGEST;
use crate::sync::Sleeper;

/// What a rank says that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The number of the call on its communicator.
    pub(crate) sequence: u64,
    /// A digest of all that must be equal.
    pub(crate) fingerprint: u64,
}

impl Claim {
    /// Of a call on registered buffers, with a digest of where they are. That it is such a call is
    /// seen in the lowest bit.
    pub(crate) fn registered(self, places: u64) -> Self {
        Self { fingerprint: places | 1, ..self }
    }

    /// Of a call that needs nothing but stages.
    pub(crate) fn staged(self) -> Self {
        Self { fingerprint: self.fingerprint & !1, ..self }
    }

    /// Is it a call on registered buffers?
    pub(crate) fn is_registered(self) -> bool {
        self.fingerprint & 1 == 1
    }
}

#[repr(C)]
struct Head {
    line: CachePadded<Line>,
    quiet: CachePadded<Quiet>,
}

/// What is written in every call.
#[repr(C)]
struct Line {
    phase: AtomicU32,
    /// The latest call that took the way over links.
    elsewhere: [AtomicU64; 2],
    claims: [[AtomicU64; 2]; 2],
}

/// What is rarely written.
#[repr(C)]
struct Quiet {
    sleeper: Sleeper,
    /// 1 once it has left.
    closed: AtomicU32,
    /// Bytes of the last cache, as that rank knows it.
    cache: AtomicU64,
}

/// All ranks' lines and stages, as one rank sees them.
#[derive(Debug)]
pub(crate) struct Control {
    me: usize,
    /// By rank.
    regions: Vec<Arc<Region>>,
    /// The number of the latest direct call.
    number: u32,
}

impl Control {
    /// Bytes of a stage: more than a buffer can have before and after the whole pages of all ranks,
    /// cut to whole elements, which may be as large as a page.
    pub(crate) fn stage_len() -> usize {
        2 * (page() + LARGEST.next_multiple_of(page()))
    }

    /// Bytes of a rank's region.
    pub(crate) fn footprint() -> NonZeroUsize {
        // The head has a page to itself.
        NonZeroUsize::MIN.saturating_add(page() + 2 * Self::stage_len() - 1)
    }

    /// As rank `me`, whose last cache has so many bytes; the regions are all ranks' and start
    /// zeroed.
    pub(crate) fn new(me: usize, regions: Vec<Arc<Region>>, cache: usize) -> Self {
        assert!(size_of::<Head>() <= page() && me < regions.len());
        assert!(regions.iter().all(|region| region.len() >= Self::footprint().get()));
        let control = Self { me, regions, number: 0 };
        control.head(me).quiet.sleeper.attach();
        control.head(me).quiet.cache.store(cache as u64, Ordering::Relaxed);
        control
    }

    fn head(&self, rank: usize) -> &Head {
        // SAFETY: the region is page-aligned, large enough (checked in `new`) and starts zeroed;
        // every field of `Head` is atomic, and zero is valid for all.
        unsafe { self.regions[rank].start().cast().as_ref() }
    }

    /// Bytes of the last cache, as `rank` knows it, which has been ready before.
    pub(crate) fn cache(&self, rank: usize) -> u64 {
        self.head(rank).quiet.cache.load(Ordering::Relaxed)
    }

    /// The world size.
    pub(crate) fn size(&self) -> usize {
        self.regions.len()
    }

    /// The stage of `rank` in the present call, at `range`.
    fn stage(&self, rank: usize, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= Self::stage_len());
        let bank = self.number as usize % 2 * Self::stage_len();
        self.regions[rank].start().as_ptr().wrapping_add(page() + bank + range.start)
    }

    /// A direct call begins: from here on its bank is this rank's to fill.
    pub(crate) fn begin(&mut self) {
        self.number = self.number.wrapping_add(1);
    }

    /// This rank's stage, to be filled before [`Self::ready`].
    pub(crate) fn my_stage(&mut self, range: Range<usize>) -> Dst<'_> {
        let start = self.stage(self.me, &range);
        // SAFETY: inside the region (checked), which lives as long as this; nobody reads the bank
        // before `ready`.
        unsafe { Dst::new(start, range.len()) }
    }

    /// What `rank`, which is ready, has put on its stage.
    pub(crate) fn staged(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let start = self.stage(rank, &range);
        // SAFETY: inside the region (checked), which lives as long as this; its owner writes the
        // bank again only after this rank has begun another call.
        unsafe { Src::new(start, range.len()) }
    }

    /// This rank's buffer and stage may be read, and its buffer written, by those who claim the
    /// same.
    pub(crate) fn ready(&self, claim: Claim) {
        let line = &self.head(self.me).line;
        let [sequence, fingerprint] = &line.claims[self.number as usize % 2];
        sequence.store(claim.sequence, Ordering::Relaxed);
        fingerprint.store(claim.fingerprint, Ordering::Relaxed);
        self.advance(self.target(false));
    }

    /// This rank no longer touches the others' buffers.
    pub(crate) fn done(&self) {
        self.advance(self.target(true));
    }

    fn advance(&self, phase: u32) {
        let word = &self.head(self.me).line.phase;
        word.store(phase, Ordering::Release);
        self.wake_all(word);
    }

    fn wake_all(&self, word: &AtomicU32) {
        for rank in (0..self.size()).filter(|&rank| rank != self.me) {
            self.head(rank).quiet.sleeper.wake(word);
        }
    }

    fn target(&self, done: bool) -> u32 {
        self.number.wrapping_mul(2) | u32::from(done)
    }

    /// Is `rank` ready in the present call, or done there?
    #[inline]
    pub(crate) fn reached(&self, rank: usize, done: bool) -> bool {
        let phase = self.head(rank).line.phase.load(Ordering::Acquire);
        phase.wrapping_sub(self.target(done)).cast_signed() >= 0
    }

    /// What `rank`, which is ready, calls.
    #[inline]
    pub(crate) fn claim(&self, rank: usize) -> Claim {
        let [sequence, fingerprint] = &self.head(rank).line.claims[self.number as usize % 2];
        Claim {
            sequence: sequence.load(Ordering::Relaxed),
            fingerprint: fingerprint.load(Ordering::Relaxed),
        }
    }

    /// Sleeps until `rank` may have got there, or `limit` has passed; may return early.
    pub(crate) fn sleep(&self, rank: usize, done: bool, limit: Duration) {
        let word = &self.head(rank).line.phase;
        let seen = word.load(Ordering::Acquire);
        if seen.wrapping_sub(self.target(done)).cast_signed() < 0 {
            self.head(self.me).quiet.sleeper.sleep(word, seen, limit);
        }
    }

    /// This rank makes a call over links.
    pub(crate) fn goes_elsewhere(&self, claim: Claim) {
        let [sequence, fingerprint] = &self.head(self.me).line.elsewhere;
        // Nobody shall see one's number with the other's fingerprint.
        sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        fingerprint.store(claim.fingerprint, Ordering::Relaxed);
        sequence.store(claim.sequence, Ordering::Release);
    }

    /// The latest call over links that this rank made, and what `rank`, which is ready, made under
    /// the same number, if that is another call. Of two ranks one at least is told: to make its
    /// next call over links the other must have looked before.
    #[inline]
    pub(crate) fn differed(&self, rank: usize) -> Option<(Claim, Claim)> {
        let latest = |rank: usize| {
            let [number, fingerprint] = &self.head(rank).line.elsewhere;
            let sequence = number.load(Ordering::Acquire);
            let claim = Claim { sequence, fingerprint: fingerprint.load(Ordering::Relaxed) };
            fence(Ordering::Acquire);
            (number.load(Ordering::Relaxed) == sequence).then_some(claim)
        };
        let (ours, theirs) = (latest(self.me)?, latest(rank)?);
        let other = ours.sequence == theirs.sequence && ours.fingerprint != theirs.fingerprint;
        other.then_some((ours, theirs))
    }

    /// What `rank` calls over links, if it is not in the present direct call, the `sequence`-th of
    /// all, but past it or in it there.
    pub(crate) fn elsewhere(&self, rank: usize, sequence: u64) -> Option<Claim> {
        let [number, fingerprint] = &self.head(rank).line.elsewhere;
        let number = number.load(Ordering::Acquire);
        let fingerprint = fingerprint.load(Ordering::Relaxed);
        let claim = Claim { sequence: number, fingerprint };
        (number >= sequence && !self.reached(rank, false)).then_some(claim)
    }

    /// What `rank` claims, if it makes its `sequence`-th call directly, where this one makes it
    /// over links.
    pub(crate) fn direct(&self, rank: usize, sequence: u64) -> Option<Claim> {
        let line = &self.head(rank).line;
        let next = self.number.wrapping_add(1);
        let phase = line.phase.load(Ordering::Acquire);
        let begun = phase.wrapping_sub(next.wrapping_mul(2)).cast_signed() >= 0;
        let [number, fingerprint] = &line.claims[next as usize % 2];
        let fingerprint = fingerprint.load(Ordering::Relaxed);
        let claim = Claim { sequence: number.load(Ordering::Relaxed), fingerprint };
        (begun && claim.sequence == sequence).then_some(claim)
    }

    /// Has `rank` left, after a failure or at the end?
    pub(crate) fn is_closed(&self, rank: usize) -> bool {
        self.head(rank).quiet.closed.load(Ordering::Acquire) != 0
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let head = self.head(self.me);
        head.quiet.closed.store(1, Ordering::Release);
        // Whoever sleeps on this rank's phase looks at `closed` when it wakes.
        self.wake_all(&head.line.phase);
    }
}
