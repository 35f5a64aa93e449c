//! A live registration: one buffer of each rank, and where its whole pages are mapped here.
//! May touch: pages, region, memory. Unsafe: addresses inside the mappings.
//! Law: views of a buffer are of whole pages that all ranks have in common; no other byte of a
//! rank's memory is in another's reach.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::mapping::Region;
use super::pages::{adopt, make_private, page};
use super::{Dst, Src};
use crate::error::Result;

/// Where a rank's buffer is.
#[derive(Debug)]
pub(crate) struct Part {
    /// The mapping of its shared pages, which begin at the first of the offsets `pages`. That of
    /// this rank itself is not looked at.
    pub(crate) region: Arc<Region>,
    /// The offsets in the buffer that are shared pages; the last may end inside its page.
    pub(crate) pages: Range<usize>,
}

/// A registered buffer of this rank, and its counterparts of the others.
#[derive(Debug)]
pub(crate) struct Live {
    id: u64,
    me: usize,
    start: NonNull<u8>,
    len: usize,
    /// The library's own memory; otherwise pages of the user's were exchanged.
    own: Option<Arc<Region>>,
    /// By rank; empty if not all ranks of the world can map it.
    parts: Vec<Part>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the views of it keep to the
// protocol of `exec::direct`.
unsafe impl Send for Live {}
// SAFETY: as above.
unsafe impl Sync for Live {}

impl Live {
    /// `len` bytes of a mapping of the library's, which is at least as long.
    pub(crate) fn allocated(
        id: u64,
        me: usize,
        len: usize,
        region: Arc<Region>,
        parts: Vec<Part>,
    ) -> Result<Self> {
        assert!(len <= region.len(), "{len} bytes in {}", region.len());
        let start = region.start();
        Ok(Self { id, me, start, len, own: Some(region), parts })
    }

    /// The user's `len` bytes at `start`. Their whole pages become those of `fd`, which has the
    /// same contents.
    ///
    /// # Safety
    /// The memory is the caller's alone, and is not freed before this is dropped. If that never
    /// happens the pages stay shared, and others touch them in calls only that are given this very
    /// memory.
    pub(super) unsafe fn adopted(
        id: u64,
        me: usize,
        start: NonNull<u8>,
        len: usize,
        fd: BorrowedFd<'_>,
        parts: Vec<Part>,
    ) -> Result<Self> {
        // From here on dropping it gives the pages back, whether they are ours yet or not.
        let live = Self { id, me, start, len, own: None, parts };
        if let Some((at, len)) = live.mine() {
            // SAFETY: whole pages of memory that the caller has for itself.
            unsafe { adopt(at, len, fd) }?;
        }
        Ok(live)
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its number, equal on all ranks.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Where it begins for this rank's user.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The offsets in `range` that are whole shared pages of every rank's buffer.
    pub(crate) fn window(&self, range: Range<usize>) -> Range<usize> {
        let mut window = range.clone();
        for Part { pages, .. } in &self.parts {
            let from = range.start.max(pages.start) - pages.start;
            let to = range.end.min(pages.end).saturating_sub(pages.start);
            let to = if range.end < pages.end { to - to % page() } else { to };
            window.start = window.start.max(pages.start + from.next_multiple_of(page()));
            window.end = window.end.min(pages.start + to);
        }
        window
    }

    /// What the buffer of `rank` has at `range`, which lies in a [`Self::window`].
    #[inline]
    pub(crate) fn src(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let len = range.len();
        // SAFETY: `address` checks that the range lies inside the mapping, which lives as long as
        // this, or in this rank's buffer, which the call has borrowed; the protocol of a call says
        // who writes there when.
        unsafe { Src::new(self.address(rank, range), len) }
    }

    /// Where to write to the buffer of `rank`, as [`Self::src`].
    #[inline]
    pub(crate) fn dst(&self, rank: usize, range: Range<usize>) -> Dst<'_> {
        let len = range.len();
        // SAFETY: as above.
        unsafe { Dst::new(self.address(rank, range), len) }
    }

    #[inline]
    fn address(&self, rank: usize, range: Range<usize>) -> *mut u8 {
        let Part { region, pages } = &self.parts[rank];
        assert!(pages.start <= range.start && range.start <= range.end && range.end <= pages.end);
        if rank == self.me {
            return self.start.as_ptr().wrapping_add(range.start);
        }
        region.start().as_ptr().wrapping_add(range.start - pages.start)
    }

    /// This rank's shared pages.
    fn mine(&self) -> Option<(NonNull<u8>, NonZeroUsize)> {
        let pages = &self.parts.get(self.me)?.pages;
        self.pages_at(pages.clone())
    }

    fn pages_at(&self, range: Range<usize>) -> Option<(NonNull<u8>, NonZeroUsize)> {
        let at = NonNull::new(self.start.as_ptr().wrapping_add(range.start))?;
        Some((at, NonZeroUsize::new(range.len().next_multiple_of(page()))?))
    }

    /// Takes `window` out of the others' reach: they may have been late for a call that failed
    /// here, and would write to memory that belongs to the user again. Nobody but that call used
    /// it.
    pub(crate) fn withdraw(&self, window: Range<usize>) {
        let Some(Part { pages, .. }) = self.parts.get(self.me) else { return };
        // All of a window's pages are this rank's, but they may begin elsewhere than the others'.
        let into = (window.start - pages.start) % page();
        let Some((at, len)) = self.pages_at(window.start - into..window.end) else { return };
        // SAFETY: whole pages of a buffer of the failed call, which is not over: nobody in this
        // process writes the buffer, which is lent to the call. Of `all_reduce_into` and
        // `reduce_scatter` the input is lent to be read only, so that others may read it just now:
        // that is why the exchange keeps the contents.
        if let Err(error) = unsafe { make_private(at, len) } {
            tracing::error!(
                "after a failed call: {error}; other ranks can still write there, or there is no \
                 memory there any more and to touch it ends the process"
            );
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mine = self.mine();
        // Gone first: taking pages back needs a mapping, of which there may be none left.
        self.parts.clear();
        if self.own.is_none()
            && let Some((at, len)) = mine
        {
            // SAFETY: the pages that were exchanged, or were to be; the buffer is borrowed until
            // its guard has gone.
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

    /// Two ranks' buffers of three pages, both seen from this process: as each sees its own, and
    /// how the other sees it.
    fn two() -> [Live; 2] {
        let len = NonZeroUsize::new(3 * page()).unwrap();
        let fds = [Region::create(len).unwrap(), Region::create(len).unwrap()];
        let open = |fd: &std::os::fd::OwnedFd| {
            Arc::new(Region::open(fd.as_fd(), len, "this process").unwrap())
        };
        let part = |fd| Part { region: open(fd), pages: 0..len.get() };
        [0, 1].map(|me| {
            let parts = fds.iter().map(part).collect();
            Live::allocated(1, me, len.get(), open(&fds[me]), parts).unwrap()
        })
    }

    fn write(live: &Live, rank: usize, at: usize, byte: u8) {
        let mut dst = live.dst(rank, at..at + 1);
        // SAFETY: one byte of a mapping that nobody else uses now.
        unsafe { dst.ptr().write(byte) };
    }

    fn read(live: &Live, rank: usize, at: usize) -> u8 {
        let src = live.src(rank, at..at + 1);
        // SAFETY: as above.
        unsafe { src.ptr().read() }
    }

    #[test]
    fn what_is_withdrawn_keeps_its_contents_and_nobody_else_reaches_it() {
        let [ours, theirs] = two();
        let page = page();
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
        let [mut live, _other] = two();
        let page = page();
        let pages = |live: &mut Live, ranges: [Range<usize>; 2]| {
            live.parts.iter_mut().zip(ranges).for_each(|(part, pages)| part.pages = pages);
        };
        pages(&mut live, [0..3 * page - 10, 0..3 * page - 10]);
        // The last page is all the buffer's, although the buffer ends inside.
        assert_eq!(live.window(0..3 * page - 10), 0..3 * page - 10);
        assert_eq!(live.window(1..3 * page - 10), page..3 * page - 10);
        assert_eq!(live.window(0..3 * page - 11), 0..2 * page);
        assert!(live.window(1..2 * page - 1).is_empty());
        assert!(live.window(7..9).is_empty());
        // Another rank's pages begin elsewhere.
        pages(&mut live, [0..2 * page, 100..100 + 2 * page]);
        assert_eq!(live.window(0..3 * page - 10), 100..2 * page);
        assert_eq!(live.window(101..3 * page - 10), page + 100..2 * page);
        assert_eq!(live.window(0..2 * page - 1), 100..page);
        // One has none at all.
        pages(&mut live, [0..2 * page, 2000..2000]);
        assert!(live.window(0..3 * page - 10).is_empty());
    }
}
