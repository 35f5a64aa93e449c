//! All-to-all by direct messages: every rank sends each block to its destination, the next rank's
//! first, and then receives, the previous rank's first.
//!
//! No rank waits before all of a round's pieces have left, so latencies overlap; and in place, each
//! block has left before another takes its place. (MPICH's "scattered" algorithm, with links that
//! hold a round instead of non-blocking calls.) Cost, blocks of m bytes, latency a, a step's s = o
//! + mb: 2(n-1)s, or ns + a if that is more.
//! # Example
//!
//! An all-to-all of four ranks; `a1` is the block of rank 0 for rank 1:
//!
//! ```text
//!     rank 0      rank 1      rank 2      rank 3
//! 1   1: a1 > 1   2: b2 > 2   3: c3 > 3   0: d0 > 0
//! 2   2: a2 > 2   3: b3 > 3   0: c0 > 0   1: d1 > 1
//! 3   3: a3 > 3   0: b0 > 0   1: c1 > 1   2: d2 > 2
//! 4   0 = a0      1 = b1      2 = c2      3 = d3
//! 5   3 = d0      0 = a1      1 = b2      2 = c3
//! 6   2 = c0      3 = d1      0 = a2      1 = b3
//! 7   1 = b0      2 = c1      3 = d2      0 = a3
//! ```

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
