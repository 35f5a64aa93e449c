//! What a strategy costs, by formula.

use crate::{CrossDeviceOp, Optimizer, Strategy};

/// The bytes that `rank` sends in one step, with `bytes` of gradients among `size` ranks, if
/// collectives go by rings and `size` divides the elements of each bucket.
///
/// A ring's all-reduce sends 2(n-1)/n S per rank (Patarasuk and Yuan, 2009); the naive one sends
/// (n-1) S at the root and S elsewhere, so that 2(n-1) S go over the root's link in both
/// directions.
#[must_use]
pub fn sent_bytes(strategy: Strategy, bytes: u64, rank: usize, size: usize) -> u64 {
    let n = size as u64;
    if n < 2 {
        return 0;
    }
    let ring = 2 * (n - 1) * bytes / n;
    let is_root = rank == 0;
    match strategy {
        Strategy::Mirrored(CrossDeviceOp::AllReduce)
        | Strategy::ShardedOptimizer
        | Strategy::ShardedGradients => ring,
        // A chain's reduce ends at rank 0, which then sends nothing; a chain's broadcast begins
        // there, and the last rank sends nothing.
        Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice) | Strategy::CentralStorage => {
            let (reduces, broadcasts) = (!is_root, rank + 1 != size);
            (u64::from(reduces) + u64::from(broadcasts)) * bytes
        }
        Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy) => {
            let children = tree_children(rank, size).count() as u64;
            (children + u64::from(!is_root)) * bytes
        }
        Strategy::Naive if is_root => (n - 1) * bytes,
        Strategy::Naive => bytes,
    }
}

/// The bytes that a trainer holds for `bytes` of parameters, without the model's own: parameters,
/// gradients, and the state of the optimizer. Sharded ones hold a part: ZeRO's 4 + 4 + K/n for
/// `f32` in stage 1, and 4 + (4 + K)/n in stage 2, whose two buckets of at most `bucket` bytes come
/// to it. A rank that adds up copies by hand holds one of a bucket.
#[must_use]
pub fn memory_bytes(
    strategy: Strategy,
    optimizer: Optimizer,
    bytes: u64,
    bucket: u64,
    (rank, size): (usize, usize),
) -> u64 {
    let state = optimizer.moments() as u64 * bytes;
    let size = size.max(1) as u64;
    match strategy {
        Strategy::ShardedOptimizer => 2 * bytes + state / size,
        Strategy::ShardedGradients => bytes + (bytes + state) / size + 2 * bucket,
        Strategy::CentralStorage if rank > 0 => 2 * bytes,
        Strategy::Naive if rank == 0 && size > 1 => 2 * bytes + state + bucket,
        Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy)
            if tree_children(rank, size as usize).next().is_some() =>
        {
            2 * bytes + state + bucket
        }
        _ => 2 * bytes + state,
    }
}

/// The children of a rank in the binomial tree whose root is rank 0.
pub(crate) fn tree_children(rank: usize, size: usize) -> impl DoubleEndedIterator<Item = usize> {
    let levels = if rank == 0 { usize::BITS } else { rank.trailing_zeros() };
    (0..levels).map(move |level| rank.saturating_add(1_usize << level)).filter(move |it| *it < size)
}
