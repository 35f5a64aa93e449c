//! Pages whose backing is exchanged in place: the user's for a memfd's, with the same contents at
//! the same address, and back. May touch: the mappings of link. Unsafe: mapping over memory.
//! Law: one system call makes the exchange, so that whoever uses the memory meanwhile finds either
//! or waits. Where it fails the kernel may have unmapped the pages by then (older ones do, when
//! they run out of memory or of mappings): the caller can but say so.
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

/// Bytes of a page.
pub(crate) fn page() -> usize {
    static PAGE: LazyLock<usize> = LazyLock::new(|| {
        let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
    });
    *PAGE
}

/// The offsets in `len` bytes at `start` that are whole pages; empty at the end if there are none.
pub(crate) fn whole_pages(start: NonNull<u8>, len: usize) -> Range<usize> {
    let head = start.align_offset(page()).min(len);
    let end = len - (len - head) % page();
    if head < end { head..end } else { len..len }
}

/// Puts the memory behind `fd` in the place of `len` bytes at `start`.
///
/// # Errors
/// If the system refuses. The bytes are then as they were, or mapped no more.
///
/// # Safety
/// The bytes are whole mapped pages that the caller may write and nobody else uses meanwhile; `fd`
/// has the same contents.
pub(super) unsafe fn adopt(
    start: NonNull<u8>,
    len: NonZeroUsize,
    fd: BorrowedFd<'_>,
) -> Result<()> {
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_POPULATE;
    let at = NonZeroUsize::new(start.as_ptr().addr());
    // SAFETY: the caller's promise: the pages are ours to replace, and what replaces them reads
    // the same.
    unsafe { mmap(at, len, RW, flags, fd, 0) }
        .map(drop)
        .map_err(|e| Error::io(format!("sharing {len} bytes of a buffer in place"), e))
}

/// Puts ordinary pages of this process alone, with the same contents, in the place of `len` bytes
/// at `start`. What others write to the shared pages meanwhile, by mappings of their own, may or
/// may not be among the contents.
///
/// # Errors
/// As [`adopt`].
///
/// # Safety
/// The bytes are whole mapped pages that nobody writes by their addresses meanwhile. They may be
/// read: they have the same contents before and after.
pub(super) unsafe fn make_private(start: NonNull<u8>, len: NonZeroUsize) -> Result<()> {
    let failed = |e| Error::io(format!("taking {len} bytes of a buffer back"), e);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let fresh = unsafe { mmap_anonymous(None, len, RW, MapFlags::MAP_PRIVATE) }.map_err(failed)?;
    // SAFETY: both are mapped for `len` bytes, and the new one is ours alone. Who writes the old
    // ones late does so by other addresses: to this copy they are memory that a device changes, of
    // which any bytes will do.
    unsafe { start.copy_to_nonoverlapping(fresh.cast(), len.get()) };
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the caller's promise: nobody writes the pages, and who reads them reads the same of
    // what replaces them.
    let moved = unsafe { mremap(fresh, len.get(), len.get(), flags, Some(start.cast())) };
    moved.map(drop).map_err(|e| {
        // SAFETY: the new mapping is still where it was, and nobody knows of it.
        let _ = unsafe { munmap(fresh, len.get()) };
        failed(e)
    })
}
