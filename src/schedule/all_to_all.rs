//! All-to-all in pairs: in step s every rank exchanges blocks with the one rank whose number and
//! its own add up to s, modulo n. May touch: nothing.
//!
//! Each pair meets once and each sends before it receives the block of the same number, so that it
//! works in place. (A round-robin tournament, as Gloo and MPICH pair ranks by exclusive or where n
//! is a power of two.) With latency a and seconds per byte b, blocks of m bytes: (n-1)(a + mb).

use super::{Op, Place, Schedule, Step, Volume};

/// Input: a chunk for every rank. Output: a chunk from every rank.
#[must_use]
pub fn all_to_all(size: u32, me: u32) -> Schedule {
    let mut steps = Vec::with_capacity(2 * size as usize);
    for sum in 0..size {
        let peer = (size + sum - me) % size;
        let (mine, theirs) = (Place::input(peer), Place::output(peer));
        if peer == me {
            steps.push(Step::new(Op::Copy, me, mine).into(theirs));
        } else {
            steps.push(Step::new(Op::Send, me, mine).to(peer));
            steps.push(Step::new(Op::Recv, me, theirs).from(peer));
        }
    }
    Schedule { steps, ..Schedule::new(size, size) }
}

/// Everybody sends all blocks but the own one.
pub(super) fn volume(size: u32) -> Volume {
    let (n, others) = (u64::from(size), u64::from(size - 1));
    Volume { most: others, total: n * others }
}
