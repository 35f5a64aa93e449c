//! The algorithms by name, and what each says of itself: the schedules that it makes of a
//! collective, what those send and what they cost. May touch: the files of the algorithms,
//! element's names, sim's Speed. Law: what a definition says is of one schedule, and `None` is the
//! same for all of it and for all ranks.

use core::fmt;
use core::str::FromStr;

use super::{
    Collective, Ring, Schedule, Volume, all_pairs, bruck, collective, dissemination, halving,
    hierarchical, recursive, tree, two_rings,
};
use crate::element::{UnknownName, by_name};
use crate::sim::Speed;

/// All that there is to know of an algorithm; each file in this room that holds one says it there.
/// The methods of [`Algorithm`] tell what the fields mean.
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) window: usize,
    pub(super) least_chunk: usize,
    pub(super) reads: Reads,
    pub(super) chunks: fn(Collective, u32) -> u32,
    pub(super) schedule: fn(Collective, &Ring, u32) -> Option<Schedule>,
    pub(super) volume: fn(Collective, &Ring) -> Option<Volume>,
    pub(super) cost: fn(Collective, &Ring, f64, &Speed) -> Option<f64>,
}

/// How the reductions of an algorithm read the ranks, from left to right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// In some order.
    Somehow,
    /// Rank 0, 1, .., n-1, in brackets of any kind.
    InRankOrder,
    /// ((rank 0, rank 1), rank 2), .., one by one.
    OneByOne,
}

impl Definition {
    /// What most have in common; it makes nothing.
    pub(super) const USUAL: Self = Self {
        name: "",
        window: 1,
        least_chunk: 0,
        reads: Reads::Somehow,
        chunks: |collective, size| match collective {
            Collective::AllReduce => size,
            _ => collective.blocks(size),
        },
        schedule: |_, _, _| None,
        volume: |_, _| None,
        cost: |_, _, _, _| None,
    };
}

macro_rules! algorithms {
    ($($(#[$doc:meta])* $algorithm:ident: $definition:path;)*) => {
        /// A way of doing a collective.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])* $algorithm,)*
        }

        impl Algorithm {
            /// Every algorithm, in the order of its discriminant.
            pub const ALL: [Self; [$(stringify!($algorithm)),*].len()] = [$(Self::$algorithm),*];

            const fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$algorithm => &$definition,)*
                }
            }
        }
    };
}

// Fingerprints hold the numbers, from 0 on: a new one goes to the end.
algorithms! {
    /// Each rank sends to the next one alone: fewest bytes, most hops.
    Ring: collective::RING;
    /// Everybody sends all that others need straight to them: one hop.
    AllPairs: all_pairs::ALL_PAIRS;
    /// An all-reduce of two hops: each rank reduces one chunk and sends it to all.
    TwoShot: all_pairs::TWO_SHOT;
    /// Ranks exchange all they have with those at distance 1, 2, 4, ...
    RecursiveDoubling: recursive::DEFINITION;
    /// They exchange half of it, then half of that, and go back the same way.
    HalvingDoubling: halving::DEFINITION;
    /// Like the ring, half of it the other way round: half as many hops, twice as many links.
    TwoRings: two_rings::DEFINITION;
    /// Up and down a binomial tree: few hops, and only its root sends much.
    Binomial: tree::BINOMIAL;
    /// Up and down two binary trees, every other chunk each: nobody sends much, and pieces follow
    /// each other.
    DoubleTree: tree::DOUBLE;
    /// All-gather and reduce-scatter in as few hops as trees, with as few bytes as the ring.
    Bruck: bruck::DEFINITION;
    /// Rings within the hosts and between them, where there are several, one of several ranks.
    Hierarchical: hierarchical::DEFINITION;
    /// A barrier in which each hears from ranks at distance 1, 2, 4, ..., whatever their number.
    Dissemination: dissemination::DEFINITION;
    /// For ranks of one host, on registered memory or with little data: everybody lays its own open
    /// and reads that of all. Its steps are those of all pairs, whose messages are laid down once
    /// for all readers.
    Direct: all_pairs::DIRECT;
}

impl Algorithm {
    /// The name that the environment and options take.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// How many chunks a rank may send to another before that one takes the first: links need slots
    /// for so many rounds' pieces. See [`SlotShape::shared`](crate::partition::SlotShape::shared).
    #[must_use]
    pub const fn window(self) -> usize {
        self.definition().window
    }

    /// Bytes of the shortest chunk that it takes while a later one has any.
    #[must_use]
    pub const fn least_chunk(self) -> usize {
        self.definition().least_chunk
    }

    /// Into how many chunks its schedules cut the longer one of input and output.
    #[must_use]
    pub fn chunks(self, collective: Collective, size: u32) -> u32 {
        (self.definition().chunks)(collective, size)
    }

    /// Do its reductions read, from left to right, rank 0, 1, .., n-1? Operations that do not
    /// commute need that. (A reduce reads from its root on, after rank n-1 rank 0.)
    #[must_use]
    pub const fn in_rank_order(self) -> bool {
        !matches!(self.definition().reads, Reads::Somehow)
    }

    /// Do they read ((rank 0, rank 1), rank 2), .., one by one, whatever the number of ranks?
    /// Prefixes do, for which only the ring's name stands.
    #[must_use]
    pub const fn folds_left(self, collective: Collective) -> bool {
        let prefix = matches!(collective, Collective::Scan | Collective::Exscan);
        matches!(self.definition().reads, Reads::OneByOne) || prefix
    }

    /// The schedule of rank `me`; `None` if the algorithm does not do this collective among so
    /// many ranks.
    #[must_use]
    pub fn schedule(self, collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
        (self.definition().schedule)(collective, order, me)
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
        (self.definition().volume)(collective, order)
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
        if order.size() == 1 {
            // Everything is where it has to be.
            return self.volume(collective, &Ring::natural(1)).map(|_| 0.0);
        }
        (self.definition().cost)(collective, order, bytes, speed)
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
