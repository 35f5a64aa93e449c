//! Staged: ranks of one host hand blocks to each other through stages, slots in memory that all of
//! them map. A block takes three phases: each rank copies in to a slot of its stage what others
//! need, folds its part of all stages in rank order (or fetches what it needs), and copies out the
//! parts that others folded. Two ranks fold all that they get, and copy nothing out. Blocks are
//! pipelined: a rank waits only when it is as many blocks ahead as a stage has slots.
//!
//! Source: the two-shot of MSCCL++, over stages as in Parsons and Pai, "Accelerating MPI collective
//! communications through hierarchical algorithms", IPDPS 2014.
//! Law: what each rank reads in a slot is the block that it asked for, whatever the order in which
//! ranks run: `tests/laws/stages` proves it of these steps.
//! # Example
//!
//! The phases of four blocks of an all-reduce over two slots, in the order of each rank; and those
//! of one block, in which each rank folds its part of all stages, and copies out the parts of the
//! ranks in the last row:
//!
//! ```text
//! CopyIn 0, CopyIn 1, Fold 0, Fold 1, CopyOut 0, CopyIn 2,
//! Fold 2, CopyOut 1, CopyIn 3, Fold 3, CopyOut 2, CopyOut 3
//!
//!          rank 0        rank 1        rank 2        rank 3
//! CopyIn   stage a       stage b       stage c       stage d
//! Fold     0 = a+b+c+d   1 = a+b+c+d   2 = a+b+c+d   3 = a+b+c+d
//! CopyOut  1 2 3         0 2 3         0 1 3         0 1 2
//! ```

use super::{Collective, Definition, ReadOrder, all_pairs, collective};

/// The schedule over links, and its price, are those of the algorithm that moves the same bytes; a
/// measured factor corrects the price.
pub(super) const DEFINITION: Definition = Definition {
    name: "staged",
    read_order: ReadOrder::Sequential,
    chunks: |collective, order| {
        as_over_links(collective).map_or(1, |same| (same.chunks)(collective, order))
    },
    schedule: |collective, order, me| (as_over_links(collective)?.schedule)(collective, order, me),
    volume: |collective, order| (as_over_links(collective)?.volume)(collective, order),
    cost: |collective, order, bytes, speed| {
        (as_over_links(collective)?.cost)(collective, order, bytes, speed)
    },
    ..Definition::DEFAULT
};

/// The algorithm that moves the same bytes over links; `None` for collectives without stages.
pub(super) const fn as_over_links(collective: Collective) -> Option<&'static Definition> {
    match collective {
        Collective::AllReduce => Some(&all_pairs::TWO_SHOT),
        Collective::ReduceScatter | Collective::AllGather | Collective::Broadcast { .. } => {
            Some(&all_pairs::ALL_PAIRS)
        }
        Collective::Reduce { .. }
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::AllToAll => Some(&collective::RING),
        _ => None,
    }
}

/// The phases of a block at a rank, in order. Each is also a counter that the rank publishes:
/// of the blocks for which it has completed the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Copies what others need into its slot of the block.
    CopyIn,
    /// Folds its part of all ranks' slots, of two ranks all of them, or fetches from them; a part
    /// that others need goes to its result slot. The rank reads no stage of this block any more.
    Fold,
    /// Copies the other ranks' results. The rank reads no result of this block any more.
    CopyOut,
}

/// The state that a rank waits for at a peer: the peer has completed a phase of this many blocks,
/// counted through all calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The phase.
    pub phase: Phase,
    /// The number of blocks.
    pub blocks: u64,
}

/// One call over stages, as rank `me` makes it. Blocks are numbered through all calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedCall {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub size: usize,
    /// This rank.
    pub me: usize,
    /// The number of the call's first block.
    pub first: u64,
    /// The number of blocks, at least 1.
    pub blocks: u64,
    /// Slots of a stage.
    pub depth: u64,
    /// True if a block and its result lie in its rank's own memory, of which the slot says where it
    /// is.
    pub is_single_copy: bool,
}

impl StagedCall {
    /// The phases of all blocks, in the order in which each rank makes them. A rank copies in as
    /// far ahead as slots allow, then folds all that, and then copies out one block for each that
    /// it copies in and folds.
    pub fn steps(self) -> impl Iterator<Item = (Phase, u64)> {
        let [mut copied_in, mut folded, mut copied_out] = [self.first; 3];
        let end = self.first + self.blocks;
        std::iter::from_fn(move || {
            let next = |counter: &mut u64, phase| {
                *counter += 1;
                Some((phase, *counter - 1))
            };
            if copied_in < end && copied_in < copied_out + self.depth {
                next(&mut copied_in, Phase::CopyIn)
            } else if folded < copied_in {
                next(&mut folded, Phase::Fold)
            } else if copied_out < folded {
                next(&mut copied_out, Phase::CopyOut)
            } else {
                None
            }
        })
    }

    /// True if each rank that gets the result folds all of it. Of two ranks it then reads as many
    /// bytes of its peer as if both folded one half and copied out the other, and waits for each
    /// block once instead of twice.
    #[must_use]
    #[inline]
    pub fn folds_whole(&self) -> bool {
        let is_shared =
            matches!(self.collective, Collective::AllReduce | Collective::Reduce { .. });
        self.size == 2 && is_shared && !self.is_single_copy
    }

    /// True if `rank` folds or fetches from the stage of `peer`.
    #[must_use]
    #[inline]
    pub fn reads_stage(&self, rank: usize, peer: usize) -> bool {
        rank != peer
            && match self.collective {
                Collective::Reduce { root } if self.folds_whole() => rank == root as usize,
                Collective::Broadcast { root } | Collective::Scatter { root } => {
                    peer == root as usize
                }
                Collective::Gather { root } => rank == root as usize,
                _ => true,
            }
    }

    /// True if `rank` copies out the result of `peer`.
    #[must_use]
    #[inline]
    pub fn reads_result(&self, rank: usize, peer: usize) -> bool {
        rank != peer
            && !self.folds_whole()
            && match self.collective {
                Collective::AllReduce => true,
                Collective::Reduce { root } => rank == root as usize,
                _ => false,
            }
    }

    /// The states that `peer` must have reached before this rank enters `phase` of `block`.
    ///
    /// A slot that a block before this call was in may still be read by any rank; later ones only
    /// by ranks that read in this call. `finished`: blocks that no rank reads any more.
    #[must_use]
    pub fn needs(
        &self,
        (phase, block): (Phase, u64),
        peer: usize,
        finished: u64,
    ) -> [Option<Completed>; 2] {
        // Blocks before which the slot of this block was free.
        let before = (block + 1).saturating_sub(self.depth);
        let completed = |phase: Phase, blocks: u64| Completed { phase, blocks };
        let reused = |reader: Phase, reads: bool| {
            let is_used = before > finished && (reads || before <= self.first);
            is_used.then_some(completed(reader, before))
        };
        let Self { me, .. } = *self;
        match phase {
            Phase::CopyIn => [reused(Phase::Fold, self.reads_stage(peer, me)), None],
            Phase::Fold => [
                self.reads_stage(me, peer).then_some(completed(Phase::CopyIn, block + 1)),
                reused(Phase::CopyOut, self.reads_result(peer, me)),
            ],
            Phase::CopyOut => {
                let reads = self.reads_result(me, peer);
                [reads.then_some(completed(Phase::Fold, block + 1)), None]
            }
        }
    }

    /// The state that `peer` must have reached before this rank leaves a call of single copy, after
    /// which its memory is its user's again.
    #[must_use]
    pub fn leaves_after(&self, peer: usize) -> Option<Completed> {
        let phase = match (self.reads_result(peer, self.me), self.reads_stage(peer, self.me)) {
            (true, _) => Phase::CopyOut,
            (false, true) => Phase::Fold,
            (false, false) => return None,
        };
        self.is_single_copy.then_some(Completed { phase, blocks: self.first + self.blocks })
    }
}

/// The slots of each rank's stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageShape {
    /// Bytes of a slot: the longest block.
    pub block: usize,
    /// Slots of a stage.
    pub depth: usize,
}

impl StageShape {
    /// The most ranks that share a host's region.
    pub(crate) const MOST_RANKS: usize = 1024;
    /// Bytes of all stages of a host, at most, as long as blocks have 16 KiB.
    const MOST_BYTES: usize = 32 << 20;
    /// The shortest and the longest block: it holds the edges of registered memory (two pages, and
    /// the largest element on each), and it stays in a core's cache.
    const BLOCKS: [usize; 2] = [16 << 10, 128 << 10];

    /// True if this many ranks of one host may share a region.
    #[must_use]
    pub const fn is_for(size: usize) -> bool {
        size >= 2 && size <= Self::MOST_RANKS
    }

    /// The stages of `size` ranks; block and depth are powers of two. With 1 MiB, as much as a
    /// core's own cache, a slot that is written again has left the reader's cache. ARCHITECTURE.md
    /// has the measurement.
    #[must_use]
    pub const fn of(size: usize) -> Self {
        let depth = if size <= 4 { 8 } else { 4 };
        let share = Self::MOST_BYTES / (size.next_power_of_two() * depth);
        let [least, most] = Self::BLOCKS;
        let block = if share < least {
            least
        } else if share > most {
            most
        } else {
            share
        };
        Self { block, depth }
    }
}
