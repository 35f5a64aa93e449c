//! Gather, scatter and all-to-all along the ring, for worlds too large to link all pairs: each rank
//! forwards the blocks of others by way of the scratch.
//!
//! Source: the linear algorithms of Chan et al., "Collective communication: theory, practice, and
//! experience", CCPE 19 (2007). Cost, blocks of m bytes, latency a, a step's s = o + mb: gather and
//! scatter (n-1)(2s + a), as the root's neighbour takes and gives all others' blocks; all-to-all
//! n(n-1)/2 (2s + a), as every block goes all its way by hops, and (n-1)/2 s, rounded down, for
//! those that wait in the scratch.
//! # Example
//!
//! A gather of four ranks at rank 0. The block of rank 1 goes by way of ranks 2 and 3:
//!
//! ```text
//!     rank 0   rank 1     rank 2      rank 3
//! 1   0 = a    0: b > 2   0: c > 3    0: d > 0
//! 2   3 = d               s0 = b      s0 = c
//! 3   2 = c               s0: b > 3   s0: c > 0
//! 4   1 = b                           s0 = b
//! 5                                   s0: b > 0
//! ```

use super::{Op, Place, Ring, Schedule};

/// The schedule of a gather, as [`super::gather`], along the ring. A rank sends its own block
/// first, then those of the ranks behind it.
#[must_use]
pub fn gather(ring: &Ring, me: u32, root: u32) -> Schedule {
    let mut schedule = Schedule::new(1, ring.size());
    let mine = Place::input(0);
    if me == root {
        schedule.steps.push(ring.step(me, Op::Copy, mine).into(Place::output(me)));
        for hop in 1..i64::from(ring.size()) {
            let place = Place::output(ring.after(me, -hop));
            schedule.steps.push(ring.step(me, Op::Recv, place));
        }
    } else {
        schedule.steps.push(ring.step(me, Op::Send, mine));
        let behind = ring.size() - ring.hops(me, root) - 1;
        pass(ring, me, &mut schedule, mine, i64::from(behind));
    }
    schedule
}

/// The schedule of a scatter, as [`super::scatter`], along the ring. The block that goes farthest
/// leaves first.
#[must_use]
pub fn scatter(ring: &Ring, me: u32, root: u32) -> Schedule {
    let mut schedule = Schedule::new(ring.size(), 1);
    let mine = Place::output(0);
    if me == root {
        for hop in (1..i64::from(ring.size())).rev() {
            let place = Place::input(ring.after(me, hop));
            schedule.steps.push(ring.step(me, Op::Send, place));
        }
        schedule.steps.push(ring.step(me, Op::Copy, Place::input(me)).into(mine));
    } else {
        let ahead = ring.hops(me, root) - 1;
        pass(ring, me, &mut schedule, mine, i64::from(ahead));
        schedule.steps.push(ring.step(me, Op::Recv, mine));
    }
    schedule
}

/// The schedule of an all-to-all, as [`super::all_to_all()`], along the ring: blocks that go h
/// hops, then blocks that go n-h hops, for each h. In place, a received block of the first kind
/// would replace a block of the second kind that has not left, so it waits in the scratch.
#[must_use]
pub fn all_to_all(ring: &Ring, me: u32) -> Schedule {
    let n = i64::from(ring.size());
    let mut schedule = Schedule::new(ring.size(), ring.size());
    schedule.steps.push(ring.step(me, Op::Copy, Place::input(me)).into(Place::output(me)));
    for hops in 1..=n / 2 {
        let (ahead, behind) = (ring.after(me, hops), ring.after(me, -hops));
        schedule.steps.push(ring.step(me, Op::Send, Place::input(ahead)));
        pass(ring, me, &mut schedule, Place::input(0), hops - 1);
        if 2 * hops == n {
            schedule.steps.push(ring.step(me, Op::Recv, Place::output(behind)));
            continue;
        }
        let waiting = Place::scratch(1);
        schedule.scratch = vec![Place::input(0); 2];
        schedule.steps.push(ring.step(me, Op::Recv, waiting));
        schedule.steps.push(ring.step(me, Op::Send, Place::input(behind)));
        pass(ring, me, &mut schedule, Place::input(0), n - hops - 1);
        schedule.steps.push(ring.step(me, Op::Recv, Place::output(ahead)));
        schedule.steps.push(ring.step(me, Op::Copy, waiting).into(Place::output(behind)));
    }
    schedule
}

/// Forwards `blocks` blocks, as long as the one at `like`, from the previous rank to the next.
fn pass(ring: &Ring, me: u32, schedule: &mut Schedule, like: Place, blocks: i64) {
    let block = Place::scratch(0);
    for _ in 0..blocks {
        if schedule.scratch.is_empty() {
            schedule.scratch.push(like);
        }
        schedule.steps.extend([Op::Recv, Op::Send].map(|op| ring.step(me, op, block)));
    }
}
