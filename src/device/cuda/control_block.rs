//! Boards: memory of each rank that all ranks and all devices see, with the words by which the
//! streams of a call wait for each other, and the addresses that its kernels go by.
//! May touch: error, pinned. Unsafe: addresses inside mappings.
//! Law: a call's words go from 0 to 1 and back, set by streams alone, so that a call in a graph can
//! be made again and again; who has seen all workers done may write what their kernels read.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use cudarc::driver::sys::CUdeviceptr;

use super::failure::Claim;
use super::pinned::Pinned;
use crate::device::algorithm::Move;

/// Calls that may be under way at a time, and calls in graphs.
pub(crate) const PLACES: usize = EAGER + CAPTURED;
pub(crate) const EAGER: usize = 32;
pub(crate) const CAPTURED: usize = 224;
/// The most ranks that have boards.
pub(crate) const MOST_RANKS: usize = 32;

/// What a rank's stream has done of a call: nothing yet.
pub(crate) const PUT: u32 = 0;
/// All.
pub(crate) const OVER: u32 = 1;
/// It has come to it.
pub(crate) const ENTERED: u32 = 2;
/// So it has, and the host has seen it: if it says the former again, it has come once more.
const SEEN: u32 = 3;

const LINE: usize = 64;
/// Words at the beginning of a board.
const CLOSED: usize = 0;
const STOP: usize = LINE;
const LEFT: usize = 2 * LINE;
const CHOICE: usize = 3 * LINE;
const HEAD: usize = 4 * LINE;
/// In a place: what its rank calls there, how far its stream is, whether its kernels are at work,
/// and their scalar. Then, where the rank is a worker: each rank's `ready`, that its buffers may be
/// used, which the worker takes back when it has done its part; each rank's `done`, that the worker
/// has, which that rank takes back; the tables of addresses; the list of moves; and for a call
/// around a ring, words for what lies ready for this rank, and a table of what it and the rank
/// before have.
const SEQUENCE: usize = 0;
const FINGERPRINT: usize = 8;
const STATE: usize = 16;
const WORKS: usize = 20;
const SCALAR: usize = 32;
const READY: usize = LINE;
/// Bytes of a [`Move`] as kernels see it.
const MOVE: usize = 24;

/// All ranks' boards.
#[derive(Debug)]
pub(crate) struct Boards {
    pub(crate) me: usize,
    boards: Vec<Arc<Pinned>>,
}

/// A place of a rank's board.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) rank: usize,
    pub(crate) place: usize,
}

impl Boards {
    /// Bytes of a board among so many ranks.
    pub(crate) fn footprint(size: usize) -> NonZeroUsize {
        let bytes = (HEAD + PLACES * stride(size)).next_multiple_of(64 << 10);
        NonZeroUsize::MIN.saturating_add(bytes - 1)
    }

    /// As rank `me`; the boards are all ranks' and start zeroed.
    pub(crate) fn new(me: usize, boards: Vec<Arc<Pinned>>) -> Self {
        let least = Self::footprint(boards.len()).get();
        assert!(me < boards.len() && boards.iter().all(|board| board.len() >= least));
        Self { me, boards }
    }

    /// The world size.
    pub(crate) fn size(&self) -> usize {
        self.boards.len()
    }

    fn byte(&self, rank: usize, at: usize) -> *mut u8 {
        let board = &self.boards[rank];
        assert!(at + size_of::<u64>() <= board.len());
        board.start().as_ptr().wrapping_add(at)
    }

    fn word(&self, rank: usize, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(size_of::<u32>()));
        // SAFETY: inside the mapping (checked), which is aligned to pages and lives as long as
        // this; devices and hosts write it in whole words.
        unsafe { &*self.byte(rank, at).cast::<AtomicU32>() }
    }

    fn long(&self, rank: usize, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(size_of::<u64>()));
        // SAFETY: as above.
        unsafe { &*self.byte(rank, at).cast::<AtomicU64>() }
    }

    fn at(&self, at: At, field: usize) -> usize {
        HEAD + at.place * stride(self.size()) + field
    }

    fn device(&self, at: At, field: usize) -> CUdeviceptr {
        self.boards[at.rank].device() + self.at(at, field) as CUdeviceptr
    }

    fn done_field(&self) -> usize {
        READY + (self.size() * size_of::<u32>()).next_multiple_of(LINE)
    }

    /// Where kernels of a worker find the addresses of all ranks' `send`, then those of `recv`.
    fn sends_field(&self) -> usize {
        self.done_field() + (self.size() * size_of::<u32>()).next_multiple_of(LINE)
    }

    fn recvs_field(&self) -> usize {
        self.sends_field() + self.size() * size_of::<u64>()
    }

    fn moves_field(&self) -> usize {
        self.recvs_field() + self.size() * size_of::<u64>()
    }

    fn steps_field(&self) -> usize {
        self.moves_field() + self.size() * self.size() * MOVE
    }

    fn pairs_field(&self) -> usize {
        self.steps_field() + (2 * self.size() * size_of::<u32>()).next_multiple_of(LINE)
    }

    /// A word on a rank's board, of twice as many as there are ranks, that something lies ready
    /// for it.
    pub(crate) fn step(&self, at: At, number: usize) -> CUdeviceptr {
        assert!(number < 2 * self.size());
        self.device(at, self.steps_field()) + (number * size_of::<u32>()) as CUdeviceptr
    }

    /// The last of them: the rank after has fetched all.
    pub(crate) fn fetched(&self, at: At) -> CUdeviceptr {
        self.step(at, 2 * self.size() - 1)
    }

    /// A table of two: a buffer of the rank before, its `recv` or else its `send`, and then the
    /// rank's own `send`.
    pub(crate) fn pair(&self, at: At, of_recv: bool) -> CUdeviceptr {
        let at_pair = usize::from(of_recv) * 2 * size_of::<u64>();
        self.device(at, self.pairs_field()) + at_pair as CUdeviceptr
    }

    /// Where this rank's buffers are, as the rank at `at` sees them, which is itself or the one
    /// after it.
    pub(crate) fn put_pairs(&self, at: At, [send, recv]: [CUdeviceptr; 2]) {
        let put = |index: usize, address: u64| {
            let field = self.at(at, self.pairs_field()) + index * size_of::<u64>();
            self.long(at.rank, field).store(address, Ordering::Relaxed);
        };
        if at.rank == self.me {
            [1, 3].into_iter().for_each(|index| put(index, send));
        } else {
            put(0, send);
            put(2, recv);
        }
    }

    /// The word of `rank` on a worker's board, as streams see it: its buffers may be used.
    pub(crate) fn ready(&self, at: At, rank: usize) -> CUdeviceptr {
        self.device(at, READY) + (rank * size_of::<u32>()) as CUdeviceptr
    }

    /// Likewise: the worker has done its part for `rank`.
    pub(crate) fn done(&self, at: At, rank: usize) -> CUdeviceptr {
        self.device(at, self.done_field()) + (rank * size_of::<u32>()) as CUdeviceptr
    }

    /// Likewise: how far the rank's stream is.
    pub(crate) fn state(&self, at: At) -> CUdeviceptr {
        self.device(at, STATE)
    }

    /// Likewise: 1 while its kernels are at work, which set it before they look at [`Self::stop`].
    pub(crate) fn works(&self, at: At) -> CUdeviceptr {
        self.device(at, WORKS)
    }

    /// Are they?
    pub(crate) fn is_at_work(&self, at: At) -> bool {
        self.word(at.rank, self.at(at, WORKS)).load(Ordering::Acquire) == 1
    }

    /// This rank's kernels have ended, and its stream will not say so.
    pub(crate) fn rests(&self, place: usize) {
        let at = At { rank: self.me, place };
        self.word(self.me, self.at(at, WORKS)).store(0, Ordering::Release);
    }

    /// The table of `send` from rank `first` on, as kernels see it.
    pub(crate) fn sends(&self, at: At, first: usize) -> CUdeviceptr {
        self.device(at, self.sends_field()) + (first * size_of::<u64>()) as CUdeviceptr
    }

    /// That of `recv`.
    pub(crate) fn recvs(&self, at: At, first: usize) -> CUdeviceptr {
        self.device(at, self.recvs_field()) + (first * size_of::<u64>()) as CUdeviceptr
    }

    /// The list of moves from number `first` on, as kernels see it.
    pub(crate) fn moves(&self, at: At, first: usize) -> CUdeviceptr {
        self.device(at, self.moves_field()) + (first * MOVE) as CUdeviceptr
    }

    /// The scalar, as kernels see it.
    pub(crate) fn scalar(&self, at: At) -> CUdeviceptr {
        self.device(at, SCALAR)
    }

    /// The word that keeps a worker's kernels from starting, as they see it.
    pub(crate) fn stop(&self) -> CUdeviceptr {
        self.boards[self.me].device() + STOP as CUdeviceptr
    }

    /// Where this rank's buffers are, for the kernels of the worker at `at`.
    pub(crate) fn put_buffers(&self, at: At, [send, recv]: [CUdeviceptr; 2]) {
        let mine = self.me * size_of::<u64>();
        let put = |field: usize, address: u64| {
            self.long(at.rank, self.at(at, field) + mine).store(address, Ordering::Relaxed);
        };
        put(self.sends_field(), send);
        put(self.recvs_field(), recv);
    }

    /// What this rank gives in a move of that worker's list.
    pub(crate) fn put_source(&self, at: At, index: usize, send: CUdeviceptr, moved: Move) {
        let field = self.at(at, self.moves_field() + index * MOVE);
        self.long(at.rank, field).store(send + moved.from as u64, Ordering::Relaxed);
        self.long(at.rank, field + 16).store(moved.bytes as u64, Ordering::Relaxed);
    }

    /// Where it wants what it gets.
    pub(crate) fn put_target(&self, at: At, index: usize, recv: CUdeviceptr, moved: Move) {
        let field = self.at(at, self.moves_field() + index * MOVE) + 8;
        self.long(at.rank, field).store(recv + moved.to as u64, Ordering::Relaxed);
    }

    /// What this rank's kernels are given as scalar.
    pub(crate) fn put_scalar(&self, place: usize, scalar: [u8; 16]) {
        let field = self.at(At { rank: self.me, place }, SCALAR);
        for (i, bytes) in scalar.chunks_exact(8).enumerate() {
            let bits = bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
            self.long(self.me, field + i * 8).store(bits, Ordering::Relaxed);
        }
    }

    /// Says what this rank calls, and how far it is there: [`PUT`], or [`OVER`] where nothing more
    /// is to come. Of two ranks that differ one at least finds out by looking then.
    pub(crate) fn claim(&self, place: usize, claim: Claim, state: u32) {
        let at = At { rank: self.me, place };
        let sequence = self.long(self.me, self.at(at, SEQUENCE));
        // Nobody shall see one's number with the other's fingerprint.
        sequence.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.state_word(at).store(state, Ordering::Relaxed);
        self.long(self.me, self.at(at, FINGERPRINT)).store(claim.fingerprint, Ordering::Relaxed);
        sequence.store(claim.sequence, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// A number of a rank's board by which ranks agree on places of calls in graphs.
    pub(super) fn choice(&self, rank: usize, number: usize) -> &AtomicU64 {
        self.long(rank, CHOICE + number * size_of::<u64>())
    }

    /// The word by which this rank claims a place: its board, and how far into that it is.
    pub(super) fn claiming(&self, place: usize) -> (&Pinned, usize) {
        (&self.boards[self.me], self.at(At { rank: self.me, place }, SEQUENCE))
    }

    /// What a rank says that it calls there; number 0 is nothing, or nothing yet.
    pub(crate) fn claimed(&self, at: At) -> Claim {
        let number = self.long(at.rank, self.at(at, SEQUENCE));
        let sequence = number.load(Ordering::Acquire);
        let fingerprint = self.long(at.rank, self.at(at, FINGERPRINT)).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = number.load(Ordering::Relaxed) == sequence;
        Claim { sequence: if whole { sequence } else { 0 }, fingerprint }
    }

    fn state_word(&self, at: At) -> &AtomicU32 {
        self.word(at.rank, self.at(at, STATE))
    }

    /// How far this rank's stream is.
    pub(crate) fn reached(&self, place: usize) -> u32 {
        self.reached_at(At { rank: self.me, place })
    }

    /// How far a rank's stream is.
    pub(crate) fn reached_at(&self, at: At) -> u32 {
        match self.state_word(at).load(Ordering::Acquire) {
            SEEN => ENTERED,
            state => state,
        }
    }

    /// Has this rank's stream come to a call since this was asked last?
    pub(crate) fn has_entered_anew(&self, place: usize) -> bool {
        let word = self.state_word(At { rank: self.me, place });
        word.compare_exchange(ENTERED, SEEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Has this rank's stream told the worker at `at` that it has come, and was not heard?
    pub(crate) fn is_unheard_by(&self, at: At) -> bool {
        let field = self.at(at, READY) + self.me * size_of::<u32>();
        self.word(at.rank, field).load(Ordering::Acquire) != 0
    }

    /// Have streams come to the call that the worker at `at` has not done its part of?
    pub(crate) fn is_awaited(&self, at: At) -> bool {
        let is_set = |field: usize| self.word(at.rank, field).load(Ordering::Acquire) != 0;
        let ready = |rank: usize| self.at(at, READY) + rank * size_of::<u32>();
        (0..self.size()).map(ready).chain(self.steps(at)).any(is_set)
    }

    /// The words of [`Self::step`], as the host sees them.
    fn steps(&self, at: At) -> impl Iterator<Item = usize> {
        let first = self.at(at, self.steps_field());
        (0..2 * self.size()).map(move |number| first + number * size_of::<u32>())
    }

    /// Lets this rank's stream pass, whoever has not come. To be done again until it has: streams
    /// still take such words back.
    pub(crate) fn release(&self, place: usize, is_worker: impl Fn(usize) -> bool) {
        let me = self.me * size_of::<u32>();
        for worker in (0..self.size()).filter(|&worker| is_worker(worker)) {
            let at = At { rank: worker, place };
            self.word(worker, self.at(at, self.done_field()) + me).store(1, Ordering::Release);
        }
        let at = At { rank: self.me, place };
        self.steps(at).for_each(|field| self.word(self.me, field).store(1, Ordering::Release));
        if is_worker(self.me) {
            for rank in 0..self.size() {
                let field = self.at(at, READY) + rank * size_of::<u32>();
                self.word(self.me, field).store(1, Ordering::Release);
            }
        }
    }

    /// From now on kernels of calls do nothing, whoever has them.
    pub(crate) fn stop_kernels(&self) {
        (0..self.size()).for_each(|rank| self.stop_kernels_of(rank));
    }

    /// The same of one rank's.
    pub(crate) fn stop_kernels_of(&self, rank: usize) {
        self.word(rank, STOP).store(1, Ordering::SeqCst);
    }

    /// This rank has nothing open of others any more.
    pub(crate) fn leave(&self) {
        self.word(self.me, LEFT).store(1, Ordering::Release);
    }

    /// Has a rank said so?
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.word(rank, LEFT).load(Ordering::Acquire) == 1
    }

    /// 0, or 1 once a rank has left, or 2 more than the rank that it has failed for want of.
    pub(crate) fn closed(&self, rank: usize) -> u32 {
        self.word(rank, CLOSED).load(Ordering::Acquire)
    }

    /// This rank leaves, as [`Self::closed`] has it; what it said first counts.
    pub(crate) fn close(&self, why: u32) {
        let word = self.word(self.me, CLOSED);
        let _ = word.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Bytes of a place.
fn stride(size: usize) -> usize {
    let words = 2 * (size * size_of::<u32>()).next_multiple_of(LINE);
    let tables = 2 * size * size_of::<u64>() + size * size * MOVE;
    let ring = (2 * size * size_of::<u32>()).next_multiple_of(LINE) + 4 * size_of::<u64>();
    (READY + words + tables + ring).next_multiple_of(LINE)
}
