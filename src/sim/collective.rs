//! What every rank starts from and must end with, and how much it may send.
//! May touch: schedule. Law: none of its own; `check` holds schedules to what is said here.

use crate::schedule::Collective;

/// What a rank must end with in a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// What it was: nobody asked for it.
    Untouched,
    /// The fold of everybody's contribution.
    Sum,
    /// What this rank had.
    Copy(u32),
}

impl Collective {
    /// Does `rank` have something to give for `chunk`?
    pub(super) fn gives(self, rank: u32, chunk: u32) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::Barrier => true,
            Self::AllGather => rank == chunk,
            Self::Broadcast { root } => rank == root,
        }
    }

    pub(super) fn expects(self, rank: u32, chunk: u32) -> Expected {
        match self {
            Self::AllReduce | Self::Barrier => Expected::Sum,
            Self::ReduceScatter if rank == chunk => Expected::Sum,
            Self::ReduceScatter => Expected::Untouched,
            Self::AllGather => Expected::Copy(chunk),
            Self::Broadcast { root } => Expected::Copy(root),
        }
    }

    /// The most chunks that a rank of `size` may send, and how many all send together: per rank
    /// 2(n-1)/n of the buffer for all-reduce, (n-1)/n for its halves, once the buffer for
    /// broadcast; a barrier's token goes round twice, but for its last hop.
    pub(super) fn volume(self, size: u64, chunks: u64) -> (u64, u64) {
        let total = (size - 1) * chunks;
        match self {
            Self::AllReduce => (2 * total / size, 2 * total),
            Self::ReduceScatter | Self::AllGather => (total / size, total),
            Self::Broadcast { .. } => (chunks, total),
            Self::Barrier => (2 * chunks, 2 * total),
        }
    }
}
