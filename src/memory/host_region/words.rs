//! The words in a host's region.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::file::{FileWords, ReleaseList};
use super::layout::Layout;
use super::offer::OfferWords;
use crate::memory::mapping::Region;
use crate::sync::Waiters;

/// The words of a rank: two pairs of cache lines, as CPUs fetch them. The lines of a pair are
/// written in calls of different kinds, but for the word of a copy among threads.
#[repr(C, align(128))]
pub(super) struct RankWords {
    pub(super) progress: Progress,
    pub(super) rare: RareWords,
    pub(super) offer: OfferWords,
    pub(super) file: FileWords,
}

const _: () = assert!(size_of::<RankWords>() == 256);

/// The cache line that a rank writes at the end of each phase.
#[repr(C, align(64))]
pub(super) struct Progress {
    /// Blocks for which the rank has completed [`Phase::Fold`] and [`Phase::CopyOut`].
    pub(super) folded: AtomicU64,
    pub(super) copied_out: AtomicU64,
    /// The ranks that sleep for this one.
    pub(super) waiters: Waiters,
}

/// The cache line that is not written in calls over stages.
#[repr(C, align(64))]
pub(super) struct RareWords {
    /// Sequence number and fingerprint of the rank's latest call over links.
    pub(super) link_call: [AtomicU64; 2],
    /// 1 once the rank has closed its communicator.
    pub(super) closed: AtomicU32,
    /// 1 if the rank prefers [`FencedBy::Waiters`].
    pub(super) fences_as_waiter: AtomicU32,
    /// Bytes of the last-level cache, as that rank sees it.
    pub(super) cache: AtomicU64,
    /// The number of the rank's process.
    pub(super) pid: AtomicU32,
    /// The rank whose memory a thread copies, plus 1; 0 while it copies none.
    pub(super) copies_from: AtomicU32,
}

/// The words at the start of a slot's head.
#[repr(C)]
pub(super) struct SlotHead {
    /// The number of the block that the slot holds, plus 1.
    pub(super) filled: AtomicU64,
    pub(super) sequence: AtomicU64,
    pub(super) fingerprint: AtomicU64,
}

/// The words of a rank in a region that is as long as the layout says.
pub(super) fn words<'a>(region: &'a Region, layout: &Layout, rank: usize) -> &'a RankWords {
    // SAFETY: inside the region (checked where it is taken, for the layout, which checks the rank),
    // which is page-aligned and starts zeroed; every field is atomic, and zero is valid for all.
    unsafe { &*region.start().as_ptr().wrapping_add(layout.words(rank)).cast() }
}

/// The list of a rank's releases in such a region.
pub(super) fn releases<'a>(region: &'a Region, layout: &Layout, rank: usize) -> &'a ReleaseList {
    // SAFETY: as above; the list begins at a multiple of eight bytes, and is of such words.
    unsafe { &*region.start().as_ptr().wrapping_add(layout.releases(rank)).cast() }
}
