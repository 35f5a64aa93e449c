//! The file of a host's region, which grows: after the region lie the registered buffers of all
//! ranks, which peers map when a call first needs them.
//! Law: an offset of the file is never used twice, so a mapping of it is of one registration for
//! ever. Registering reserves the memory, so a rank that has none left learns of it there and is
//! not killed at a later store.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nix::sys::stat::fstat;

use super::layout::Layout;
use super::{RankWords, Region, words};
use crate::error::{Error, Result};
use crate::memory::mapping::allocate;
use crate::memory::pages::page_size;
use crate::memory::resource_limit;

/// The latest releases that a rank's words tell of. A peer that has missed more drops its mappings
/// of all registrations of that rank, in a call in which all ranks agree on what is mapped again.
const RELEASES: u64 = 62;

/// The words of a rank about its registrations.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FileWords {
    /// In the words of rank 0: the first offset of the file that no rank has reserved; 0 as long as
    /// no rank has reserved any.
    end: AtomicU64,
    /// Registrations that the rank has released, and where the latest ones began.
    released: AtomicU64,
    starts: [AtomicU64; RELEASES as usize],
}

/// Bytes of the file of a host's region: whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// The file of a host's region, as one rank uses it. Registrations keep it, whatever becomes of
/// their communicator.
#[derive(Debug)]
pub(crate) struct HostFile {
    me: usize,
    layout: Layout,
    region: Arc<Region>,
    file: File,
    /// Held while a release is published: threads may drop registrations at the same time.
    releasing: Mutex<()>,
}

impl HostFile {
    /// For the rank with index `me` of `size` ranks that have mapped the start of `fd` as `region`.
    pub(crate) fn new(me: usize, size: usize, region: Arc<Region>, fd: OwnedFd) -> Self {
        let layout = Layout::of(size);
        assert!(me < size && region.len() >= layout.len().get());
        Self { me, layout, region, file: fd.into(), releasing: Mutex::new(()) }
    }

    /// The start of the file, mapped: the region.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn words(&self, rank: usize) -> &FileWords {
        let RankWords { file, .. } = words(&self.region, &self.layout, rank);
        file
    }

    /// Reserves `len` bytes, which are whole pages, with their memory.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is no memory, or if the file may not be so long.
    pub(crate) fn reserve(&self, len: NonZeroUsize) -> Result<FileRange> {
        let failed =
            |e: io::Error| Error::io(format!("allocating {len} bytes of shared memory"), e);
        resource_limit::check_memory(len.get()).map_err(|e| failed(e.into()))?;
        let (end, len) = (&self.words(0).end, len.get() as u64);
        let after = |reserved: u64| {
            let start = reserved.max(self.layout.len().get() as u64);
            let after = start.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
            Some((start, after.filter(|_| is_page_aligned(start))?))
        };
        let order = Ordering::Relaxed;
        let mut reserved = end.load(order);
        let (start, after) = loop {
            let (start, after) = after(reserved).ok_or_else(|| failed(Errno::ENOMEM.into()))?;
            resource_limit::check_file_size(after).map_err(|e| failed(e.into()))?;
            match end.compare_exchange_weak(reserved, after, order, order) {
                Ok(_) => break (start, after),
                Err(other) => reserved = other,
            }
        };
        let flags = FallocateFlags::empty();
        allocate(&self.file, flags, start as i64, len as i64).map_err(|e| {
            // The offsets can be given back as long as no rank has reserved others.
            let _ = end.compare_exchange(after, start, order, order);
            failed(e)
        })?;
        Ok(FileRange { start, len })
    }

    /// Stores the contents of a range.
    pub(crate) fn write(&self, range: FileRange, bytes: &[u8]) -> Result<()> {
        let wrote = self.file.write_all_at(bytes, range.start);
        wrote.map_err(|e| Error::io("sharing a buffer", e))
    }

    /// Maps a range that a rank has reserved.
    ///
    /// # Errors
    /// If the file has no such pages: the range comes from another rank. If the system refuses.
    pub(crate) fn map(&self, range: FileRange) -> Result<Region> {
        let FileRange { start, len } = range;
        let size = fstat(&self.file).map_err(|e| Error::io("looking at shared memory", e))?.st_size;
        let is_inside = start >= self.layout.len().get() as u64
            && start.checked_add(len).is_some_and(|end| end <= size.unsigned_abs());
        let offset = i64::try_from(start).ok().filter(|_| is_inside && is_page_aligned(start));
        let pages = usize::try_from(len).ok().and_then(NonZeroUsize::new);
        let pages = pages.filter(|_| is_page_aligned(len));
        let Some((offset, pages)) = offset.zip(pages) else {
            let what = format!("mapping bytes {start}..+{len} of a file of {size}");
            return Err(Error::io(what, Errno::EINVAL));
        };
        Region::map_range(self.file.as_fd(), offset, pages)
    }

    /// Gives the memory of a range of this rank back, and publishes that.
    pub(crate) fn release(&self, FileRange { start, len }: FileRange) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Err(error) = allocate(&self.file, flags, start as i64, len as i64) {
            tracing::warn!("{len} bytes of registered memory stay allocated: {error}");
        }
        let _releasing = self.releasing.lock().unwrap_or_else(PoisonError::into_inner);
        let FileWords { released, starts, .. } = self.words(self.me);
        let number = released.load(Ordering::Relaxed);
        // A reader that meets this start in place of an older one also sees `number`.
        fence(Ordering::Release);
        starts[(number % RELEASES) as usize].store(start, Ordering::Relaxed);
        released.store(number.wrapping_add(1), Ordering::Release);
    }

    /// The number of registrations that this rank has released.
    pub(in crate::memory) fn released(&self) -> u64 {
        self.words(self.me).released.load(Ordering::Relaxed)
    }

    /// The number of registrations that `rank` has released, and the start offsets of those that it
    /// released after the first `seen`; `None` if newer releases have replaced some of them.
    pub(crate) fn released_since(&self, rank: usize, seen: u64) -> (u64, Option<Vec<u64>>) {
        let FileWords { released, starts, .. } = self.words(rank);
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

fn is_page_aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(page_size() as u64)
}
