//! The collectives by name, and the schedule of each on a ring.

use core::str::FromStr;

use super::{Definition, Ring, Schedule, Volume, all_to_all, relay, ring, rooted, scan};
use crate::element::{UnknownName, by_name};
use crate::sim::Speed;

/// The default for the largest world in which every rank has a link to every other: see
/// [`Ring::with_all_pairs`].
pub const ALL_PAIRS: u32 = 32;

/// The ring as an algorithm; it makes every collective.
pub(super) const RING: Definition = Definition {
    name: "ring",
    schedule: |collective, order, me| Some(collective.schedule(order, me)),
    volume: |collective, order| Some(collective.volume(order)),
    cost: |collective, order, bytes, speed| Some(collective.cost(order, bytes, speed)),
    ..Definition::DEFAULT
};

/// A collective operation. "Chunk r" is the r-th part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// All ranks get every chunk, reduced over all ranks.
    AllReduce,
    /// Rank r gets chunk r, reduced over all ranks.
    ReduceScatter,
    /// All ranks get chunk r from rank r.
    AllGather,
    /// All ranks get every chunk from the root.
    Broadcast {
        /// The rank that gives.
        root: u32,
    },
    /// The root gets every chunk, reduced over all ranks.
    Reduce {
        /// The rank that gets the result.
        root: u32,
    },
    /// The root gets chunk r from rank r.
    Gather {
        /// The rank that gets the chunks.
        root: u32,
    },
    /// Rank r gets chunk r from the root.
    Scatter {
        /// The rank that gives.
        root: u32,
    },
    /// Rank r gets chunk r from every rank.
    AllToAll,
    /// Rank r gets every chunk, reduced over ranks 0 to r.
    Scan,
    /// Rank r gets every chunk, reduced over ranks 0 to r-1; rank 0 gets nothing.
    Exscan,
    /// No rank completes before all ranks have started: an all-reduce of a token.
    Barrier,
}

impl Collective {
    /// All collectives among `size` ranks; a rooted one for every root.
    #[must_use]
    pub fn all(size: u32) -> Vec<Self> {
        let mut all = vec![
            Self::AllReduce,
            Self::ReduceScatter,
            Self::AllGather,
            Self::AllToAll,
            Self::Scan,
            Self::Exscan,
            Self::Barrier,
        ];
        for root in 0..size {
            all.extend([Self::Broadcast { root }, Self::Reduce { root }]);
            all.extend([Self::Gather { root }, Self::Scatter { root }]);
        }
        all
    }

    /// The name of the collective, as the method of a communicator is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Scan => "scan",
            Self::Exscan => "exscan",
            Self::Barrier => "barrier",
        }
    }

    /// The name of the method on blocks whose lengths differ; [`Self::name`] if it has none.
    pub(crate) const fn name_of_uneven(self) -> &'static str {
        match self {
            Self::ReduceScatter => "reduce_scatter_v",
            Self::AllGather => "all_gather_v",
            Self::Gather { .. } => "gather_v",
            Self::Scatter { .. } => "scatter_v",
            Self::AllToAll => "all_to_all_v",
            other => other.name(),
        }
    }

    /// The number of the collective in fingerprints and flight records, from 1.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::AllReduce => 1,
            Self::ReduceScatter => 2,
            Self::AllGather => 3,
            Self::Broadcast { .. } => 4,
            Self::Reduce { .. } => 5,
            Self::Gather { .. } => 6,
            Self::Scatter { .. } => 7,
            Self::AllToAll => 8,
            Self::Scan => 9,
            Self::Exscan => 10,
            Self::Barrier => 11,
        }
    }

    /// The collective with this root; unchanged if it has none.
    #[must_use]
    pub const fn with_root(self, root: u32) -> Self {
        match self {
            Self::Broadcast { .. } => Self::Broadcast { root },
            Self::Reduce { .. } => Self::Reduce { root },
            Self::Gather { .. } => Self::Gather { root },
            Self::Scatter { .. } => Self::Scatter { root },
            other => other,
        }
    }

    /// The root, if the collective has one.
    #[must_use]
    pub const fn root(self) -> Option<u32> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// True if the collective reduces.
    #[must_use]
    pub const fn reduces(self) -> bool {
        let folds = matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. });
        folds || matches!(self, Self::Scan | Self::Exscan | Self::Barrier)
    }

    /// The schedule of rank `me` on a ring.
    #[must_use]
    pub fn schedule(self, order: &Ring, me: u32) -> Schedule {
        let (size, direct) = (order.size(), order.all_pairs());
        match self {
            Self::AllReduce => ring::all_reduce(order, me),
            Self::ReduceScatter => ring::reduce_scatter(order, me),
            Self::AllGather => ring::all_gather(order, me),
            Self::Broadcast { root } => ring::broadcast(order, me, root),
            Self::Reduce { root } => rooted::reduce(order, me, root),
            Self::Gather { root } if direct => rooted::gather(size, me, root),
            Self::Gather { root } => relay::gather(order, me, root),
            Self::Scatter { root } if direct => rooted::scatter(size, me, root),
            Self::Scatter { root } => relay::scatter(order, me, root),
            Self::AllToAll if direct => all_to_all(size, me),
            Self::AllToAll => relay::all_to_all(order, me),
            Self::Scan => scan(size, me),
            Self::Exscan => scan::exscan(size, me),
            Self::Barrier => ring::barrier(order, me),
        }
    }

    /// The number of chunks that these schedules send.
    #[must_use]
    pub fn volume(self, order: &Ring) -> Volume {
        let direct = order.all_pairs();
        let [n, others] = [order.size(), order.size() - 1].map(u64::from);
        let [most, total] = match self {
            Self::AllReduce => [2 * others, 2 * others * n],
            Self::ReduceScatter | Self::AllGather => [others, others * n],
            Self::AllToAll if direct => [others, others * n],
            // Each rank has one block for every number of hops.
            Self::AllToAll => [n * others / 2, n * n * others / 2],
            Self::Scatter { .. } if direct => [others, others],
            Self::Gather { .. } if direct => [1, others],
            // The block of the rank h hops away is sent h times.
            Self::Gather { .. } | Self::Scatter { .. } => [others, n * others / 2],
            // Every rank but one sends once.
            Self::Broadcast { .. } | Self::Reduce { .. } | Self::Scan | Self::Exscan => [1, others],
            // The token goes round twice, without the last hop.
            Self::Barrier => [2, 2 * others],
        };
        Volume { most, total }
    }

    /// The time of these schedules in seconds, in place, with one slice per chunk. `bytes` is the
    /// length of the longer one of a rank's input and output.
    #[must_use]
    pub fn cost(self, order: &Ring, bytes: f64, speed: &Speed) -> f64 {
        if order.size() == 1 {
            // A single rank has everything in place.
            return 0.0;
        }
        let (n, others, direct) =
            (f64::from(order.size()), f64::from(order.size() - 1), order.all_pairs());
        let (block, a) = (bytes / n, speed.latency);
        // The closed forms in the headers of `ring`, `rooted`, `relay`, `all_to_all` and `scan`.
        let both_halves = |m| n * speed.moved(m) + others * (speed.folded(m) + 2.0 * a);
        let reduced = |m| speed.moved(m) + others * (speed.folded(m) + a);
        let gathered = |m| n * speed.moved(m) + others * a;
        let s = speed.moved(block);
        match self {
            Self::AllReduce => both_halves(block),
            Self::Barrier => both_halves(bytes),
            Self::ReduceScatter => reduced(block),
            Self::Reduce { .. } | Self::Scan => reduced(bytes),
            Self::AllGather => gathered(block),
            Self::Broadcast { .. } => gathered(bytes),
            Self::Gather { .. } | Self::Scatter { .. } if direct => n * s + a,
            Self::Gather { .. } | Self::Scatter { .. } => others * (2.0 * s + a),
            Self::AllToAll if direct => (2.0 * others * s).max(n * s + a),
            Self::AllToAll => n * others / 2.0 * (2.0 * s + a) + (others / 2.0).floor() * s,
            Self::Exscan => {
                let first = 2.0 * speed.moved(bytes) + a;
                first + (n - 2.0) * (first + speed.folded(bytes))
            }
        }
    }

    /// True if all messages of these schedules go from a rank to the next one on the ring.
    #[must_use]
    pub fn keeps_to(self, ring: &Ring) -> bool {
        match self {
            Self::Gather { .. } | Self::Scatter { .. } | Self::AllToAll => {
                ring.size() <= 2 || !ring.all_pairs()
            }
            Self::Scan | Self::Exscan => ring.is_natural(),
            _ => true,
        }
    }

    /// True if the collective has one block per rank, each of the length that the caller gives.
    /// Other collectives cut the buffer into chunks freely.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        self.blocks(2) > 1
    }

    /// The number of blocks of the longer one of a rank's input and output; 1 without blocks.
    #[must_use]
    pub const fn blocks(self, size: u32) -> u32 {
        let [input, output] = self.shape(size);
        if input > output { input } else { output }
    }

    /// The number of blocks of the input and of the output.
    #[must_use]
    pub const fn shape(self, size: u32) -> [u32; 2] {
        match self {
            Self::ReduceScatter | Self::Scatter { .. } => [size, 1],
            Self::AllGather | Self::Gather { .. } => [1, size],
            Self::AllToAll => [size, size],
            _ => [1, 1],
        }
    }

    /// The number of blocks that rank `me` sends and receives, out of place; 0 for a buffer that it
    /// does not use.
    #[must_use]
    pub fn sides(self, me: u32, size: u32) -> [usize; 2] {
        let [input, output] = self.shape(size).map(|blocks| blocks as usize);
        match self.root() {
            Some(root) if root != me && self.has_input(me) => [input, 0],
            Some(root) if root != me => [0, output],
            _ => [input, output],
        }
    }

    /// True if what is sent has a block for each rank, and what is received is one of them.
    pub(crate) const fn scatters(self) -> bool {
        let [input, output] = self.shape(2);
        input > output
    }

    /// The schedules of all ranks on a ring.
    #[must_use]
    pub fn schedules(self, order: &Ring) -> Vec<Schedule> {
        (0..order.size()).map(|me| self.schedule(order, me)).collect()
    }
}

/// Parses the name; a rooted collective gets root 0.
impl FromStr for Collective {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name("collective", &Self::all(1), Self::name, name)
    }
}
