//! The region of a host: one memory that the ranks of a communicator on that host map. A rank is
//! known here by its index among them. In the region are each rank's words (how far it is, who
//! sleeps for it), the heads of its slots, with little payloads in them, and its stage: slots for
//! the blocks that others read, and result slots for the parts that it folds.
//!
//! Blocks are numbered from 0 through all calls, equally at all ranks; block b is in slot b modulo
//! the number of slots. A head says which block its slot holds and of which call ([`CallId`]), so
//! two ranks that make different calls notice at the first block. `schedule::staged` says when a
//! slot may be used again.
#![allow(unsafe_code)]

mod call_id;
mod file;
mod growing_file;
mod layout;
mod link_call;
mod offer;
mod peer_memory;
mod words;

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::mapping::Region;
use super::{Dst, Src, StorePolicy};
use crate::error::Result;
use crate::schedule::{Phase, StageShape};
use crate::sync::FencedBy;
pub(crate) use call_id::CallId;
pub(crate) use file::HostFile;
pub(crate) use growing_file::FileRange;
use layout::{INLINE, Layout};
pub(crate) use offer::{Answer, BufferPlace, Offer};
pub use peer_memory::is_readable_by_peers;
use words::{RankWords, SlotHead, words};

/// The CPUs that the ranks of a host share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedCpus {
    /// Bytes of the last-level cache, as this rank sees it.
    pub(crate) cache_bytes: usize,
    /// The number of the CPUs.
    pub(crate) cpus: usize,
}

/// The region, as one rank uses it.
#[derive(Debug)]
pub(crate) struct HostRegion {
    /// The index of this rank.
    me: usize,
    /// The ranks of the communicator that share the region, by index; ascending.
    ranks: Box<[usize]>,
    layout: Layout,
    region: Arc<Region>,
    /// The file that begins with the region.
    file: Arc<HostFile>,
    /// Blocks of all calls so far.
    blocks: u64,
    /// The longest payload that this rank's stage has memory for.
    room: usize,
    /// Blocks that no rank reads any more, as far as this rank has seen.
    finished: Cell<u64>,
    /// The latest call over links that this rank has compared with those of its peers.
    compared: Cell<u64>,
    /// This rank's way to fence as a waiter, and as a publisher once it knows those of all waiters.
    as_waiter: FencedBy,
    as_publisher: Cell<FencedBy>,
    /// True if all ranks are threads of this process.
    is_one_process: bool,
    /// Whether slots are filled through the cache or past it.
    policy: RefCell<StorePolicy>,
    /// The addresses of the last two memories that this rank found its peers to be able to read.
    readable: Cell<[(usize, usize); 2]>,
}

impl HostRegion {
    /// Bytes of the region of `size` ranks, with `link_bytes` bytes for the words of links.
    pub(crate) fn len(size: usize, link_bytes: usize) -> NonZeroUsize {
        Layout::with_links(size, link_bytes).len()
    }

    /// For the rank with index `me` of these ranks. The region is zero at first. `is_one_process`:
    /// all ranks are threads of this process.
    pub(crate) fn new(
        (me, ranks): (usize, Box<[usize]>),
        file: Arc<HostFile>,
        machine: SharedCpus,
        is_one_process: bool,
    ) -> Self {
        let (layout, region) = (file.layout(), Arc::clone(file.region()));
        assert!(me < ranks.len() && layout.size == ranks.len());
        let as_waiter = FencedBy::preferred(ranks.len(), machine.cpus);
        let region = Self {
            me,
            ranks,
            layout,
            region,
            file,
            blocks: 0,
            room: INLINE,
            finished: Cell::new(0),
            compared: Cell::new(0),
            as_waiter,
            as_publisher: Cell::new(FencedBy::Publishers),
            is_one_process,
            policy: RefCell::default(),
            readable: Cell::default(),
        };
        let rare = &region.words(me).rare;
        rare.cache.store(machine.cache_bytes as u64, Ordering::Relaxed);
        rare.pid.store(std::process::id(), Ordering::Relaxed);
        rare.fences_as_waiter.store(u32::from(as_waiter == FencedBy::Waiters), Ordering::Relaxed);
        region
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.region.start().as_ptr().wrapping_add(offset)
    }

    fn words(&self, peer: usize) -> &RankWords {
        words(&self.region, &self.layout, peer)
    }

    /// The file that begins with the region.
    pub(crate) fn file(&self) -> &Arc<HostFile> {
        &self.file
    }

    fn head(&self, peer: usize, block: u64) -> &SlotHead {
        // SAFETY: as above; heads begin at multiples of their length.
        unsafe { &*self.at(self.layout.head(peer, block)).cast() }
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.layout.size
    }

    /// The index of this rank.
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// The rank of the communicator with this index.
    pub(crate) fn rank(&self, index: usize) -> usize {
        self.ranks[index]
    }

    /// The index of a rank of the communicator; `None` if it does not share the region.
    pub(crate) fn index(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// The slots of each stage.
    pub(crate) fn shape(&self) -> StageShape {
        self.layout.shape
    }

    /// Bytes of the last-level cache as `peer`, which has been seen before, sees it.
    pub(crate) fn cache(&self, peer: usize) -> u64 {
        self.words(peer).rare.cache.load(Ordering::Relaxed)
    }

    /// The number of the first block of the next call.
    pub(crate) fn next_block(&self) -> u64 {
        self.blocks
    }

    /// Makes memory of this rank's stage for payloads of `len` bytes, and of fewer; or `Exhausted`.
    #[inline]
    pub(crate) fn make_room(&mut self, len: usize) -> Result<()> {
        if len > self.room { self.grow(len) } else { Ok(()) }
    }

    #[cold]
    fn grow(&mut self, len: usize) -> Result<()> {
        let room = self.layout.size_class(len);
        self.region.populate(self.layout.stage(self.me, room))?;
        self.room = room;
        Ok(())
    }

    /// Begins a call of this many blocks; the number of the first.
    pub(crate) fn begin(&mut self, blocks: u64) -> u64 {
        self.blocks += blocks;
        self.blocks - blocks
    }

    /// Blocks that no rank reads any more.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.get()
    }

    /// Notes that every rank has copied in block `first` of its call, or is beyond it: all have
    /// left the calls before.
    pub(crate) fn all_have_begun(&self, first: u64) {
        if self.as_publisher.get() != self.as_waiter {
            let fences = |peer| self.words(peer).rare.fences_as_waiter.load(Ordering::Relaxed) != 0;
            let all = (0..self.size()).all(fences);
            self.as_publisher.set(if all { FencedBy::Waiters } else { FencedBy::Publishers });
        }
        self.finished.set(self.finished.get().max(first));
    }

    /// The start of `range` of the payload of `peer` in `block`, which has `len` bytes in all.
    fn payload(&self, peer: usize, block: u64, len: usize, range: &Range<usize>) -> *mut u8 {
        if len > INLINE {
            return self.at(self.layout.slot(peer, block, len, range));
        }
        assert!(range.start <= range.end && range.end <= len);
        self.at(self.layout.head(peer, block) + size_of::<SlotHead>() + range.start)
    }

    /// `range` of this rank's payload of `len` bytes, to be filled before it is published.
    pub(crate) fn my_slot(&self, block: u64, len: usize, range: Range<usize>) -> Dst<'_> {
        let start = self.payload(self.me, block, len, &range);
        // SAFETY: inside the region (checked), which lives as long as this; no peer reads the slot
        // before it is published.
        unsafe { Dst::new(start, range.len()) }
    }

    /// `range` of the payload of `peer`, whose slot holds the block.
    pub(crate) fn slot(&self, peer: usize, block: u64, len: usize, range: Range<usize>) -> Src<'_> {
        let start = self.payload(peer, block, len, &range);
        // SAFETY: inside the region (checked), which lives as long as this; its owner writes the
        // slot again only after this rank has published that it reads it no more.
        unsafe { Src::new(start, range.len()) }
    }

    /// `range` of this rank's result slot, to be filled before [`Phase::Fold`] is published. The
    /// longest result of the block has `len` bytes.
    pub(crate) fn my_result(&self, block: u64, len: usize, range: Range<usize>) -> Dst<'_> {
        let start = self.at(self.layout.result(self.me, block, len, &range));
        // SAFETY: as for `my_slot`.
        unsafe { Dst::new(start, range.len()) }
    }

    /// `range` of the result slot of `peer`, which has folded the block; `len` as for `my_result`.
    pub(crate) fn result(
        &self,
        peer: usize,
        block: u64,
        len: usize,
        range: Range<usize>,
    ) -> Src<'_> {
        let start = self.at(self.layout.result(peer, block, len, &range));
        // SAFETY: as for `slot`.
        unsafe { Src::new(start, range.len()) }
    }

    /// Fills a slot with `len` bytes by `fill`, which is told whether to store past the cache.
    pub(crate) fn fill_slot(&self, len: usize, fill: impl FnOnce(bool)) {
        let is_streaming = self.policy.borrow_mut().should_stream(len);
        fill(is_streaming);
        self.policy.borrow_mut().slot_filled(len);
    }

    /// True if memory of `len` bytes that is filled beside the slots shall be streamed.
    pub(crate) fn streams(&self, len: usize) -> bool {
        self.policy.borrow().streams(len)
    }

    /// Publishes that this rank's slot holds `block` of this call.
    pub(crate) fn publish_block(&self, block: u64, call_id: CallId) {
        let head = self.head(self.me, block);
        head.sequence.store(call_id.sequence, Ordering::Relaxed);
        head.fingerprint.store(call_id.fingerprint, Ordering::Relaxed);
        head.filled.store(block + 1, Ordering::Release);
        self.words(self.me).progress.waiters.wake(self.as_publisher.get());
    }

    /// Publishes that this rank has completed [`Phase::Fold`] of this many blocks.
    pub(crate) fn publish_folded(&self, blocks: u64) {
        let progress = &self.words(self.me).progress;
        progress.folded.store(blocks, Ordering::Release);
        progress.waiters.wake(self.as_publisher.get());
    }

    /// Publishes that this rank has completed [`Phase::CopyOut`] of this many blocks. It may have
    /// folded more.
    pub(crate) fn publish_copied_out(&self, blocks: u64) {
        let progress = &self.words(self.me).progress;
        progress.copied_out.store(blocks, Ordering::Release);
        progress.waiters.wake(self.as_publisher.get());
    }

    /// Publishes that this rank has completed all phases of this many blocks, and none of another.
    pub(crate) fn publish_finished(&self, blocks: u64) {
        let progress = &self.words(self.me).progress;
        progress.folded.store(blocks, Ordering::Release);
        progress.copied_out.store(blocks, Ordering::Release);
        progress.waiters.wake(self.as_publisher.get());
    }

    /// True if `peer` has completed `phase` of this many blocks: the last of them, of
    /// [`Phase::CopyIn`].
    #[inline]
    pub(crate) fn has(&self, peer: usize, phase: Phase, blocks: u64) -> bool {
        let progress = &self.words(peer).progress;
        let word = match phase {
            Phase::CopyIn => &self.head(peer, blocks - 1).filled,
            Phase::Fold => &progress.folded,
            Phase::CopyOut => &progress.copied_out,
        };
        word.load(Ordering::Acquire) >= blocks
    }

    /// Sleeps until `peer` may have published what makes `has` true, for at most `limit`; may
    /// return early.
    pub(crate) fn sleep(&self, peer: usize, limit: Duration, has: impl Fn() -> bool) {
        let has = || has() || self.is_closed(peer);
        self.words(peer).progress.waiters.sleep(limit, self.as_waiter, has);
    }

    /// The call of which the slot of `peer` holds a block.
    #[inline]
    pub(crate) fn call_of(&self, peer: usize, block: u64) -> CallId {
        let head = self.head(peer, block);
        let fingerprint = head.fingerprint.load(Ordering::Relaxed);
        CallId { sequence: head.sequence.load(Ordering::Relaxed), fingerprint }
    }

    /// The call that `peer` makes over stages under the number `sequence`, while this rank makes
    /// one over links.
    pub(crate) fn staged_call_of(&self, peer: usize, sequence: u64) -> Option<CallId> {
        let has_begun = self.has(peer, Phase::CopyIn, self.blocks + 1);
        has_begun.then(|| self.call_of(peer, self.blocks)).filter(|call| call.sequence == sequence)
    }

    /// True once `peer` has closed its communicator, after a failure or at the end.
    pub(crate) fn is_closed(&self, peer: usize) -> bool {
        self.words(peer).rare.closed.load(Ordering::Acquire) != 0
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        let words = self.words(self.me);
        words.rare.closed.store(1, Ordering::Release);
        self.until_memory_is_unread();
        // A peer that sleeps for this rank checks `closed` when it wakes.
        words.progress.waiters.wake(FencedBy::Publishers);
    }
}
