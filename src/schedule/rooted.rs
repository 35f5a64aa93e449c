//! One rank against all: reduce as a pipeline down the ring, gather and scatter directly between
//! the root and every other rank. May touch: ring, sim's Speed.
//!
//! With latency a, seconds per byte b and reduction g: reduce of m bytes in k slices takes
//! m/k(b + (n+k-2)(b+g)) + (n-1)a; gather and scatter of n blocks of m bytes nmb + a, nearly all of
//! it at the root, which no algorithm avoids (Chan et al., "Collective communication: theory,
//! practice, and experience", 2007).

use super::{Op, Place, Ring, Schedule, Step, Volume};
use crate::sim::Speed;

/// Input and output: one chunk. The rank after the root begins, the root has the last word.
#[must_use]
pub fn reduce(ring: &Ring, me: u32, root: u32) -> Schedule {
    let (mine, result) = (Place::input(0), Place::output(0));
    let step = if ring.size() == 1 {
        ring.step(me, Op::Copy, mine).into(result)
    } else if me == root {
        ring.step(me, Op::RecvReduceCopy, mine).into(result).last(true)
    } else if ring.after(me, -1) == root {
        ring.step(me, Op::Send, mine)
    } else {
        ring.step(me, Op::RecvReduceSend, mine)
    };
    Schedule { steps: vec![step], ..Schedule::new(1, 1) }
}

/// Input: one chunk. Output, at the root: everybody's, in the order of ranks.
#[must_use]
pub fn gather(size: u32, me: u32, root: u32) -> Schedule {
    let mine = Place::input(0);
    let mut steps = Vec::new();
    if me == root {
        steps.push(Step::new(Op::Copy, me, mine).into(Place::output(me)));
        for peer in others(size, me) {
            steps.push(Step::new(Op::Recv, me, Place::output(peer)).from(peer));
        }
    } else {
        steps.push(Step::new(Op::Send, me, mine).to(root));
    }
    Schedule { steps, ..Schedule::new(1, size) }
}

/// Input, at the root: a chunk for every rank. Output: one chunk.
#[must_use]
pub fn scatter(size: u32, me: u32, root: u32) -> Schedule {
    let mine = Place::output(0);
    let mut steps = Vec::new();
    if me == root {
        for peer in others(size, me) {
            steps.push(Step::new(Op::Send, me, Place::input(peer)).to(peer));
        }
        steps.push(Step::new(Op::Copy, me, Place::input(me)).into(mine));
    } else {
        steps.push(Step::new(Op::Recv, me, mine).from(root));
    }
    Schedule { steps, ..Schedule::new(size, 1) }
}

/// The other ranks, the next one first.
fn others(size: u32, me: u32) -> impl Iterator<Item = u32> {
    (1..size).map(move |hop| (me + hop) % size)
}

/// Every rank but the one at the end sends once.
pub(super) fn reduced(size: u32) -> Volume {
    Volume { most: 1, total: u64::from(size - 1) }
}

/// Every rank but the root sends its block.
pub(super) fn gathered(size: u32) -> Volume {
    Volume { most: 1, total: u64::from(size - 1) }
}

/// The root sends all blocks but its own.
pub(super) fn scattered(size: u32) -> Volume {
    Volume { most: u64::from(size - 1), total: u64::from(size - 1) }
}

/// The closed form of a reduce whose chunk is one slice. `size` is not 1.
pub(super) fn reduce_cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    speed.moved(bytes) + f64::from(size - 1) * (speed.folded(bytes) + speed.latency)
}

/// The closed form of gather and scatter; `bytes` of all blocks. `size` is not 1.
pub(super) fn cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    let n = f64::from(size);
    n * speed.moved(bytes / n) + speed.latency
}
