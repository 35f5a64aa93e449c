//! The cost of a strategy, by formula.

use crate::strategy::{Owner, Reduction};
use crate::{Optimizer, Strategy};

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
    let (ring, half_ring) = (2 * (n - 1) * bytes / n, (n - 1) * bytes / n);
    // A chain's reduce ends at rank 0, which then sends nothing; a chain's broadcast begins there,
    // and the last rank sends nothing.
    let (reduce, broadcast) = (u64::from(rank > 0), u64::from(rank + 1 != size));
    let copies = strategy.children(rank, size).len() + strategy.parent(rank).iter().count();
    let reduced = match strategy.reduction() {
        Reduction::AllReduce => ring,
        Reduction::ReduceScatter => half_ring,
        Reduction::ReduceBroadcast => (reduce + broadcast) * bytes,
        Reduction::Reduce => reduce * bytes,
        Reduction::Tree | Reduction::Star => copies as u64 * bytes,
    };
    reduced
        + match strategy.owner() {
            Owner::All => 0,
            Owner::Root => broadcast * bytes,
            Owner::Slice => ring - half_ring,
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
    let n = size.max(1) as u64;
    let state = match strategy.owner() {
        Owner::Root if rank > 0 => 0,
        Owner::All | Owner::Root => state,
        Owner::Slice => state / n,
    };
    let gradients = if strategy.keeps_own_sums() { bytes / n + 2 * bucket } else { bytes };
    let scratch = if strategy.children(rank, size).is_empty() { 0 } else { bucket };
    bytes + gradients + state + scratch
}
