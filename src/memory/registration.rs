//! A registration: one buffer of each rank, and where its whole shared pages are mapped in this
//! process.
//! Law: views of a peer's buffer lie in whole pages that all ranks share; no other byte of a rank
//! is accessible to a peer.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::mapping::Region;
use super::pages::{adopt, make_private, page_size};
use super::{Dst, Src};
use crate::error::Result;

/// The shared pages of one rank's buffer, as mapped here.
#[derive(Debug)]
pub(crate) struct RegisteredPart {
    /// The mapping of the shared pages; it begins at offset `pages.start` of the buffer. Unused for
    /// this rank's own part.
    pub(crate) region: Arc<Region>,
    /// The offsets of the shared pages in the buffer; the last page may extend beyond the buffer.
    pub(crate) pages: Range<usize>,
}

/// A registered buffer of this rank, with the buffers of its peers.
#[derive(Debug)]
pub(crate) struct Registration {
    id: u64,
    me: usize,
    start: NonNull<u8>,
    len: usize,
    /// The mapping if the library allocated the memory; `None` if pages of the user were replaced.
    allocation: Option<Arc<Region>>,
    /// By rank; empty if not all ranks can map the buffer.
    parts: Vec<RegisteredPart>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the views of it keep to the
// protocol of `exec::direct`.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `len` bytes at the start of a mapping that the library made.
    pub(crate) fn allocated(
        id: u64,
        me: usize,
        len: usize,
        region: Arc<Region>,
        parts: Vec<RegisteredPart>,
    ) -> Result<Self> {
        assert!(len <= region.len(), "{len} bytes in {}", region.len());
        let start = region.start();
        Ok(Self { id, me, start, len, allocation: Some(region), parts })
    }

    /// Registers the user's `len` bytes at `start`: their whole pages are replaced by those of
    /// `fd`, which has the same contents.
    ///
    /// # Safety
    /// The memory is the caller's alone, and is not freed before this is dropped. If this is never
    /// dropped, the pages stay shared, and peers access them only in calls on this very memory.
    pub(super) unsafe fn adopted(
        id: u64,
        me: usize,
        start: NonNull<u8>,
        len: usize,
        fd: BorrowedFd<'_>,
        parts: Vec<RegisteredPart>,
    ) -> Result<Self> {
        // From here on a drop restores private pages, whether or not they have been replaced yet.
        let registration = Self { id, me, start, len, allocation: None, parts };
        if let Some((at, len)) = registration.mine() {
            // SAFETY: whole pages of memory that the caller has for itself.
            unsafe { adopt(at, len, fd) }?;
        }
        Ok(registration)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of the registration, equal on all ranks.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The first byte of this rank's buffer.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The part of `range` that lies in whole pages shared by every rank's buffer.
    pub(crate) fn window(&self, range: Range<usize>) -> Range<usize> {
        let mut window = range.clone();
        for RegisteredPart { pages, .. } in &self.parts {
            let from = range.start.max(pages.start) - pages.start;
            let to = range.end.min(pages.end).saturating_sub(pages.start);
            let to = if range.end < pages.end { to - to % page_size() } else { to };
            window.start = window.start.max(pages.start + from.next_multiple_of(page_size()));
            window.end = window.end.min(pages.start + to);
        }
        window
    }

    /// The data of `rank` at `range`, which lies in a [`Self::window`].
    #[inline]
    pub(crate) fn src(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let len = range.len();
        // SAFETY: `address` checks that the range lies inside the mapping, which lives as long as
        // this, or in this rank's buffer, which the call has borrowed; the protocol of a call says
        // which rank writes there when.
        unsafe { Src::new(self.address(rank, range), len) }
    }

    /// The memory of `rank` at `range`, to write to; as [`Self::src`].
    #[inline]
    pub(crate) fn dst(&self, rank: usize, range: Range<usize>) -> Dst<'_> {
        let len = range.len();
        // SAFETY: as above.
        unsafe { Dst::new(self.address(rank, range), len) }
    }

    #[inline]
    fn address(&self, rank: usize, range: Range<usize>) -> *mut u8 {
        let RegisteredPart { region, pages } = &self.parts[rank];
        assert!(pages.start <= range.start && range.start <= range.end && range.end <= pages.end);
        if rank == self.me {
            return self.start.as_ptr().wrapping_add(range.start);
        }
        region.start().as_ptr().wrapping_add(range.start - pages.start)
    }

    /// This rank's shared pages: address and length.
    fn mine(&self) -> Option<(NonNull<u8>, NonZeroUsize)> {
        let pages = &self.parts.get(self.me)?.pages;
        self.pages_at(pages.clone())
    }

    /// The address of `range` of this rank's buffer, and its length in whole pages.
    fn pages_at(&self, range: Range<usize>) -> Option<(NonNull<u8>, NonZeroUsize)> {
        let at = NonNull::new(self.start.as_ptr().wrapping_add(range.start))?;
        Some((at, NonZeroUsize::new(range.len().next_multiple_of(page_size()))?))
    }

    /// Makes `window` private again after a call that failed here: a peer that is late in that call
    /// would otherwise write to memory that belongs to the user again. Only that call used the
    /// window.
    pub(crate) fn withdraw(&self, window: Range<usize>) {
        let Some(RegisteredPart { pages, .. }) = self.parts.get(self.me) else { return };
        // A window's pages all belong to this rank, but may begin elsewhere than its peers' pages.
        let into = (window.start - pages.start) % page_size();
        let Some((at, len)) = self.pages_at(window.start - into..window.end) else { return };
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
        let mine = self.mine();
        // The mappings are dropped first: a replacement needs one, and their number is limited.
        self.parts.clear();
        if self.allocation.is_none()
            && let Some((at, len)) = mine
        {
            // SAFETY: the pages that were replaced, or were to be; the buffer is borrowed until its
            // guard has been dropped.
            if let Err(error) = unsafe { make_private(at, len) } {
                tracing::error!(
                    "{error}; it stays shared memory, or there is no memory there any more and to \
                     touch it ends the process"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// The registrations of two ranks, each with a buffer of three pages; both in this process.
    fn two() -> [Registration; 2] {
        let len = NonZeroUsize::new(3 * page_size()).unwrap();
        let fds = [Region::create(len).unwrap(), Region::create(len).unwrap()];
        let open = |fd: &std::os::fd::OwnedFd| {
            Arc::new(Region::open(fd.as_fd(), len, "this process").unwrap())
        };
        let part = |fd| RegisteredPart { region: open(fd), pages: 0..len.get() };
        [0, 1].map(|me| {
            let parts = fds.iter().map(part).collect();
            Registration::allocated(1, me, len.get(), open(&fds[me]), parts).unwrap()
        })
    }

    fn write(registration: &Registration, rank: usize, at: usize, byte: u8) {
        let mut dst = registration.dst(rank, at..at + 1);
        // SAFETY: one byte of a mapping that nobody else uses now.
        unsafe { dst.ptr().write(byte) };
    }

    fn read(registration: &Registration, rank: usize, at: usize) -> u8 {
        let src = registration.src(rank, at..at + 1);
        // SAFETY: as above.
        unsafe { src.ptr().read() }
    }

    #[test]
    fn withdrawn_pages_keep_their_contents_and_are_no_longer_shared() {
        let [ours, theirs] = two();
        let page = page_size();
        for at in [5, page + 5, 2 * page + 5] {
            write(&theirs, 0, at, 7);
            assert_eq!(read(&ours, 0, at), 7);
        }
        ours.withdraw(page..2 * page);
        for at in [5, page + 5, 2 * page + 5] {
            assert_eq!(read(&ours, 0, at), 7);
            write(&theirs, 0, at, 8);
            let reached = at / page != 1;
            assert_eq!(read(&ours, 0, at), if reached { 8 } else { 7 }, "{at}");
        }
        write(&ours, 0, page, 9);
        assert_eq!(read(&theirs, 0, page), 0);
        write(&theirs, 1, 0, 3);
        assert_eq!(read(&ours, 1, 0), 3, "the other's own buffer stays shared");
    }

    #[test]
    fn a_window_is_the_whole_pages_that_all_ranks_have() {
        let [mut registration, _other] = two();
        let page = page_size();
        let pages = |registration: &mut Registration, ranges: [Range<usize>; 2]| {
            registration.parts.iter_mut().zip(ranges).for_each(|(part, pages)| part.pages = pages);
        };
        pages(&mut registration, [0..3 * page - 10, 0..3 * page - 10]);
        // The last page counts as whole although the buffer ends inside it.
        assert_eq!(registration.window(0..3 * page - 10), 0..3 * page - 10);
        assert_eq!(registration.window(1..3 * page - 10), page..3 * page - 10);
        assert_eq!(registration.window(0..3 * page - 11), 0..2 * page);
        assert!(registration.window(1..2 * page - 1).is_empty());
        assert!(registration.window(7..9).is_empty());
        // The pages of another rank begin at another offset.
        pages(&mut registration, [0..2 * page, 100..100 + 2 * page]);
        assert_eq!(registration.window(0..3 * page - 10), 100..2 * page);
        assert_eq!(registration.window(101..3 * page - 10), page + 100..2 * page);
        assert_eq!(registration.window(0..2 * page - 1), 100..page);
        // One rank has no whole page.
        pages(&mut registration, [0..2 * page, 2000..2000]);
        assert!(registration.window(0..3 * page - 10).is_empty());
    }
}
