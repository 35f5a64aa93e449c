//! The ring: reduce-scatter and all-gather in n-1 steps each, broadcast as a pipeline, barrier as
//! an all-reduce of a token. May touch: sim's Speed.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", JPDC 69 (2009). Cost, with chunks of m bytes (a token: m), latency a, a step's s
//! = o + mb, reduction g: all-reduce and barrier (2n-1)s + (n-1)(mg + 2a); reduce-scatter
//! ns + (n-1)(mg + a); all-gather and broadcast ns + (n-1)a.

use core::ops::Range;

use super::{ALL_PAIRS, Hosts, Op, Place, Schedule, Step, Volume, fuse, halves};
use crate::sim::Speed;

/// The order in which the ring visits the ranks: each sends to the next, the last to the first; on
/// which hosts they are; and whether they have other links beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    order: Vec<u32>,
    /// Where each rank stands in `order`.
    position: Vec<u32>,
    hosts: Hosts,
    /// The largest world in which every rank has a link to every other one.
    most: u32,
}

impl Ring {
    /// A ring through `order`, which must be a permutation of `0..order.len()`, on one host.
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
        let hosts = Hosts::new(vec![order.len() as u32]);
        Some(Self { order, position, hosts, most: ALL_PAIRS })
    }

    /// A ring through all ranks of a host, then those of the next; together they must be a
    /// permutation.
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

    /// The same, with links between all pairs if it has at most `most` ranks; [`ALL_PAIRS`] if
    /// nobody says.
    #[must_use]
    pub fn with_all_pairs(self, most: u32) -> Self {
        Self { most, ..self }
    }

    /// Has every rank a link to every other one?
    #[must_use]
    pub fn all_pairs(&self) -> bool {
        self.size() <= self.most
    }

    /// Up to how many ranks would have links between all pairs.
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

    /// Where its hosts are, if there are rings within them and between: several, one of several
    /// ranks, none of none.
    pub(crate) fn host_rings(&self) -> Option<&Hosts> {
        let (Some((least, _)), Some((most, _))) =
            (self.hosts.sizes().first(), self.hosts.sizes().last())
        else {
            return None;
        };
        (self.hosts.count() > 1 && *least > 0 && *most > 1).then_some(&self.hosts)
    }

    /// How many hosts, and how many ranks each has; `None` unless there are several hosts, of
    /// several ranks each, and of as many.
    #[must_use]
    pub fn grid(&self) -> Option<[u32; 2]> {
        match *self.hosts.sizes() {
            [(each, hosts)] if hosts > 1 && each > 1 => Some([hosts, each]),
            _ => None,
        }
    }

    /// How many of its links lead from one host to another.
    #[must_use]
    pub fn crossings(&self) -> u32 {
        if self.hosts.count() == 1 { 0 } else { self.hosts.count() }
    }

    /// Where a rank stands on it, from 0.
    #[must_use]
    pub fn position(&self, rank: u32) -> u32 {
        self.position[rank as usize]
    }

    /// The rank at a place, from 0.
    pub(super) fn at(&self, place: u32) -> u32 {
        self.order[place as usize]
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

    /// How many hops lead from one rank to another.
    #[must_use]
    pub fn hops(&self, from: u32, to: u32) -> u32 {
        let [from, to] = [from, to].map(|rank| self.position[rank as usize]);
        (self.size() + to - from) % self.size()
    }

    /// Is every rank followed by the next one?
    #[must_use]
    pub fn is_natural(&self) -> bool {
        (0..self.size()).all(|rank| self.hops(rank, (rank + 1) % self.size()) <= 1)
    }

    /// A step of rank `me` between its neighbours.
    pub(super) fn step(&self, me: u32, op: Op, place: Place) -> Step {
        let from = if op.receives() { self.after(me, -1) } else { me };
        let to = if op.sends() { self.after(me, 1) } else { me };
        Step::new(op, me, place).from(from).to(to)
    }
}

/// Input: a chunk per rank. Output: one chunk, the own one reduced over all ranks. The chunk of the
/// rank before me leaves first, mine arrives last, with every contribution.
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

/// Input: one chunk. Output: everybody's. The own one is put in its place while it travels.
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

/// Reduce-scatter and all-gather as parts of an all-reduce.
pub(super) fn parts(ring: &Ring, me: u32) -> [Schedule; 2] {
    halves([reduce_scatter(ring, me), all_gather(ring, me)], ring.size(), me)
}

/// Reduce-scatter, then all-gather, fused: 2n-1 steps.
#[must_use]
pub fn all_reduce(ring: &Ring, me: u32) -> Schedule {
    let [scatter, gather] = parts(ring, me);
    fuse(scatter, gather)
}

/// The root's buffer, a single chunk, goes down the ring; its slices follow each other.
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

/// The all-reduce of chunk 0 alone, a token: nobody has it back before everybody gave.
#[must_use]
pub fn barrier(ring: &Ring, me: u32) -> Schedule {
    let mut steps = all_reduce(ring, me).steps;
    steps.retain(|step| step.dst.chunk == 0);
    Schedule { steps, ..Schedule::new(1, 1) }
}

/// Twice (n-1)/n of the buffer per rank.
pub(super) fn all_reduced(size: u32) -> Volume {
    let (n, hops) = (u64::from(size), u64::from(size - 1));
    Volume { most: 2 * hops, total: 2 * hops * n }
}

/// Reduce-scatter and all-gather: once (n-1)/n of the buffer per rank.
pub(super) fn halved(size: u32) -> Volume {
    let (n, hops) = (u64::from(size), u64::from(size - 1));
    Volume { most: hops, total: hops * n }
}

/// The buffer once per rank, but for the last one.
pub(super) fn broadcasted(size: u32) -> Volume {
    Volume { most: 1, total: u64::from(size - 1) }
}

/// The token goes round twice, but for its last hop.
pub(super) fn passed(size: u32) -> Volume {
    Volume { most: 2, total: 2 * u64::from(size - 1) }
}

/// The closed form of all-reduce and barrier, for chunks of so many bytes. `size` is not 1.
pub(super) fn reduced_cost(size: u32, chunk: f64, speed: &Speed) -> f64 {
    let (n, hops) = (f64::from(size), f64::from(size - 1));
    n * speed.moved(chunk) + hops * (speed.folded(chunk) + 2.0 * speed.latency)
}

/// The closed form of all-gather and broadcast. `size` is not 1.
pub(super) fn passed_cost(size: u32, chunk: f64, speed: &Speed) -> f64 {
    f64::from(size) * speed.moved(chunk) + f64::from(size - 1) * speed.latency
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
