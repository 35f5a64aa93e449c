//! Rooted collectives: reduce as a pipeline down the ring; gather and scatter by direct messages
//! between the root and every other rank.
//!
//! With latency a, seconds per byte b and reduction g: reduce of m bytes in k slices takes
//! m/k(b + (n+k-2)(b+g)) + (n-1)a; gather and scatter of n blocks of m bytes nmb + a, nearly all of
//! it at the root, which no algorithm avoids (Chan et al., "Collective communication: theory,
//! practice, and experience", 2007).
//! # Example
//!
//! A reduce of four ranks to rank 0. With several slices, all ranks work at the same time:
//!
//! ```text
//!     rank 0        rank 1     rank 2       rank 3
//! 1   0 = b+c+d+a   0: b > 2   0: b+c > 3   0: b+c+d > 0
//! ```

use super::all_pairs::{others, sends};
use super::{Op, Place, Ring, Schedule, Step};

/// The schedule of a reduce. Input and output: one chunk. The rank after the root begins, the root
/// adds the last contribution.
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

/// The schedule of a gather. Input: one chunk. Output, at the root: the chunks of all ranks, in
/// rank order.
#[must_use]
pub fn gather(size: u32, me: u32, root: u32) -> Schedule {
    let mine = Place::input(0);
    let mut steps = Vec::new();
    if me == root {
        steps.push(Step::new(Op::Copy, me, mine).into(Place::output(me)));
        let receive = |peer| Step::new(Op::Recv, me, Place::output(peer)).from(peer);
        steps.extend(others(size, me).map(receive));
    } else {
        steps.push(Step::new(Op::Send, me, mine).to(root));
    }
    Schedule { steps, ..Schedule::new(1, size) }
}

/// The schedule of a scatter. Input, at the root: a chunk for every rank. Output: one chunk.
#[must_use]
pub fn scatter(size: u32, me: u32, root: u32) -> Schedule {
    let mine = Place::output(0);
    let mut steps = Vec::new();
    if me == root {
        steps.extend(sends(size, me, Place::input));
        steps.push(Step::new(Op::Copy, me, Place::input(me)).into(mine));
    } else {
        steps.push(Step::new(Op::Recv, me, mine).from(root));
    }
    Schedule { steps, ..Schedule::new(size, 1) }
}
