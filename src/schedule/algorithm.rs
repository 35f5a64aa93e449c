//! The algorithms by name, and the definition of each: its schedules for a collective, the chunks
//! that they send, and their closed-form cost. Law: all parts of a definition describe one
//! schedule, and are `None` in the same cases, for all ranks. Only `cost` is also `None` where
//! links of one speed do not suffice.

use super::{
    Collective, Ring, Schedule, Volume, all_pairs, bruck, circulant, collective, dissemination,
    halving, hierarchical, recursive, single_copy, staged, tree, two_rings,
};
use crate::element::named;
use crate::sim::Speed;

/// The definition of an algorithm, which stands in the algorithm's file. The methods of
/// [`Algorithm`] explain the fields.
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) window: usize,
    pub(super) least_chunk: usize,
    pub(super) read_order: ReadOrder,
    pub(super) links: RequiredLinks,
    pub(super) chunks: fn(Collective, &Ring) -> u32,
    pub(super) schedule: fn(Collective, &Ring, u32) -> Option<Schedule>,
    pub(super) volume: fn(Collective, &Ring) -> Option<Volume>,
    pub(super) cost: fn(Collective, &Ring, f64, &Speed) -> Option<f64>,
}

/// The order in which the reductions of an algorithm read the ranks, from left to right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOrder {
    /// Any order.
    Any,
    /// Ranks 0, 1, .., n-1, in any brackets.
    RankOrder,
    /// ((rank 0, rank 1), rank 2), .., one by one.
    Sequential,
}

/// The links that the messages of an algorithm need.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredLinks {
    /// The links that every world has: between neighbours on the ring and between ranks whose
    /// numbers differ by a power of two; with several hosts also along the rings within and between
    /// hosts.
    EveryWorld,
    /// As `EveryWorld` if the number of ranks is a power of two, else between all pairs.
    Doubling,
    /// Between all pairs of ranks.
    AllPairs,
}

impl Definition {
    /// The common values; an algorithm that makes no collective.
    pub(super) const DEFAULT: Self = Self {
        name: "",
        window: 1,
        least_chunk: 0,
        read_order: ReadOrder::Any,
        links: RequiredLinks::EveryWorld,
        chunks: |collective, order| match collective {
            Collective::AllReduce => order.size(),
            _ => collective.blocks(order.size()),
        },
        schedule: |_, _, _| None,
        volume: |_, _| None,
        cost: |_, _, _, _| None,
    };
}

macro_rules! algorithms {
    ($($(#[$doc:meta])* $algorithm:ident: $definition:path;)*) => {
        /// An algorithm for collectives.
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

// Fingerprints contain the discriminants, so a new algorithm goes to the end.
algorithms! {
    /// Each rank sends to the next one on the ring only: fewest bytes, most hops.
    Ring: collective::RING;
    /// Each rank sends all that the others need straight to them: one hop.
    AllPairs: all_pairs::ALL_PAIRS;
    /// An all-reduce or a reduce in two hops: each rank reduces one chunk and sends the result to
    /// all, or to the root.
    TwoShot: all_pairs::TWO_SHOT;
    /// Ranks exchange all they have with the ranks at distance 1, 2, 4, ...
    RecursiveDoubling: recursive::DEFINITION;
    /// Recursive halving and doubling: ranks exchange half of the buffer, then half of that, and so
    /// on, and then go back the same way.
    HalvingDoubling: halving::DEFINITION;
    /// Two rings in opposite directions, half of the data on each: half as many hops as one ring,
    /// on twice as many links.
    TwoRings: two_rings::DEFINITION;
    /// Up and down a binomial tree: few hops; the root sends most.
    Binomial: tree::BINOMIAL;
    /// Up and down two binary trees, one half of the buffer on each, in pieces that follow each
    /// other: few hops, and no rank sends much.
    DoubleTree: tree::DOUBLE;
    /// Bruck's all-gather, and reduce-scatter as its mirror: hops of trees, bytes of the ring.
    Bruck: bruck::DEFINITION;
    /// Rings within hosts and between them, for several hosts, one at least of several ranks.
    Hierarchical: hierarchical::DEFINITION;
    /// A barrier in which each rank hears from the ranks at distance 1, 2, 4, ...
    Dissemination: dissemination::DEFINITION;
    /// For ranks of one host that share memory, on registered buffers or with little data: each
    /// rank makes its data readable and reads that of all others. Its schedule is that of all
    /// pairs.
    Direct: all_pairs::DIRECT;
    /// For ranks of one host that share memory, on any memory: each rank copies blocks to its
    /// stage and folds its part of all stages. Over links its schedule would be that of two-shot,
    /// or of the direct messages that move the same bytes.
    Staged: staged::DEFINITION;
    /// For ranks of one host, on any memory: each rank reads what it needs straight from the memory
    /// of the others. Over links its schedule would be that of two-shot, or of the direct messages
    /// that move the same bytes.
    SingleCopy: single_copy::DEFINITION;
    /// For several hosts with equal numbers of ranks, which share memory on each: stages within
    /// hosts and rings between them. Over links its schedule would be that of rings within hosts
    /// too.
    TwoLevel: hierarchical::TWO_LEVEL;
    /// Blocks over a circulant graph, of which every rank sends one and receives one in each round:
    /// few hops, and no rank sends much, for buffers too short for the pieces of a double tree.
    Circulant: circulant::DEFINITION;
}

impl Algorithm {
    /// The name of the algorithm, as environment variables and options spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// How many chunks a rank may send to another before that rank receives the first: links need
    /// slots for as many pieces. See [`SlotShape::shared`](crate::partition::SlotShape::shared).
    #[must_use]
    pub const fn window(self) -> usize {
        self.definition().window
    }

    /// The shortest chunk, in bytes, that is worth a message while a later chunk is not empty.
    #[must_use]
    pub const fn least_chunk(self) -> usize {
        self.definition().least_chunk
    }

    /// True if all links that the algorithm's messages need exist in the world of `ring`.
    #[must_use]
    pub fn reaches(self, ring: &Ring) -> bool {
        ring.all_pairs()
            || match self.definition().links {
                RequiredLinks::EveryWorld => true,
                RequiredLinks::Doubling => ring.size().is_power_of_two(),
                RequiredLinks::AllPairs => false,
            }
    }

    /// The number of chunks into which its schedules cut the longer one of input and output.
    #[must_use]
    pub fn chunks(self, collective: Collective, order: &Ring) -> u32 {
        (self.definition().chunks)(collective, order)
    }

    /// True if its reductions read rank 0, 1, .., n-1 from left to right, as operations that do not
    /// commute need. (A reduce starts at its root; rank 0 follows rank n-1.)
    #[must_use]
    pub const fn in_rank_order(self) -> bool {
        !matches!(self.definition().read_order, ReadOrder::Any)
    }

    /// True if its reductions read ((rank 0, rank 1), rank 2), .., one by one, for any number of
    /// ranks: the order that a deterministic call needs. Prefixes always do.
    #[must_use]
    pub const fn folds_left(self, collective: Collective) -> bool {
        matches!(self.definition().read_order, ReadOrder::Sequential) || collective.is_prefix()
    }

    /// True if ranks of one host make it by reading each other's memory, without messages.
    #[must_use]
    pub const fn is_in_shared_memory(self) -> bool {
        matches!(self, Self::Direct | Self::Staged | Self::SingleCopy)
    }

    /// The schedule of rank `me`; `None` if the algorithm does not make the collective here.
    #[must_use]
    pub fn schedule(self, collective: Collective, order: &Ring, me: u32) -> Option<Schedule> {
        (self.definition().schedule)(collective, order, me)
    }

    /// True if [`Self::schedule`] would return a schedule; does not make one.
    #[must_use]
    pub fn makes(self, collective: Collective, order: &Ring) -> bool {
        self.volume(collective, order).is_some()
    }

    /// The schedules of all ranks; `None` as for [`Self::schedule`].
    #[must_use]
    pub fn schedules(self, collective: Collective, order: &Ring) -> Option<Vec<Schedule>> {
        (0..order.size()).map(|me| self.schedule(collective, order, me)).collect()
    }

    /// The number of chunks that its schedules send; `None` as for [`Self::schedule`].
    #[must_use]
    pub fn volume(self, collective: Collective, order: &Ring) -> Option<Volume> {
        (self.definition().volume)(collective, order)
    }

    /// Its time in seconds, in place, with one slice per chunk: a closed form of
    /// [`cost`](crate::sim::cost), which is approximate for double trees. `bytes` is the length of
    /// the longer one of a rank's input and output. `None` also if one speed does not suffice: see
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
            // A single rank has everything in place.
            return self.volume(collective, &Ring::natural(1)).map(|_| 0.0);
        }
        (self.definition().cost)(collective, order, bytes, speed)
    }
}

named!(Algorithm: "algorithm");

#[cfg(test)]
mod tests {
    use super::{Algorithm, Collective, Ring, Speed};
    use crate::partition::{Partition, SlotShape};
    use crate::sim::{Shape, cost};

    #[test]
    fn names_are_parsed_and_an_unknown_name_lists_the_known_ones() {
        for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            assert_eq!(algorithm as usize, number);
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        let error = "rings".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.starts_with("unknown algorithm `rings`: one of ring, "), "{error}");
    }

    #[test]
    fn makes_is_true_exactly_if_there_is_a_schedule() {
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

    /// Latency, steps and bytes dominate in one each; the others have a bit of all.
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
                let all =
                    all.filter(|collective| collective.root().is_none_or(|root| root == size / 3));
                for (collective, speed) in all.flat_map(|c| SPEEDS.map(|s| (c, s))) {
                    let schedules = algorithm.schedules(collective, &ring);
                    let Some(schedules) = schedules else { continue };
                    let chunks = schedules[0].input.max(schedules[0].output) as usize;
                    let partition = [Partition::exact(chunk, 1, slots)];
                    let shape = Shape::of(&partition, 2 * chunks);
                    let walk = cost(collective, &schedules, &shape, speed).unwrap();
                    let bytes = (chunks * chunk) as f64;
                    let form = algorithm.cost(collective, &ring, bytes, &speed).unwrap();
                    // The closed form of the double tree is approximate: see `tree::cost`.
                    let about = if algorithm == Algorithm::DoubleTree { 0.2 } else { 1e-9 };
                    assert_eq!(algorithm.chunks(collective, &ring) as usize, chunks);
                    assert!(
                        (walk - form).abs() <= about * walk,
                        "{algorithm} {collective:?} n={size} {speed:?}: {walk} {form}"
                    );
                }
            }
        }
    }
}
