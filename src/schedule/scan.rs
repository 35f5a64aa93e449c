//! Prefixes, as a chain in the order of ranks: each takes what the ranks before it come to, and
//! passes on what it comes to with its own. May touch: rooted's cost, sim's Speed.
//!
//! With latency a, seconds per byte b and reduction g: a scan's slices follow each other down the
//! chain, m bytes in k of them in m/k(b + (n+k-2)(b+g)) + (n-1)a. An exscan stores what came in and
//! passes on another thing, hence by way of the scratch and a round at a time, which of one slice
//! takes 2mb + a + (n-2)(3mb + mg + a).

use super::{Op, Place, Schedule, Step, Volume, rooted};
use crate::sim::Speed;

/// Input and output: one chunk. Rank r gets the fold of ranks 0 to r.
#[must_use]
pub fn scan(size: u32, me: u32) -> Schedule {
    let (mine, result) = (Place::input(0), Place::output(0));
    let ends = me + 1 == size;
    let steps = if me == 0 {
        let mut steps = Vec::with_capacity(2);
        if !ends {
            steps.push(Step::new(Op::Send, me, mine).to(1));
        }
        steps.push(Step::new(Op::Copy, me, mine).into(result));
        steps
    } else if ends {
        vec![Step::new(Op::RecvReduceCopy, me, mine).into(result).from(me - 1)]
    } else {
        vec![Step::new(Op::RecvReduceCopySend, me, mine).into(result).from(me - 1).to(me + 1)]
    };
    Schedule { steps, ..Schedule::new(1, 1) }
}

/// Input and output: one chunk. Rank r gets the fold of ranks 0 to r-1; rank 0 gets nothing.
#[must_use]
pub fn exscan(size: u32, me: u32) -> Schedule {
    let (mine, result) = (Place::input(0), Place::output(0));
    let (before, with_mine) = (Place::scratch(0), Place::scratch(1));
    let mut schedule = Schedule::new(1, 1);
    if me == 0 {
        if size > 1 {
            schedule.steps.push(Step::new(Op::Send, me, mine).to(1));
        }
    } else if me + 1 == size {
        schedule.steps.push(Step::new(Op::Recv, me, result).from(me - 1));
    } else {
        schedule.scratch = vec![mine, mine];
        schedule.steps.extend([
            Step::new(Op::Copy, me, mine).into(with_mine),
            Step::new(Op::Recv, me, before).from(me - 1),
            Step::new(Op::ReduceCopy, me, before).into(with_mine),
            Step::new(Op::Send, me, with_mine).to(me + 1),
            Step::new(Op::Copy, me, before).into(result),
        ]);
    }
    schedule
}

/// Every rank but the last sends once.
pub(super) fn volume(size: u32) -> Volume {
    Volume { most: 1, total: u64::from(size - 1) }
}

/// The closed form of a scan whose chunk is one slice: a reduce's. `size` is not 1.
pub(super) fn cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    rooted::reduce_cost(size, bytes, speed)
}

/// The closed form of an exscan. `size` is not 1.
pub(super) fn exscan_cost(size: u32, bytes: f64, speed: &Speed) -> f64 {
    let (s, a) = (speed.moved(bytes), speed.latency);
    let between = 2.0 * s + speed.folded(bytes) + a;
    2.0 * s + a + f64::from(size - 2) * between
}
