//! All-to-all, directly: every rank sends each block to where it belongs, the next rank's first,
//! and then receives, the previous rank's first. May touch: sim's Speed.
//!
//! As nobody waits before all of a round's pieces have left, latencies overlap; and in place each
//! block has left before another takes its place. (MPICH's "scattered" algorithm, with links that
//! hold a round in place of non-blocking calls.) Cost, blocks of m bytes, latency a, a step's s =
//! o + mb: 2(n-1)s, or ns + a if that is more.

use super::{Op, Place, Schedule, Step, Volume};
use crate::sim::Speed;

/// Input: a chunk for every rank. Output: a chunk from every rank.
#[must_use]
pub fn all_to_all(size: u32, me: u32) -> Schedule {
    let mut steps = Vec::with_capacity(2 * size as usize);
    for peer in (1..size).map(|hop| (me + hop) % size) {
        steps.push(Step::new(Op::Send, me, Place::input(peer)).to(peer));
    }
    steps.push(Step::new(Op::Copy, me, Place::input(me)).into(Place::output(me)));
    for peer in (1..size).map(|hop| (me + size - hop) % size) {
        steps.push(Step::new(Op::Recv, me, Place::output(peer)).from(peer));
    }
    Schedule { steps, ..Schedule::new(size, size) }
}

/// Everybody sends all blocks but the own one.
pub(super) fn volume(size: u32) -> Volume {
    let (n, others) = (u64::from(size), u64::from(size - 1));
    Volume { most: others, total: n * others }
}

/// The closed form; `bytes` of all blocks of a rank. `size` is not 1.
pub(super) fn cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    let n = f64::from(size);
    let s = speed.moved(bytes / n);
    (2.0 * (n - 1.0) * s).max(n * s + speed.latency)
}
