//! Prefix reductions (scan and exscan), as a chain in rank order: each rank receives the fold of
//! the ranks before it, and sends on the fold that includes its own contribution.
//!
//! With latency a, seconds per byte b and reduction g: a scan's slices follow each other down the
//! chain, m bytes in k slices in m/k(b + (n+k-2)(b+g)) + (n-1)a. An exscan stores what it receives
//! but sends something else, so it goes by way of the scratch, one round at a time; with one slice
//! it takes 2mb + a + (n-2)(3mb + mg + a).
//! # Example
//!
//! An exscan of four ranks. A rank keeps the fold of the ranks before it, and sends on the fold
//! that includes its own contribution:
//!
//! ```text
//!     rank 0     rank 1        rank 2          rank 3
//! 1   0: a > 1   s1 = b        s1 = c          0 = a+b+c
//! 2              s0 = a        s0 = a+b
//! 3              s1 = a+b      s1 = a+b+c
//! 4              s1: a+b > 2   s1: a+b+c > 3
//! 5              0 = a         0 = a+b
//! ```

use super::{Op, Place, Schedule, Step};

/// The schedule of a scan. Input and output: one chunk. Rank r gets the fold of ranks 0 to r.
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

/// The schedule of an exscan: of one chunk, rank r gets the fold of ranks 0 to r-1, rank 0 nothing.
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
