//! The algorithms by name: which schedule each makes of a collective, what that sends and what it
//! costs. May touch: the files of the algorithms, element's names, sim's Speed. Law: the three
//! answers are of one schedule, and `None` is the same for all of them and for all ranks.

use core::fmt;
use core::str::FromStr;

use super::recursive::Pairing;
use super::tree::{self, Trees};
use super::{
    Collective, Ring, Schedule, Volume, all_pairs, bruck, dissemination, halving, hierarchical,
    recursive, two_rings,
};
use crate::element::{UnknownName, by_name};
use crate::sim::Speed;

/// A way of doing a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Each rank sends to the next one alone: fewest bytes, most hops.
    Ring = 0,
    /// Everybody sends all that others need straight to them: one hop.
    AllPairs,
    /// An all-reduce of two hops: each rank reduces one chunk and sends it to all.
    TwoShot,
    /// Ranks exchange all they have with those at distance 1, 2, 4, ...
    RecursiveDoubling,
    /// They exchange half of it, then half of that, and go back the same way.
    HalvingDoubling,
    /// Like the ring, half of it the other way round: half as many hops, twice as many links.
    TwoRings,
    /// Up and down a binomial tree: few hops, and only its root sends much.
    Binomial,
    /// Up and down two binary trees, every other chunk each: nobody sends much, and pieces follow
    /// each other.
    DoubleTree,
    /// All-gather and reduce-scatter in as few hops as trees, with as few bytes as the ring.
    Bruck,
    /// Rings within the hosts and between them, where there are several, one of several ranks.
    Hierarchical,
    /// A barrier in which each hears from ranks at distance 1, 2, 4, ..., whatever their number.
    Dissemination,
    /// For ranks of one host, on registered memory or with little data: everybody lays its own open
    /// and reads that of all. Its steps are those of all pairs, whose messages are laid down once
    /// for all readers.
    Direct,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 12] = [
        Self::Ring,
        Self::AllPairs,
        Self::TwoShot,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::TwoRings,
        Self::Binomial,
        Self::DoubleTree,
        Self::Bruck,
        Self::Hierarchical,
        Self::Dissemination,
        Self::Direct,
    ];

    /// The name that the environment and options take.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AllPairs => "all_pairs",
            Self::TwoShot => "two_shot",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::HalvingDoubling => "halving_doubling",
            Self::TwoRings => "two_rings",
            Self::Binomial => "binomial",
            Self::DoubleTree => "double_tree",
            Self::Bruck => "bruck",
            Self::Hierarchical => "hierarchical",
            Self::Dissemination => "dissemination",
            Self::Direct => "direct",
        }
    }

    /// How many chunks a rank may send to another before that one takes the first: links need slots
    /// for so many rounds' pieces. See [`SlotShape::shared`](crate::partition::SlotShape::shared).
    #[must_use]
    pub const fn window(self) -> usize {
        match self {
            Self::Bruck => bruck::WINDOW as usize,
            Self::DoubleTree => tree::WINDOW,
            Self::Hierarchical => hierarchical::WINDOW,
            _ => 1,
        }
    }

    /// Bytes of the shortest chunk that it takes while a later one has any.
    #[must_use]
    pub const fn least_chunk(self) -> usize {
        match self {
            Self::DoubleTree => tree::LEAST,
            _ => 0,
        }
    }

    /// Into how many chunks its schedules cut the longer one of input and output.
    #[must_use]
    pub fn chunks(self, collective: Collective, size: u32) -> u32 {
        match (self, collective) {
            (Self::DoubleTree, _) => Trees::Double.chunks(size),
            (Self::HalvingDoubling, Collective::AllReduce) => Pairing::of(size).chunks(),
            (
                Self::AllPairs | Self::RecursiveDoubling | Self::Binomial | Self::Direct,
                Collective::AllReduce,
            ) => 1,
            (_, Collective::AllReduce) => size,
            _ if collective.has_blocks() => size,
            _ => 1,
        }
    }

    /// Do its reductions read, from left to right, rank 0, 1, .., n-1? Operations that do not
    /// commute need that. (A reduce reads from its root on, after rank n-1 rank 0.)
    #[must_use]
    pub const fn in_rank_order(self) -> bool {
        !matches!(
            self,
            Self::Ring | Self::TwoRings | Self::Bruck | Self::Hierarchical | Self::Dissemination
        )
    }

    /// Do they read ((rank 0, rank 1), rank 2), .., one by one, whatever the number of ranks?
    /// Prefixes do, for which only the ring's name stands.
    #[must_use]
    pub const fn folds_left(self, collective: Collective) -> bool {
        let prefix = matches!(collective, Collective::Scan | Collective::Exscan);
        matches!(self, Self::AllPairs | Self::TwoShot | Self::Direct) || prefix
    }

    /// The schedule of rank `me`; `None` if the algorithm does not do this collective among so
    /// many ranks.
    #[must_use]
    pub fn schedule(self, collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
        let size = order.size();
        match (self, collective) {
            (Self::Ring, _) => Some(collective.schedule(order, me)),
            (Self::AllPairs, _) => all_pairs::schedule(collective, size, me),
            (Self::TwoShot, Collective::AllReduce) => Some(all_pairs::two_shot(size, me)),
            (Self::RecursiveDoubling, Collective::AllReduce | Collective::Barrier) => {
                Some(recursive::all_reduce(size, me))
            }
            (Self::HalvingDoubling, _) => halving::schedule(collective, size, me),
            (Self::TwoRings, _) => two_rings::schedule(collective, order, me),
            (Self::Binomial, _) => tree::schedule(Trees::Binomial, collective, size, me),
            (Self::DoubleTree, _) => tree::schedule(Trees::Double, collective, size, me),
            (Self::Bruck, _) => bruck::schedule(collective, size, me),
            (Self::Hierarchical, _) => hierarchical::schedule(collective, order, me),
            (Self::Dissemination, _) => dissemination::schedule(collective, size, me),
            (Self::Direct, _) => all_pairs::schedule(collective, size, me),
            _ => None,
        }
    }

    /// Is there a schedule? As [`Self::schedule`] would say, without making one.
    #[must_use]
    pub fn makes(self, collective: Collective, order: &Ring) -> bool {
        self.volume(collective, order).is_some()
    }

    /// The schedules of all ranks.
    #[must_use]
    pub fn schedules(self, collective: Collective, order: &Ring) -> Option<Vec<Schedule>> {
        (0..order.size()).map(|me| self.schedule(collective, order, me)).collect()
    }

    /// What these schedules send.
    #[must_use]
    pub fn volume(self, collective: Collective, order: &Ring) -> Option<Volume> {
        let size = order.size();
        match (self, collective) {
            (Self::Ring, _) => Some(collective.volume(order)),
            (Self::AllPairs, _) => all_pairs::volume(collective, size),
            (Self::TwoShot, Collective::AllReduce) => Some(all_pairs::two_shot_volume(size)),
            (Self::RecursiveDoubling, Collective::AllReduce | Collective::Barrier) => {
                Some(recursive::volume(size))
            }
            (Self::HalvingDoubling, _) => halving::volume(collective, size),
            (Self::TwoRings, _) => two_rings::volume(collective, size),
            (Self::Binomial, _) => tree::volume(Trees::Binomial, collective, size),
            (Self::DoubleTree, _) => tree::volume(Trees::Double, collective, size),
            (Self::Bruck, _) => bruck::volume(collective, size),
            (Self::Hierarchical, _) => hierarchical::volume(collective, order),
            (Self::Dissemination, _) => dissemination::volume(collective, size),
            (Self::Direct, _) => all_pairs::volume(collective, size),
            _ => None,
        }
    }

    /// Seconds that it takes, in place, each chunk being one slice: [`cost`](crate::sim::cost) as
    /// a formula, of double trees about. `bytes` is the length of the longer one of a rank's input
    /// and output. `None` also where one speed is not enough to tell: see
    /// [`hierarchical_cost`](super::hierarchical_cost).
    #[must_use]
    pub fn cost(
        self,
        collective: Collective,
        order: &Ring,
        bytes: f64,
        speed: &Speed,
    ) -> Option<f64> {
        let size = order.size();
        if size == 1 {
            // Everything is where it has to be.
            return self.volume(collective, &Ring::natural(1)).map(|_| 0.0);
        }
        match (self, collective) {
            (Self::Ring, _) => Some(collective.cost(order, bytes, speed)),
            (Self::AllPairs, _) => all_pairs::cost(collective, size, bytes, speed),
            (Self::TwoShot, Collective::AllReduce) => all_pairs::two_shot_cost(size, bytes, speed),
            (Self::RecursiveDoubling, Collective::AllReduce | Collective::Barrier) => {
                Some(recursive::cost(size, bytes, speed))
            }
            (Self::HalvingDoubling, _) => halving::cost(collective, size, bytes, speed),
            (Self::TwoRings, _) => two_rings::cost(collective, size, bytes, speed),
            (Self::Binomial, _) => tree::cost(Trees::Binomial, collective, size, bytes, speed),
            (Self::DoubleTree, _) => tree::cost(Trees::Double, collective, size, bytes, speed),
            (Self::Bruck, _) => bruck::cost(collective, size, bytes, speed),
            (Self::Dissemination, _) => dissemination::cost(collective, size, bytes, speed),
            (Self::Direct, _) => all_pairs::cost(collective, size, bytes, speed),
            _ => None,
        }
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("algorithm", &Self::ALL, Self::name, name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, Collective, Ring, Speed};
    use crate::partition::{Partition, SlotShape};
    use crate::sim::{Shape, cost};

    #[test]
    fn names_are_read_back_and_others_are_told_the_known_ones() {
        for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            assert_eq!(algorithm as usize, number);
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        let error = "rings".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.starts_with("unknown algorithm `rings`: one of ring, "), "{error}");
    }

    #[test]
    fn what_it_makes_is_known_without_making_it() {
        let hosts = |hosts: &[u32]| {
            let mut next = 0..;
            let ranks = hosts.iter().map(|&ranks| next.by_ref().take(ranks as usize).collect());
            Ring::through(&ranks.collect::<Vec<_>>()).unwrap()
        };
        let grids = [&[2, 2][..], &[3, 3, 3], &[1, 1, 1], &[2, 3], &[1, 1, 2], &[4]].map(hosts);
        for ring in (1..=33).map(Ring::natural).chain(grids) {
            for collective in Collective::all(ring.size().min(2)) {
                for algorithm in Algorithm::ALL {
                    let made = algorithm.schedule(collective, &ring, 0).is_some();
                    assert_eq!(
                        algorithm.makes(collective, &ring),
                        made,
                        "{algorithm} {collective:?}"
                    );
                }
            }
        }
    }

    /// Latency, a step and bytes each dominate in one, and all count in the others.
    const SPEEDS: [Speed; 5] = [
        Speed { latency: 1e-6, step: 0.3e-6, byte: 0.05e-9, reduce: 0.02e-9 },
        Speed { latency: 20e-6, step: 0.0, byte: 0.1e-9, reduce: 0.0 },
        Speed { latency: 0.0, step: 2e-6, byte: 0.1e-9, reduce: 0.3e-9 },
        Speed { latency: 4e-6, step: 1e-6, byte: 0.0, reduce: 0.0 },
        Speed { latency: 1e-6, step: 0.1e-6, byte: 0.2e-9, reduce: 0.9e-9 },
    ];

    #[test]
    fn the_closed_forms_are_the_cost_of_a_walk() {
        let chunk = 64 * 1024;
        let slots = SlotShape { bytes: chunk, capacity: 2 };
        for algorithm in Algorithm::ALL {
            let worlds = (1..=33).map(Ring::natural);
            for ring in worlds.chain([2, 7, 12].map(|n| Ring::natural(n).with_all_pairs(2))) {
                let size = ring.size();
                let all = Collective::all(size).into_iter();
                let all = all.filter(|it| it.root().is_none_or(|root| root == size / 3));
                for (collective, speed) in all.flat_map(|c| SPEEDS.map(|s| (c, s))) {
                    let schedules = algorithm.schedules(collective, &ring);
                    let volume = algorithm.volume(collective, &ring);
                    assert!(volume.is_some() || schedules.is_none());
                    let Some(schedules) = schedules else { continue };
                    let chunks = schedules[0].input.max(schedules[0].output) as usize;
                    let partition = [Partition::exact(chunk, 1, slots)];
                    let shape = Shape::of(&partition, 2 * chunks);
                    let walk = cost(collective, &schedules, &shape, speed).unwrap();
                    let bytes = (chunks * chunk) as f64;
                    let form = algorithm.cost(collective, &ring, bytes, &speed).unwrap();
                    // Of many pieces the pair's is not exact: see there.
                    let about = if algorithm == Algorithm::DoubleTree { 0.2 } else { 1e-9 };
                    assert_eq!(algorithm.chunks(collective, size) as usize, chunks);
                    assert!(
                        (walk - form).abs() <= about * walk,
                        "{algorithm} {collective:?} n={size} {speed:?}: {walk} {form}"
                    );
                }
            }
        }
    }
}
