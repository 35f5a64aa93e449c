//! Control blocks: shared memory of each rank that all ranks and all devices see. An operation slot
//! in it has the words by which the streams of a call synchronize, and the addresses that kernels
//! read. Behind the slots are the rank's announcements of memory.
//! Law: streams alone set a call's words to 1 and back to 0, so that a graph can launch the call
//! again; a rank that has seen all workers done may overwrite what their kernels read.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use cudarc::driver::sys::CUdeviceptr;

use super::failure::OperationHeader;
use super::peer_memory::announcements_bytes;
use super::pinned::Pinned;
use super::slot_layout::{
    ADDRESS, CACHE_LINE, FINGERPRINT, MOVE_BYTES, RUNNING, SCALAR, SEQUENCE, STATE, SlotLayout,
    WORD,
};
use crate::device::algorithm::Move;
use crate::sync::Waiters;

/// Slots of a control block: eager ones, used in turn by calls outside graphs, then those of
/// captured calls.
pub(crate) const SLOT_COUNT: usize = EAGER_SLOTS + CAPTURED_SLOTS;
/// The most calls that may be under way at a time.
pub(crate) const EAGER_SLOTS: usize = 32;
/// The most captured calls in all living graphs of a communicator.
pub(crate) const CAPTURED_SLOTS: usize = 224;
/// The most ranks of a communicator with control blocks.
pub(crate) const MAX_RANKS: usize = 32;

/// States of a call: the rank's stream has not reached it.
pub(crate) const ENQUEUED: u32 = 0;
/// The rank's stream has passed it.
pub(crate) const FINISHED: u32 = 1;
/// The rank's stream has reached it.
pub(crate) const ENTERED: u32 = 2;
/// As [`ENTERED`], and the watchdog has seen it: a stream that writes [`ENTERED`] again has reached
/// the call once more, in a graph.
const ENTERED_SEEN: u32 = 3;

/// Fields of a control block before its first slot: why the rank closed, the word that stops its
/// kernels, whether it has left, three numbers for slots of captured calls, and the word at which
/// its threads sleep that open and close memory.
const CLOSED: usize = 0;
const STOP: usize = CACHE_LINE;
const LEFT: usize = 2 * CACHE_LINE;
const SLOT_CHOICE: usize = 3 * CACHE_LINE;
const MEMORY_WAITERS: usize = 4 * CACHE_LINE;
const FIRST_SLOT: usize = 5 * CACHE_LINE;

/// The byte offset of the announcements of memory, in a world of `size` ranks.
fn announcements_start(size: usize) -> usize {
    FIRST_SLOT + SLOT_COUNT * SlotLayout { size }.bytes()
}

#[derive(Debug)]
pub(crate) struct ControlBlocks {
    pub(crate) me: usize,
    blocks: Vec<Arc<Pinned>>,
}

/// An operation slot of a rank's control block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef {
    pub(crate) rank: usize,
    pub(crate) slot: usize,
}

impl ControlBlocks {
    /// Bytes of a control block in a world of `size` ranks.
    pub(crate) fn footprint(size: usize) -> NonZeroUsize {
        let end = announcements_start(size) + announcements_bytes(size);
        let bytes = end.next_multiple_of(64 << 10);
        NonZeroUsize::MIN.saturating_add(bytes - 1)
    }

    /// The blocks of all ranks, which start zeroed, as rank `me` maps them.
    pub(crate) fn new(me: usize, blocks: Vec<Arc<Pinned>>) -> Self {
        let least = Self::footprint(blocks.len()).get();
        assert!(me < blocks.len() && blocks.iter().all(|block| block.len() >= least));
        Self { me, blocks }
    }

    pub(crate) fn size(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn own(&self, slot: usize) -> SlotRef {
        SlotRef { rank: self.me, slot }
    }

    fn layout(&self) -> SlotLayout {
        SlotLayout { size: self.size() }
    }

    fn byte_at(&self, rank: usize, offset: usize) -> *mut u8 {
        let block = &self.blocks[rank];
        assert!(offset + ADDRESS <= block.len());
        block.start().as_ptr().wrapping_add(offset)
    }

    fn word32(&self, rank: usize, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(WORD));
        // SAFETY: the offset is inside the mapping (checked), which is aligned to pages and lives
        // as long as this; devices and hosts write it in whole words.
        unsafe { &*self.byte_at(rank, offset).cast::<AtomicU32>() }
    }

    fn word64(&self, rank: usize, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(ADDRESS));
        // SAFETY: as above.
        unsafe { &*self.byte_at(rank, offset).cast::<AtomicU64>() }
    }

    /// A word of the rank's announcements of memory, by its byte offset there.
    pub(super) fn announcement_word(&self, rank: usize, offset: usize) -> &AtomicU64 {
        assert!(offset < announcements_bytes(self.size()));
        self.word64(rank, announcements_start(self.size()) + offset)
    }

    /// The word at which the rank's threads sleep that open and close memory.
    pub(super) fn memory_waiters(&self, rank: usize) -> &Waiters {
        // SAFETY: the word is inside the mapping, which lives as long as this; it starts as zero,
        // and is used as this type alone.
        unsafe { &*self.byte_at(rank, MEMORY_WAITERS).cast::<Waiters>() }
    }

    fn offset(&self, at: SlotRef, field: usize) -> usize {
        FIRST_SLOT + at.slot * self.layout().bytes() + field
    }

    fn slot_word32(&self, at: SlotRef, field: usize) -> &AtomicU32 {
        self.word32(at.rank, self.offset(at, field))
    }

    fn slot_word64(&self, at: SlotRef, field: usize) -> &AtomicU64 {
        self.word64(at.rank, self.offset(at, field))
    }

    fn device_address(&self, at: SlotRef, field: usize) -> CUdeviceptr {
        self.blocks[at.rank].device_address() + self.offset(at, field) as CUdeviceptr
    }

    fn ring_word_field(&self, number: usize) -> usize {
        self.layout().ring_words() + number * WORD
    }

    /// The device address of ring word `number`, of twice as many as there are ranks: the rank
    /// before has something ready for the rank of the slot.
    pub(crate) fn ring_word(&self, at: SlotRef, number: usize) -> CUdeviceptr {
        assert!(number < 2 * self.size());
        self.device_address(at, self.ring_word_field(number))
    }

    /// The last ring word: the rank after has fetched everything.
    pub(crate) fn all_fetched_word(&self, at: SlotRef) -> CUdeviceptr {
        self.ring_word(at, 2 * self.size() - 1)
    }

    /// A table of two addresses for a reduction around a ring: a buffer of the rank before, its
    /// `recv` or else its `send`, then this rank's `send`.
    pub(crate) fn operand_pair(&self, at: SlotRef, of_recv: bool) -> CUdeviceptr {
        let pair = usize::from(of_recv) * 2 * ADDRESS;
        self.device_address(at, self.layout().operand_pairs() + pair)
    }

    /// Writes this rank's buffers into the operand pairs of a slot, which is its own or that of the
    /// rank after it, as the rank of the slot sees them.
    pub(crate) fn write_operand_pairs(&self, at: SlotRef, [send, recv]: [CUdeviceptr; 2]) {
        let put = |index: usize, address: u64| {
            let field = self.layout().operand_pairs() + index * ADDRESS;
            self.slot_word64(at, field).store(address, Ordering::Relaxed);
        };
        if at.rank == self.me {
            [1, 3].into_iter().for_each(|index| put(index, send));
        } else {
            put(0, send);
            put(2, recv);
        }
    }

    /// The device address of the word of `rank` in a worker's slot: its buffers may be used.
    pub(crate) fn ready_word(&self, at: SlotRef, rank: usize) -> CUdeviceptr {
        self.device_address(at, self.layout().ready(rank))
    }

    /// The device address of the word of `rank` in a worker's slot: the worker is done for it.
    pub(crate) fn done_word(&self, at: SlotRef, rank: usize) -> CUdeviceptr {
        self.device_address(at, self.layout().done(rank))
    }

    pub(crate) fn state_word(&self, at: SlotRef) -> CUdeviceptr {
        self.device_address(at, STATE)
    }

    /// The device address of the word that kernels of the rank set to 1 before they read
    /// [`Self::stop_word`].
    pub(crate) fn running_word(&self, at: SlotRef) -> CUdeviceptr {
        self.device_address(at, RUNNING)
    }

    /// True while kernels of the rank run for the call.
    pub(crate) fn is_running(&self, at: SlotRef) -> bool {
        self.slot_word32(at, RUNNING).load(Ordering::Acquire) == 1
    }

    /// Clears the running word of this rank's kernels, which have ended, where no stream does so.
    pub(crate) fn clear_running(&self, slot: usize) {
        self.slot_word32(self.own(slot), RUNNING).store(0, Ordering::Release);
    }

    /// The device address of the table of send buffers, from rank `first` on.
    pub(crate) fn send_table(&self, at: SlotRef, first: usize) -> CUdeviceptr {
        self.device_address(at, self.layout().sends() + first * ADDRESS)
    }

    /// The device address of the table of receive buffers, from rank `first` on.
    pub(crate) fn recv_table(&self, at: SlotRef, first: usize) -> CUdeviceptr {
        self.device_address(at, self.layout().recvs() + first * ADDRESS)
    }

    /// The device address of the list of moves, from number `first` on.
    pub(crate) fn move_list(&self, at: SlotRef, first: usize) -> CUdeviceptr {
        self.device_address(at, self.layout().moves() + first * MOVE_BYTES)
    }

    pub(crate) fn scalar_address(&self, at: SlotRef) -> CUdeviceptr {
        self.device_address(at, SCALAR)
    }

    /// The device address of the word that keeps this rank's kernels from starting.
    pub(crate) fn stop_word(&self) -> CUdeviceptr {
        self.blocks[self.me].device_address() + STOP as CUdeviceptr
    }

    /// Writes this rank's buffers into the tables of a worker's slot, as that worker sees them.
    pub(crate) fn write_buffers(&self, at: SlotRef, [send, recv]: [CUdeviceptr; 2]) {
        let own = self.me * ADDRESS;
        self.slot_word64(at, self.layout().sends() + own).store(send, Ordering::Relaxed);
        self.slot_word64(at, self.layout().recvs() + own).store(recv, Ordering::Relaxed);
    }

    /// Writes the source and the length of a move, which this rank's `send` gives.
    pub(crate) fn write_move_source(
        &self,
        at: SlotRef,
        index: usize,
        send: CUdeviceptr,
        moved: Move,
    ) {
        let field = self.layout().moves() + index * MOVE_BYTES;
        self.slot_word64(at, field).store(send + moved.from as u64, Ordering::Relaxed);
        self.slot_word64(at, field + 16).store(moved.bytes as u64, Ordering::Relaxed);
    }

    /// Writes the target of a move, in this rank's `recv`.
    pub(crate) fn write_move_target(
        &self,
        at: SlotRef,
        index: usize,
        recv: CUdeviceptr,
        moved: Move,
    ) {
        let field = self.layout().moves() + index * MOVE_BYTES + 8;
        self.slot_word64(at, field).store(recv + moved.to as u64, Ordering::Relaxed);
    }

    /// Writes the scalar of this rank's kernels, little-endian.
    pub(crate) fn write_scalar(&self, slot: usize, scalar: [u8; 16]) {
        let (at, bits) = (self.own(slot), u128::from_le_bytes(scalar));
        self.slot_word64(at, SCALAR).store(bits as u64, Ordering::Relaxed);
        self.slot_word64(at, SCALAR + 8).store((bits >> 64) as u64, Ordering::Relaxed);
    }

    /// Publishes this rank's operation header, with [`ENQUEUED`], or [`FINISHED`] where the stream
    /// gets nothing of the call. Of two ranks whose headers differ at least one finds out, if each
    /// reads the other's header after this.
    pub(crate) fn write_header(&self, slot: usize, header: OperationHeader, state: u32) {
        let at = self.own(slot);
        let sequence = self.slot_word64(at, SEQUENCE);
        // A reader must not pair the number of one call with the fingerprint of another.
        sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.slot_word32(at, STATE).store(state, Ordering::Relaxed);
        self.slot_word64(at, FINGERPRINT).store(header.fingerprint, Ordering::Relaxed);
        sequence.store(header.sequence, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// A number by which ranks agree on slots of captured calls; `graphs` says which.
    pub(super) fn slot_choice(&self, rank: usize, number: usize) -> &AtomicU64 {
        self.word64(rank, SLOT_CHOICE + number * ADDRESS)
    }

    /// The word by which this rank owns a slot: its control block, and the byte offset in it.
    pub(super) fn sequence_word(&self, slot: usize) -> (&Pinned, usize) {
        (&self.blocks[self.me], self.offset(self.own(slot), SEQUENCE))
    }

    /// The operation header of a slot. Sequence 0 is a free slot, or a header being written.
    pub(crate) fn header(&self, at: SlotRef) -> OperationHeader {
        let number = self.slot_word64(at, SEQUENCE);
        let sequence = number.load(Ordering::Acquire);
        let fingerprint = self.slot_word64(at, FINGERPRINT).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_complete = number.load(Ordering::Relaxed) == sequence;
        OperationHeader { sequence: if is_complete { sequence } else { 0 }, fingerprint }
    }

    /// True if the rank has no call in the slot.
    pub(crate) fn is_free(&self, at: SlotRef) -> bool {
        self.header(at).sequence == 0
    }

    /// The state of a call: [`ENQUEUED`], [`ENTERED`] or [`FINISHED`].
    pub(crate) fn state(&self, at: SlotRef) -> u32 {
        match self.slot_word32(at, STATE).load(Ordering::Acquire) {
            ENTERED_SEEN => ENTERED,
            state => state,
        }
    }

    /// Takes note that this rank's stream has reached the call; true if it has reached it since the
    /// last time that this was asked.
    pub(crate) fn acknowledge_entry(&self, slot: usize) -> bool {
        let state = self.slot_word32(self.own(slot), STATE);
        state.compare_exchange(ENTERED, ENTERED_SEEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// True if this rank's stream has set its ready word at a worker, which has not cleared it.
    pub(crate) fn has_pending_ready(&self, at: SlotRef) -> bool {
        self.slot_word32(at, self.layout().ready(self.me)).load(Ordering::Acquire) != 0
    }

    /// True if streams have reached the call, and the worker of the slot has not done its part.
    pub(crate) fn has_waiting_streams(&self, at: SlotRef) -> bool {
        let ready = (0..self.size()).map(|rank| self.layout().ready(rank));
        let ring = (0..2 * self.size()).map(|number| self.ring_word_field(number));
        ready.chain(ring).any(|field| self.slot_word32(at, field).load(Ordering::Acquire) != 0)
    }

    /// Sets every word that this rank's stream waits for. The caller repeats this until the stream
    /// has passed: the stream still clears such words.
    pub(crate) fn release(&self, slot: usize, is_worker: impl Fn(usize) -> bool) {
        let set = |at, field| self.slot_word32(at, field).store(1, Ordering::Release);
        for rank in (0..self.size()).filter(|&rank| is_worker(rank)) {
            set(SlotRef { rank, slot }, self.layout().done(self.me));
        }
        let own = self.own(slot);
        (0..2 * self.size()).for_each(|number| set(own, self.ring_word_field(number)));
        if is_worker(self.me) {
            (0..self.size()).for_each(|rank| set(own, self.layout().ready(rank)));
        }
    }

    /// Keeps kernels of all ranks from starting, for good.
    pub(crate) fn stop_kernels(&self) {
        (0..self.size()).for_each(|rank| self.stop_kernels_of(rank));
    }

    /// Keeps one rank's kernels from starting, for good.
    pub(crate) fn stop_kernels_of(&self, rank: usize) {
        self.word32(rank, STOP).store(1, Ordering::SeqCst);
    }

    /// Publishes that this rank has no memory of others open any more.
    pub(crate) fn mark_left(&self) {
        self.word32(self.me, LEFT).store(1, Ordering::Release);
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.word32(rank, LEFT).load(Ordering::Acquire) == 1
    }

    /// 0 while a rank makes calls; 1 once it has closed its communicator; else a word of
    /// [`encode_close_reason`](super::failure::encode_close_reason).
    pub(crate) fn close_reason(&self, rank: usize) -> u32 {
        self.word32(rank, CLOSED).load(Ordering::Acquire)
    }

    /// Publishes why this rank makes no more calls, as [`Self::close_reason`] has it; the first
    /// reason stays.
    pub(crate) fn close(&self, why: u32) {
        let word = self.word32(self.me, CLOSED);
        let _ = word.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire);
    }
}
