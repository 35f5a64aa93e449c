//! The file of a host's region, which grows, as a communicator uses it: for registered buffers,
//! which peers map when a call first needs them, and for the memory of its subgroups.
//! Law: registering reserves the memory, so a rank that has none left learns of it there and is not
//! killed at a later store.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::growing_file::{FileRange, GrowingFile, HasEnded};
use super::layout::Layout;
use super::words::{RankWords, releases, words};
use crate::error::{Error, Result};
use crate::memory::mapping::Region;

/// The latest releases that a rank's words tell of. A peer that has missed more drops its mappings
/// of all registrations of that rank, in a call in which all ranks agree on what is mapped again.
const RELEASES: u64 = 60;

/// The words of a rank about its registrations.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FileWords {
    /// In the words of rank 0: the first offset of the file that no rank has reserved; 0 as long as
    /// no rank has reserved any.
    pub(super) end: AtomicU64,
    /// In the words of rank 0: the number of a subgroup's ranks that have dropped its memory.
    pub(super) left: AtomicU64,
    /// 1 once the rank has unmapped the memory of a subgroup.
    pub(super) has_left: AtomicU64,
    /// Registrations that the rank has released.
    released: AtomicU64,
}

/// Where the latest registrations that a rank has released began. The lists take pages on use.
pub(super) type ReleaseList = [AtomicU64; RELEASES as usize];

/// The file of a host's region, as one rank uses it. Registrations keep it, whatever becomes of
/// their communicator.
#[derive(Debug)]
pub(crate) struct HostFile {
    me: usize,
    layout: Layout,
    region: Arc<Region>,
    file: Arc<GrowingFile>,
    /// Held while a release is published: threads may drop registrations at the same time.
    releasing: Mutex<()>,
}

impl HostFile {
    /// For the rank with index `me` of `size` ranks that have mapped the start of `fd` as `region`.
    pub(crate) fn new(me: usize, size: usize, region: Arc<Region>, fd: OwnedFd) -> Self {
        let layout = Layout::of(size);
        let file = GrowingFile::new(fd.into(), Arc::clone(&region), layout);
        Self::of((me, layout), region, Arc::new(file))
    }

    fn of((me, layout): (usize, Layout), region: Arc<Region>, file: Arc<GrowingFile>) -> Self {
        assert!(me < layout.size && region.len() >= layout.len().get());
        Self { me, layout, region, file, releasing: Mutex::new(()) }
    }

    /// Reserves the memory of subgroups, `len` bytes that are whole pages and come on use.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the file may not be so long.
    pub(crate) fn reserve_on_use(&self, len: NonZeroUsize) -> Result<FileRange> {
        self.file.reserve_on_use(len)
    }

    /// The file for the rank with index `me` of a subgroup of `size` ranks, whose memory is this
    /// range: a region with `link_bytes` bytes for the words of links, and what follows it.
    /// `has_ended` tells of the processes of its ranks.
    ///
    /// # Errors
    /// If the file has no such pages: the range comes from another rank. If the system refuses.
    pub(crate) fn subgroup(
        &self,
        (me, size): (usize, usize),
        link_bytes: usize,
        range: FileRange,
        has_ended: HasEnded,
    ) -> Result<Self> {
        let layout = Layout::with_links(size, link_bytes);
        let region = self.file.map_subgroup(range, (me, layout), has_ended)?;
        Ok(Self::of((me, layout), Arc::new(region), Arc::clone(&self.file)))
    }

    /// The offset of the words of links in the region of `size` ranks.
    pub(crate) fn link_words_at(size: usize) -> usize {
        Layout::link_words_at(size)
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// The region, mapped with what follows it in a subgroup's memory.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.file().as_fd()
    }

    fn words(&self, rank: usize) -> &FileWords {
        let RankWords { file, .. } = words(&self.region, &self.layout, rank);
        file
    }

    fn releases(&self, rank: usize) -> &ReleaseList {
        releases(&self.region, &self.layout, rank)
    }

    /// Reserves `len` bytes, which are whole pages, with their memory, and that of their release.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is no memory, or if the file may not be so long.
    pub(crate) fn reserve(&self, len: NonZeroUsize) -> Result<FileRange> {
        let list = self.layout.releases(self.me);
        self.region.populate(std::iter::once(list..list + size_of::<ReleaseList>()))?;
        // Where the kernel brings no pages at once, these stores do.
        let [first, .., last] = self.releases(self.me);
        for word in [first, last] {
            word.fetch_or(0, Ordering::Relaxed);
        }
        self.file.reserve(len)
    }

    /// Stores the contents of a range.
    pub(crate) fn write(&self, range: FileRange, bytes: &[u8]) -> Result<()> {
        let wrote = self.file.file().write_all_at(bytes, range.start);
        wrote.map_err(|e| Error::io("sharing a buffer", e))
    }

    /// Maps a range that a rank has reserved.
    ///
    /// # Errors
    /// If the file has no such pages: the range comes from another rank. If the system refuses.
    pub(crate) fn map(&self, range: FileRange) -> Result<Region> {
        self.file.map(range)
    }

    /// Gives the memory of a range of this rank back, and publishes that.
    pub(crate) fn release(&self, range: FileRange) {
        self.file.give_back(range);
        let _releasing = self.releasing.lock().unwrap_or_else(PoisonError::into_inner);
        let (released, starts) = (&self.words(self.me).released, self.releases(self.me));
        let number = released.load(Ordering::Relaxed);
        // A reader that meets this start in place of an older one also sees `number`.
        fence(Ordering::Release);
        starts[(number % RELEASES) as usize].store(range.start, Ordering::Relaxed);
        released.store(number.wrapping_add(1), Ordering::Release);
    }

    /// The number of registrations that this rank has released.
    pub(in crate::memory) fn released(&self) -> u64 {
        self.words(self.me).released.load(Ordering::Relaxed)
    }

    /// The number of registrations that `rank` has released, and the start offsets of those that it
    /// released after the first `seen`; `None` if newer releases have replaced some of them.
    pub(crate) fn released_since(&self, rank: usize, seen: u64) -> (u64, Option<Vec<u64>>) {
        let (released, starts) = (&self.words(rank).released, self.releases(rank));
        let now = released.load(Ordering::Acquire);
        if now.wrapping_sub(seen) > RELEASES {
            return (now, None);
        }
        let start = |number: u64| starts[(number % RELEASES) as usize].load(Ordering::Relaxed);
        let found = (0..now.wrapping_sub(seen)).map(|at| start(seen.wrapping_add(at))).collect();
        fence(Ordering::Acquire);
        // A release that is being published may already have replaced the oldest one.
        let is_whole = released.load(Ordering::Relaxed).wrapping_sub(seen) < RELEASES;
        (now, is_whole.then_some(found))
    }
}
