//! The ring: reduce-scatter (some texts say scatter-reduce) and all-gather, broadcast as a
//! pipeline, barrier by a token.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69 (2009). Cost, with chunks of m bytes (a token: m), latency a, a step's s
//! = o + mb, reduction g: all-reduce and barrier (2n-1)s + (n-1)(mg + 2a); reduce-scatter
//! ns + (n-1)(mg + a); all-gather and broadcast ns + (n-1)a.
//! # Example
//!
//! An all-reduce of four ranks. Step 4 ends the reduce-scatter and begins the all-gather:
//!
//! ```text
//!     rank 0            rank 1            rank 2            rank 3
//! 1   3: a > 1          0: b > 2          1: c > 3          2: d > 0
//! 2   2: d+a > 1        3: a+b > 2        0: b+c > 3        1: c+d > 0
//! 3   1: c+d+a > 1      2: d+a+b > 2      3: a+b+c > 3      0: b+c+d > 0
//! 4   0 = b+c+d+a > 1   1 = c+d+a+b > 2   2 = d+a+b+c > 3   3 = a+b+c+d > 0
//! 5   3 = a+b+c+d > 1   0 = b+c+d+a > 2   1 = c+d+a+b > 3   2 = d+a+b+c > 0
//! 6   2 = d+a+b+c > 1   3 = a+b+c+d > 2   0 = b+c+d+a > 3   1 = c+d+a+b > 0
//! 7   1 = c+d+a+b       2 = d+a+b+c       3 = a+b+c+d       0 = b+c+d+a
//! ```

use core::ops::Range;

use super::hosts::HostsOfSize;
use super::{ALL_PAIRS, Hosts, Op, Place, Schedule, Step, fuse_halves};

/// The order in which the ring visits the ranks (each sends to the next, the last to the first),
/// the host of each rank, and whether all pairs of ranks are linked besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    order: Vec<u32>,
    /// The position of each rank in `order`.
    position: Vec<u32>,
    hosts: Hosts,
    /// The largest world in which every rank has a link to every other.
    most: u32,
}

/// Hosts that all have the same number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The number of hosts.
    pub hosts: u32,
    /// The number of ranks of each host.
    pub ranks: u32,
}

impl Ring {
    /// A ring in this order, on one host; `None` unless `order` is a permutation of the ranks.
    #[must_use]
    pub fn new(order: Vec<u32>) -> Option<Self> {
        let mut position = vec![u32::MAX; order.len()];
        for (at, &rank) in order.iter().enumerate() {
            let at_rank = position.get_mut(rank as usize)?;
            if *at_rank != u32::MAX {
                return None;
            }
            *at_rank = at as u32;
        }
        let hosts = Hosts::new(vec![order.len() as u32]);
        Some(Self { order, position, hosts, most: ALL_PAIRS })
    }

    /// A ring through all ranks of one host, then those of the next; `None` unless the hosts
    /// together are a permutation.
    #[must_use]
    pub fn through(hosts: &[Vec<u32>]) -> Option<Self> {
        let ring = Self::new(hosts.concat())?;
        let hosts = Hosts::new(hosts.iter().map(|host| host.len() as u32).collect());
        Some(Self { hosts, ..ring })
    }

    /// The ring 0, 1, .., n-1, on one host.
    #[must_use]
    pub fn natural(size: u32) -> Self {
        let ranks = || (0..size).collect();
        let hosts = Hosts::new(vec![size]);
        Self { order: ranks(), position: ranks(), hosts, most: ALL_PAIRS }
    }

    /// This ring, with links between all pairs of up to `most` ranks; [`ALL_PAIRS`] by default.
    #[must_use]
    pub fn with_all_pairs(self, most: u32) -> Self {
        Self { most, ..self }
    }

    /// True if every rank has a link to every other.
    #[must_use]
    pub fn all_pairs(&self) -> bool {
        self.size() <= self.most
    }

    /// The largest world in which every rank has a link to every other.
    #[must_use]
    pub fn most_pairs(&self) -> u32 {
        self.most
    }

    /// The ranks of each host, in the order of the ring.
    pub fn hosts(&self) -> impl Iterator<Item = &[u32]> {
        let places = |host| {
            let Range { start, end } = self.hosts.places(host);
            &self.order[start as usize..end as usize]
        };
        (0..self.hosts.count()).map(places)
    }

    /// The hosts, if there are rings within and between them: several hosts, at least one with
    /// several ranks, none without ranks.
    pub(crate) fn host_rings(&self) -> Option<&Hosts> {
        let (least, most) = (self.hosts.sizes().first()?, self.hosts.sizes().last()?);
        (self.hosts.count() > 1 && least.ranks > 0 && most.ranks > 1).then_some(&self.hosts)
    }

    /// The grid of hosts and their ranks; `None` unless there are several hosts, all with the same
    /// number of ranks, more than one.
    #[must_use]
    pub fn grid(&self) -> Option<Grid> {
        match *self.hosts.sizes() {
            [HostsOfSize { ranks, hosts }] if hosts > 1 && ranks > 1 => Some(Grid { hosts, ranks }),
            _ => None,
        }
    }

    /// The number of the ring's links that lead from one host to another.
    #[must_use]
    pub fn crossings(&self) -> u32 {
        if self.hosts.count() == 1 { 0 } else { self.hosts.count() }
    }

    /// The number of a rank's host, in the order of [`Self::hosts`].
    #[must_use]
    pub fn host(&self, rank: u32) -> u32 {
        self.hosts.host(self.position(rank))
    }

    /// The position of a rank on the ring, from 0.
    #[must_use]
    pub fn position(&self, rank: u32) -> u32 {
        self.position[rank as usize]
    }

    /// The rank at a position, from 0.
    pub(super) fn at(&self, place: u32) -> u32 {
        self.order[place as usize]
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.order.len() as u32
    }

    /// The rank `hops` after `rank`, or before it if `hops` is negative.
    #[must_use]
    pub fn after(&self, rank: u32, hops: i64) -> u32 {
        let at = i64::from(self.position[rank as usize]) + hops;
        self.order[at.rem_euclid(self.order.len() as i64) as usize]
    }

    /// The number of hops from one rank to another.
    #[must_use]
    pub fn hops(&self, from: u32, to: u32) -> u32 {
        let [from, to] = [from, to].map(|rank| self.position[rank as usize]);
        (self.size() + to - from) % self.size()
    }

    /// True if each rank is followed by the rank with the next number.
    #[must_use]
    pub fn is_natural(&self) -> bool {
        (0..self.size()).all(|rank| self.hops(rank, (rank + 1) % self.size()) <= 1)
    }

    /// A step of rank `me` that receives from the previous rank and sends to the next one.
    pub(super) fn step(&self, me: u32, op: Op, place: Place) -> Step {
        let from = if op.receives() { self.after(me, -1) } else { me };
        let to = if op.sends() { self.after(me, 1) } else { me };
        Step::new(op, me, place).from(from).to(to)
    }
}

/// The schedule of a reduce-scatter. Input: a chunk per rank. Output: the own chunk, reduced over
/// all ranks. The chunk of the previous rank leaves first; the own chunk arrives last, with the
/// contributions of all ranks.
#[must_use]
pub fn reduce_scatter(ring: &Ring, me: u32) -> Schedule {
    let n = i64::from(ring.size());
    let mut steps = Vec::with_capacity(n as usize);
    let mine = Place::input(me);
    if n == 1 {
        steps.push(ring.step(me, Op::Copy, mine).into(Place::output(0)));
    } else {
        steps.push(ring.step(me, Op::Send, Place::input(ring.after(me, -1))));
        for hop in 2..n {
            steps.push(ring.step(me, Op::RecvReduceSend, Place::input(ring.after(me, -hop))));
        }
        steps.push(ring.step(me, Op::RecvReduceCopy, mine).into(Place::output(0)).last(true));
    }
    Schedule { steps, ..Schedule::new(ring.size(), 1) }
}

/// The schedule of an all-gather. Input: one chunk. Output: the chunks of all ranks. The own one is
/// copied to its place while it travels.
#[must_use]
pub fn all_gather(ring: &Ring, me: u32) -> Schedule {
    let n = i64::from(ring.size());
    let mut steps = Vec::with_capacity(n as usize + 1);
    let mine = Place::input(0);
    if n > 1 {
        steps.push(ring.step(me, Op::Send, mine));
    }
    steps.push(ring.step(me, Op::Copy, mine).into(Place::output(me)));
    for hop in 1..n - 1 {
        steps.push(ring.step(me, Op::RecvCopySend, Place::output(ring.after(me, -hop))));
    }
    if n > 1 {
        steps.push(ring.step(me, Op::Recv, Place::output(ring.after(me, 1))));
    }
    Schedule { steps, ..Schedule::new(1, ring.size()) }
}

/// The schedule of an all-reduce: reduce-scatter, then all-gather, fused; 2n-1 steps.
#[must_use]
pub fn all_reduce(ring: &Ring, me: u32) -> Schedule {
    fuse_halves(reduce_scatter(ring, me), all_gather(ring, me), me)
}

/// The schedule of a broadcast: the root's buffer, a single chunk, goes down the ring in slices
/// that follow each other.
#[must_use]
pub fn broadcast(ring: &Ring, me: u32, root: u32) -> Schedule {
    let mut steps = Vec::with_capacity(2);
    let (mine, result) = (Place::input(0), Place::output(0));
    if me == root {
        if ring.size() > 1 {
            steps.push(ring.step(me, Op::Send, mine));
        }
        steps.push(ring.step(me, Op::Copy, mine).into(result));
    } else if ring.after(me, 1) == root {
        steps.push(ring.step(me, Op::Recv, result));
    } else {
        steps.push(ring.step(me, Op::RecvCopySend, result));
    }
    Schedule { steps, ..Schedule::new(1, 1) }
}

/// The schedule of a barrier: the all-reduce of chunk 0 alone, a token. No rank gets it back before
/// all ranks have added to it.
#[must_use]
pub fn barrier(ring: &Ring, me: u32) -> Schedule {
    let mut steps = all_reduce(ring, me).steps;
    steps.retain(|step| step.dst.chunk == 0);
    Schedule { steps, ..Schedule::new(1, 1) }
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
        for (rank, hops) in [(2, 0), (0, 1), (3, 2), (1, 3)] {
            assert_eq!((ring.hops(2, rank), ring.after(2, i64::from(hops))), (hops, rank));
        }
        assert!(!ring.is_natural() && Ring::natural(4).is_natural());
        assert!(Ring::new(vec![3, 0, 1, 2]).unwrap().is_natural());
    }
}
