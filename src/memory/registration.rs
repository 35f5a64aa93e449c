//! A registration: one buffer of this rank, whose whole pages are pages of the file of its host's
//! region.
//! Law: peers access whole pages of the buffer alone, and only in calls on it. No call outlives its
//! registration, since it holds it.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::host_region::{BufferPlace, FileRange, HostFile};
use super::mapping::Region;
use super::pages::{adopt, make_private, page_rounded, page_size, whole_pages};
use crate::error::Result;

/// A registered buffer of this rank.
#[derive(Debug)]
pub(crate) struct Registration {
    start: NonNull<u8>,
    len: usize,
    /// The mapping if the library allocated the memory; `None` if pages of the user were replaced.
    allocation: Option<Region>,
    /// `None` if the ranks do not share memory, or the buffer has no whole page.
    shared: Option<SharedPages>,
}

/// The whole pages of a buffer. Dropping this gives their memory back.
#[derive(Debug)]
struct SharedPages {
    file: Arc<HostFile>,
    range: FileRange,
    /// The offsets of the pages in the buffer; the last page may extend beyond the buffer.
    pages: Range<usize>,
    /// The process that registered them. A forked child has the pages too, but not the say.
    pid: u32,
    /// True once all ranks have mapped the pages.
    is_mapped: AtomicBool,
    /// True once a call on the pages has failed here: peers that complete it still read them.
    is_withdrawn: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the views of it keep to the
// protocol of `exec::direct`.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Allocates `len` bytes, all zero, in the file if there is one.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn allocated(len: usize, file: Option<&Arc<HostFile>>) -> Result<Self> {
        let shared = file.map(|file| SharedPages::reserve(file, 0..len)).transpose()?;
        let allocation = match &shared {
            Some(shared) => shared.file.map(shared.range)?,
            None => Region::anonymous(page_rounded(len))?,
        };
        Ok(Self { start: allocation.start(), len, allocation: Some(allocation), shared })
    }

    /// Registers the user's `len` bytes at `start`: their whole pages are replaced by pages of the
    /// file, with the same contents. Without a file the memory stays as it is.
    ///
    /// # Errors
    /// If there is no memory; the bytes are then as they were.
    ///
    /// # Safety
    /// The memory is the caller's alone, and is not freed before this is dropped. If this is never
    /// dropped, the pages stay shared, and peers access them only in calls on this very memory.
    pub(super) unsafe fn adopted(
        start: NonNull<u8>,
        len: usize,
        file: Option<&Arc<HostFile>>,
    ) -> Result<Self> {
        let pages = whole_pages(start, len);
        let file = file.filter(|_| !pages.is_empty());
        let shared = file.map(|file| SharedPages::reserve(file, pages)).transpose()?;
        // From here on a drop restores private pages, whether or not they have been replaced yet.
        let registration = Self { start, len, allocation: None, shared };
        if let Some(SharedPages { file, range, pages, .. }) = &registration.shared
            && let Some((at, len)) = registration.pages_at(pages.clone())
        {
            // SAFETY: whole pages of memory that the caller has for itself.
            file.write(*range, unsafe { NonNull::slice_from_raw_parts(at, len.get()).as_ref() })?;
            // SAFETY: as above; the file has their contents now.
            unsafe { adopt(at, len, (file.descriptor(), range.start as i64)) }?;
        }
        Ok(registration)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte of the buffer.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The part of `range` that lies in shared pages which are wholly of the range.
    pub(crate) fn window(&self, range: Range<usize>) -> Range<usize> {
        let Some(SharedPages { pages, .. }) = &self.shared else { return range.start..range.start };
        let from = range.start.max(pages.start) - pages.start;
        let to = range.end.min(pages.end).saturating_sub(pages.start);
        let to = if range.end < pages.end { to - to % page_size() } else { to };
        let start = pages.start + from.next_multiple_of(page_size());
        if start < pages.start + to { start..pages.start + to } else { range.start..range.start }
    }

    /// Where `range` lies in the file.
    pub(crate) fn place(&self, range: Range<usize>) -> BufferPlace {
        let window = self.window(range.clone());
        let Some(shared) = self.shared.as_ref().filter(|_| !window.is_empty()) else {
            return BufferPlace { tail: range.len() as u32, ..BufferPlace::default() };
        };
        let edge = |from: usize, to: usize| (to - from) as u32;
        let (lead, tail) = (edge(range.start, window.start), edge(window.end, range.end));
        let at = shared.range.start + (window.start - shared.pages.start) as u64;
        BufferPlace { pages: shared.range, at, lead, tail }
    }

    /// True once all ranks have mapped the shared pages.
    pub(crate) fn is_mapped(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.is_mapped.load(Ordering::Relaxed))
    }

    /// Notes that all ranks have mapped the shared pages, which they keep until this is dropped.
    pub(crate) fn set_mapped(&self) {
        if let Some(shared) = &self.shared {
            shared.is_mapped.store(true, Ordering::Relaxed);
        }
    }

    /// The address of `range`, and its length in whole pages.
    fn pages_at(&self, range: Range<usize>) -> Option<(NonNull<u8>, NonZeroUsize)> {
        let at = NonNull::new(self.start.as_ptr().wrapping_add(range.start))?;
        Some((at, NonZeroUsize::new(range.len().next_multiple_of(page_size()))?))
    }

    /// Makes the [`Self::window`] of `range` private again after a call on it that failed here: a
    /// peer that is late in that call would otherwise write to memory that belongs to the user
    /// again. Only that call used the range.
    pub(crate) fn withdraw(&self, range: Range<usize>) {
        if let Some(shared) = &self.shared {
            shared.is_withdrawn.store(true, Ordering::Relaxed);
        }
        let Some((at, len)) = self.pages_at(self.window(range)) else { return };
        // SAFETY: whole pages of a buffer of the failed call, which is not over: no thread of this
        // process writes the buffer, which is lent to the call. The input of `all_reduce_into` and
        // `reduce_scatter` is lent for reading only, so other threads may read it now: hence the
        // exchange keeps the contents.
        if let Err(error) = unsafe { make_private(at, len) } {
            tracing::error!(
                "after a failed call: {error}; other ranks can still write there, or there is no \
                 memory there any more and to touch it ends the process"
            );
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let pages = self.shared.as_ref().map(|shared| shared.pages.clone());
        if self.allocation.is_none()
            && let Some((at, len)) = pages.and_then(|pages| self.pages_at(pages))
        {
            // SAFETY: the pages that were replaced, or were to be; the buffer is borrowed until its
            // guard has been dropped.
            if let Err(error) = unsafe { make_private(at, len) } {
                tracing::error!(
                    "{error}; it stays shared memory, or there is no memory there any more and to \
                     touch it ends the process"
                );
                // The user still has the pages.
                std::mem::forget(self.shared.take());
            }
        }
    }
}

impl SharedPages {
    /// Reserves room in the file for these bytes of a buffer.
    fn reserve(file: &Arc<HostFile>, pages: Range<usize>) -> Result<Self> {
        let range = file.reserve(page_rounded(pages.len()))?;
        let (file, pid) = (Arc::clone(file), std::process::id());
        let [is_mapped, is_withdrawn] = [const { AtomicBool::new(false) }; 2];
        Ok(Self { file, range, pages, pid, is_mapped, is_withdrawn })
    }
}

impl Drop for SharedPages {
    /// Pages of a failed call stay as they are until all ranks have closed the file: this rank may
    /// have failed after it had done its part, so that its peers succeed.
    fn drop(&mut self) {
        if self.pid == std::process::id() && !self.is_withdrawn.load(Ordering::Relaxed) {
            self.file.release(self.range);
        }
    }
}
