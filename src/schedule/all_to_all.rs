//! All-to-all by direct messages: every rank sends each block to its destination, the next rank's
//! first, and then receives, the previous rank's first.
//!
//! No rank waits before all of a round's pieces have left, so latencies overlap; and in place, each
//! block has left before another takes its place. (MPICH's "scattered" algorithm, with links that
//! hold a round instead of non-blocking calls.) Cost, blocks of m bytes, latency a, a step's s = o
//! + mb: 2(n-1)s, or ns + a if that is more.

use super::all_pairs::{receives, sends};
use super::{Op, Place, Schedule, Step};

/// The schedule of an all-to-all. Input: a chunk for every rank. Output: a chunk from every rank.
#[must_use]
pub fn all_to_all(size: u32, me: u32) -> Schedule {
    let mut steps = Vec::with_capacity(2 * size as usize);
    steps.extend(sends(size, me, Place::input));
    steps.push(Step::new(Op::Copy, me, Place::input(me)).into(Place::output(me)));
    steps.extend(receives(size, me));
    Schedule { steps, ..Schedule::new(size, size) }
}
