//! All-to-all by direct messages: every rank sends each block to its destination, the next rank's
//! first, and then receives, the previous rank's first.
//!
//! No rank waits before all of a round's pieces have left, so latencies overlap; and in place, each
//! block has left before another takes its place. (MPICH's "scattered" algorithm, with links that
//! hold a round instead of non-blocking calls.) Cost, blocks of m bytes, latency a, a step's s = o
//! + mb: 2(n-1)s, or ns + a if that is more.

use super::all_pairs::others;
use super::{Op, Place, Schedule, Step, Volume};
use crate::sim::Speed;

/// The schedule of an all-to-all. Input: a chunk for every rank. Output: a chunk from every rank.
#[must_use]
pub fn all_to_all(size: u32, me: u32) -> Schedule {
    let mut steps = Vec::with_capacity(2 * size as usize);
    for peer in others(size, me) {
        steps.push(Step::new(Op::Send, me, Place::input(peer)).to(peer));
    }
    steps.push(Step::new(Op::Copy, me, Place::input(me)).into(Place::output(me)));
    for peer in others(size, me).rev() {
        steps.push(Step::new(Op::Recv, me, Place::output(peer)).from(peer));
    }
    Schedule { steps, ..Schedule::new(size, size) }
}

/// Each rank sends all blocks but its own.
pub(super) fn volume(size: u32) -> Volume {
    let (n, others) = (u64::from(size), u64::from(size - 1));
    Volume { most: others, total: n * others }
}

/// The closed form; `bytes` is the length of all blocks of a rank. `size` is not 1.
pub(super) fn cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    let n = f64::from(size);
    let s = speed.moved(bytes / n);
    (2.0 * (n - 1.0) * s).max(n * s + speed.latency)
}
