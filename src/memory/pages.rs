//! Replacing the pages of a buffer in place, at the same address and with the same contents: the
//! user's pages by those of a memfd, and back.
//! Law: one system call replaces the pages, so another thread that accesses them meanwhile finds
//! the old or the new ones, or waits. If that call fails, an old kernel may already have unmapped
//! the pages (it ran out of memory or of mappings); the caller can only report it.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::LazyLock;

use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mremap, munmap};
use nix::unistd::{SysconfVar, sysconf};

use crate::error::{Error, Result};

const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

pub(crate) fn page_size() -> usize {
    static PAGE: LazyLock<usize> = LazyLock::new(|| {
        let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
    });
    *PAGE
}

/// The range of whole pages in `len` bytes at `start`, as offsets; `len..len` if there are none.
pub(crate) fn whole_pages(start: NonNull<u8>, len: usize) -> Range<usize> {
    let first = start.align_offset(page_size()).min(len);
    let end = len - (len - first) % page_size();
    if first < end { first..end } else { len..len }
}

/// `bytes` rounded up to whole pages, at least one.
pub(super) fn page_rounded(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(bytes.max(1).next_multiple_of(page_size()) - 1)
}

/// Maps the memory behind `fd`, from byte `offset` on, over `len` bytes at `start`.
///
/// # Errors
/// If the system refuses. The bytes are then unchanged, or no longer mapped.
///
/// # Safety
/// The bytes are whole mapped pages that the caller may write and no one else uses meanwhile; `fd`
/// has the same contents from `offset` on.
pub(super) unsafe fn adopt(
    start: NonNull<u8>,
    len: NonZeroUsize,
    (fd, offset): (BorrowedFd<'_>, i64),
) -> Result<()> {
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_POPULATE;
    let at = NonZeroUsize::new(start.as_ptr().addr());
    // SAFETY: the caller's promise: the pages are ours to replace, and what replaces them reads
    // the same.
    unsafe { mmap(at, len, RW, flags, fd, offset) }
        .map(drop)
        .map_err(|e| Error::io(format!("sharing {len} bytes of a buffer in place"), e))
}

/// Replaces `len` bytes at `start` by private pages of this process with the same contents. Bytes
/// that another process writes to the shared pages meanwhile may or may not be among the contents.
///
/// # Errors
/// As [`adopt`].
///
/// # Safety
/// The bytes are whole mapped pages that no thread of this process writes meanwhile. Threads may
/// read them: the contents are the same before and after.
pub(super) unsafe fn make_private(start: NonNull<u8>, len: NonZeroUsize) -> Result<()> {
    let failed = |e| Error::io(format!("taking {len} bytes of a buffer back"), e);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let fresh = unsafe { mmap_anonymous(None, len, RW, MapFlags::MAP_PRIVATE) }.map_err(failed)?;
    // SAFETY: both are mapped for `len` bytes, and the new one is ours alone. A peer that still
    // writes the old pages does so through its own mapping: this copy treats them as memory that a
    // device changes, of which any bytes will do.
    unsafe { start.copy_to_nonoverlapping(fresh.cast(), len.get()) };
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the caller's promise: no thread writes the pages, and a thread that reads them finds
    // the same bytes in the new ones.
    let moved = unsafe { mremap(fresh, len.get(), len.get(), flags, Some(start.cast())) };
    moved.map(drop).map_err(|e| {
        // SAFETY: the new mapping is still where it was, and nothing else refers to it.
        let _ = unsafe { munmap(fresh, len.get()) };
        failed(e)
    })
}
