//! The file that begins with a host's region and grows: after the region lie the registered buffers
//! of all ranks, and the memory of subgroups with their own regions and links.
//! Law: an offset of the file is never used twice, so a mapping of it is of one registration or one
//! subgroup for ever.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::layout::Layout;
use super::{RankWords, Region, words};
use crate::error::{Error, Result};
use crate::memory::mapping::allocate;
use crate::memory::pages::page_size;
use crate::memory::resource_limit;
use crate::sync::Process;

/// Bytes of the file: whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// Whether the process of a rank has ended.
pub(crate) type HasEnded = Box<dyn Fn(usize) -> bool + Send + Sync>;

/// The file, for all communicators of this process that use it.
#[derive(Debug)]
pub(super) struct GrowingFile {
    file: File,
    /// The start of the file: the region of the communicator that made it.
    region: Arc<Region>,
    layout: Layout,
}

impl GrowingFile {
    pub(super) fn new(file: File, region: Arc<Region>, layout: Layout) -> Self {
        assert!(region.len() >= layout.len().get());
        Self { file, region, layout }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The first offset that no rank has reserved; 0 as long as no rank has reserved any.
    fn end(&self) -> &AtomicU64 {
        let RankWords { file, .. } = words(&self.region, &self.layout, 0);
        &file.end
    }

    /// The first offset behind the region.
    fn first(&self) -> u64 {
        self.layout.len().get() as u64
    }

    /// Reserves `len` bytes, which are whole pages, with their memory.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is no memory, or if the file may not be so long.
    pub(super) fn reserve(&self, len: NonZeroUsize) -> Result<FileRange> {
        let checked = resource_limit::check_memory(len.get()).map_err(io::Error::from);
        let range = checked.and_then(|()| {
            self.reserve_by(len, |start, len| {
                allocate(&self.file, FallocateFlags::empty(), start, len)
            })
        });
        range.map_err(|e| Error::io(format!("allocating {len} bytes of shared memory"), e))
    }

    /// Reserves `len` bytes, which are whole pages, whose memory comes on use.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the file may not be so long.
    pub(super) fn reserve_on_use(&self, len: NonZeroUsize) -> Result<FileRange> {
        let range = self.reserve_by(len, |start, len| {
            let end = start + len;
            match ftruncate(&self.file, end) {
                // Another rank has made the file longer meanwhile, and nobody can make it shorter.
                Err(Errno::EPERM) if fstat(&self.file)?.st_size >= end => Ok(()),
                done => done.map_err(Into::into),
            }
        });
        range.map_err(|e| Error::io(format!("making a file {len} bytes longer"), e))
    }

    /// Reserves bytes that `make` makes, from an offset on.
    fn reserve_by(
        &self,
        len: NonZeroUsize,
        make: impl FnOnce(i64, i64) -> io::Result<()>,
    ) -> io::Result<FileRange> {
        let (end, len) = (self.end(), len.get() as u64);
        let after = |reserved: u64| {
            let start = reserved.max(self.first());
            let after = start.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
            Some((start, after.filter(|_| is_page_aligned(start))?))
        };
        let order = Ordering::Relaxed;
        let mut reserved = end.load(order);
        let (start, after) = loop {
            let (start, after) = after(reserved).ok_or(Errno::ENOMEM)?;
            resource_limit::check_file_size(after)?;
            match end.compare_exchange_weak(reserved, after, order, order) {
                Ok(_) => break (start, after),
                Err(other) => reserved = other,
            }
        };
        make(start as i64, len as i64).inspect_err(|_| {
            // The offsets can be given back as long as no rank has reserved others.
            let _ = end.compare_exchange(after, start, order, order);
        })?;
        Ok(FileRange { start, len })
    }

    /// Maps a range that a rank has reserved.
    ///
    /// # Errors
    /// If the file has no such pages: the range comes from another rank. If the system refuses.
    pub(super) fn map(&self, range: FileRange) -> Result<Region> {
        let FileRange { start, len } = range;
        let size = fstat(&self.file).map_err(|e| Error::io("looking at shared memory", e))?.st_size;
        let is_inside = start >= self.first()
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

    /// Maps the memory of a subgroup for its rank `me`, a range that begins with the region of this
    /// layout. The last rank that unmaps it gives the memory back; ranks whose process `has_ended`
    /// unmap nothing.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub(super) fn map_subgroup(
        self: &Arc<Self>,
        range: FileRange,
        (me, layout): (usize, Layout),
        has_ended: HasEnded,
    ) -> Result<Region> {
        let region = self.map(range)?;
        assert!(region.len() >= layout.len().get());
        let (file, process) = (Arc::clone(self), Process::default());
        Ok(region.with_unmap_hook(Box::new(move |region| {
            // A forked child leaves nothing: its parent does.
            if !process.is_current() {
                return;
            }
            let words = |rank| &words(region, &layout, rank).file;
            words(me).has_left.store(1, Ordering::SeqCst);
            let left = words(0).left.fetch_add(1, Ordering::SeqCst) + 1;
            let mut others = (0..layout.size).filter(|&rank| rank != me);
            // The words are read only if a rank has ended: another one may give them back by now.
            let has_lost = left < layout.size as u64 && others.clone().any(&has_ended);
            let is_gone = |rank| words(rank).has_left.load(Ordering::SeqCst) != 0;
            if left == layout.size as u64
                || has_lost && others.all(|rank| has_ended(rank) || is_gone(rank))
            {
                file.give_back(range);
            }
        })))
    }

    /// Gives the memory of a range back.
    pub(super) fn give_back(&self, FileRange { start, len }: FileRange) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Err(error) = allocate(&self.file, flags, start as i64, len as i64) {
            tracing::warn!("{len} bytes of shared memory stay allocated: {error}");
        }
    }
}

fn is_page_aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(page_size() as u64)
}
