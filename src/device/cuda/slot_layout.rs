//! The layout of an operation slot in a control block: byte offsets of its words, tables and lists.
//! Law: every rank computes the same offsets, from the world size alone.

/// Bytes of a word that streams write and wait for.
pub(super) const WORD: usize = size_of::<u32>();
/// Bytes of a device address.
pub(super) const ADDRESS: usize = size_of::<u64>();
/// Bytes of a [`Move`](crate::device::algorithm::Move) as kernels read it: source, target, length.
pub(super) const MOVE_BYTES: usize = 3 * ADDRESS;
/// Words of different writers lie on cache lines of their own.
pub(super) const CACHE_LINE: usize = 64;

/// The operation header.
pub(super) const SEQUENCE: usize = 0;
pub(super) const FINGERPRINT: usize = 8;
/// How far the rank's stream is: one of the states of `control_block`.
pub(super) const STATE: usize = 16;
/// 1 while kernels of the rank run.
pub(super) const RUNNING: usize = 20;
/// The scalar of the rank's kernels, 16 bytes.
pub(super) const SCALAR: usize = 32;
/// One word per rank: the rank's buffers may be used. The worker clears it after its part.
const READY: usize = CACHE_LINE;

/// Offsets of the fields whose length depends on the world size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotLayout {
    pub(super) size: usize,
}

impl SlotLayout {
    /// The ready word of a rank, in the slot of a worker.
    pub(super) fn ready(self, rank: usize) -> usize {
        READY + rank * WORD
    }

    /// The done word of a rank, in the slot of a worker: the worker has finished its part. The rank
    /// clears it.
    pub(super) fn done(self, rank: usize) -> usize {
        READY + self.words(1) + rank * WORD
    }

    /// The table of all ranks' send buffers, as the worker of the slot sees them.
    pub(super) fn sends(self) -> usize {
        READY + 2 * self.words(1)
    }

    /// The table of all ranks' receive buffers.
    pub(super) fn recvs(self) -> usize {
        self.sends() + self.size * ADDRESS
    }

    /// The list of moves, one for each pair of ranks at most.
    pub(super) fn moves(self) -> usize {
        self.recvs() + self.size * ADDRESS
    }

    /// The ring words, two for each rank: the rank before has something ready to fetch.
    pub(super) fn ring_words(self) -> usize {
        self.moves() + self.size * self.size * MOVE_BYTES
    }

    /// Two pairs of addresses for reductions around a ring.
    pub(super) fn operand_pairs(self) -> usize {
        self.ring_words() + self.words(2)
    }

    /// Bytes of a slot.
    pub(super) fn bytes(self) -> usize {
        (self.operand_pairs() + 4 * ADDRESS).next_multiple_of(CACHE_LINE)
    }

    /// Bytes of so many words for each rank, in whole cache lines.
    fn words(self, each: usize) -> usize {
        (each * self.size * WORD).next_multiple_of(CACHE_LINE)
    }
}
