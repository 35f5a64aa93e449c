//! The ring: reduce-scatter and all-gather in n-1 steps each, broadcast as a pipeline, barrier as
//! an all-reduce of a token. May touch: nothing.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69 (2009). Cost of all-reduce of m bytes over n ranks, latency a, seconds
//! per byte b, reduction g: 2(n-1)a + 2(n-1)/n mb + (n-1)/n mg.

use super::{Op, Schedule, Step, fuse};

/// The order in which the ring visits the ranks: each sends to the next, the last to the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    order: Vec<u32>,
    /// Where each rank stands in `order`.
    position: Vec<u32>,
}

impl Ring {
    /// A ring through `order`, which must be a permutation of `0..order.len()`.
    #[must_use]
    pub fn new(order: Vec<u32>) -> Option<Self> {
        let mut position = vec![u32::MAX; order.len()];
        for (at, &rank) in order.iter().enumerate() {
            let seat = position.get_mut(rank as usize)?;
            if *seat != u32::MAX {
                return None;
            }
            *seat = at as u32;
        }
        Some(Self { order, position })
    }

    /// The ring 0, 1, .., n-1.
    #[must_use]
    pub fn natural(size: u32) -> Self {
        Self { order: (0..size).collect(), position: (0..size).collect() }
    }

    /// How many ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.order.len() as u32
    }

    /// The rank `hops` (which may be negative) after `rank`.
    #[must_use]
    pub fn after(&self, rank: u32, hops: i64) -> u32 {
        let at = i64::from(self.position[rank as usize]) + hops;
        self.order[at.rem_euclid(self.order.len() as i64) as usize]
    }

    pub(super) fn step(&self, me: u32, op: Op, last: bool, chunk: u32) -> Step {
        let from = if op.receives() { self.after(me, -1) } else { me };
        let to = if op.sends() { self.after(me, 1) } else { me };
        Step { op, last, chunk, from, to }
    }
}

/// Chunk r of the result ends at rank r: the chunk of the rank before me leaves first, mine
/// arrives last, with every contribution.
#[must_use]
pub fn reduce_scatter(ring: &Ring, me: u32) -> Schedule {
    let n = i64::from(ring.size());
    let mut steps = Vec::with_capacity(n as usize);
    if n > 1 {
        steps.push(ring.step(me, Op::Send, false, ring.after(me, -1)));
        for hop in 2..n {
            steps.push(ring.step(me, Op::RecvReduceSend, false, ring.after(me, -hop)));
        }
        steps.push(ring.step(me, Op::RecvReduceCopy, true, me));
    }
    Schedule { chunks: ring.size(), steps }
}

/// Rank r starts with chunk r, and every rank ends with all of them.
#[must_use]
pub fn all_gather(ring: &Ring, me: u32) -> Schedule {
    let n = i64::from(ring.size());
    let mut steps = Vec::with_capacity(n as usize);
    if n > 1 {
        steps.push(ring.step(me, Op::Send, false, me));
        for hop in 1..n - 1 {
            steps.push(ring.step(me, Op::RecvCopySend, false, ring.after(me, -hop)));
        }
        steps.push(ring.step(me, Op::Recv, false, ring.after(me, 1)));
    }
    Schedule { chunks: ring.size(), steps }
}

/// Reduce-scatter, then all-gather, fused: 2n-1 steps.
#[must_use]
pub fn all_reduce(ring: &Ring, me: u32) -> Schedule {
    fuse(reduce_scatter(ring, me), all_gather(ring, me))
}

/// The root's buffer, a single chunk, goes down the ring; its slices follow each other.
#[must_use]
pub fn broadcast(ring: &Ring, me: u32, root: u32) -> Schedule {
    let op = if me == root {
        Op::Send
    } else if ring.after(me, 1) == root {
        Op::Recv
    } else {
        Op::RecvCopySend
    };
    let steps = if ring.size() > 1 { vec![ring.step(me, op, false, 0)] } else { Vec::new() };
    Schedule { chunks: 1, steps }
}

/// The all-reduce of chunk 0 alone, a token: nobody has it back before everybody gave.
#[must_use]
pub fn barrier(ring: &Ring, me: u32) -> Schedule {
    let mut schedule = all_reduce(ring, me);
    schedule.chunks = 1;
    schedule.steps.retain(|step| step.chunk == 0);
    schedule
}

#[cfg(test)]
mod tests {
    use super::Ring;

    #[test]
    fn a_ring_is_a_permutation() {
        assert_eq!(Ring::new(vec![0, 2]), None);
        assert_eq!(Ring::new(vec![1, 1, 0]), None);
        assert_eq!(Ring::new((0..5).collect()), Some(Ring::natural(5)));
    }

    #[test]
    fn after_goes_round_both_ways() {
        let ring = Ring::new(vec![2, 0, 3, 1]).unwrap();
        assert_eq!(ring.after(1, 1), 2);
        assert_eq!(ring.after(2, -1), 1);
        assert_eq!(ring.after(0, 2 - 8), 1);
    }
}
