//! The rows and columns: which algorithm makes which collective among so many ranks, and one
//! rank's walk of all of it. Every rank of a world makes the same calls in the same order.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::{CallOptions, Communicator, Error, ReduceOp};

use super::values::{Op, Value};
use super::verbs::{Calls, Given};

/// What each algorithm makes at least in some world of up to nine; the ring, all there is.
const MAKES: [(Algorithm, &[&str]); 10] = [
    (Algorithm::AllPairs, &["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]),
    (Algorithm::TwoShot, &["all_reduce"]),
    (Algorithm::RecursiveDoubling, &["all_reduce", "barrier"]),
    (Algorithm::HalvingDoubling, &["all_reduce", "reduce_scatter", "all_gather"]),
    (Algorithm::TwoRings, &["all_reduce", "reduce_scatter", "all_gather"]),
    (Algorithm::Binomial, &["all_reduce", "broadcast", "reduce", "barrier"]),
    (Algorithm::DoubleTree, &["all_reduce", "broadcast", "reduce"]),
    (Algorithm::Bruck, &["reduce_scatter", "all_gather"]),
    (Algorithm::Dissemination, &["barrier"]),
    (Algorithm::Direct, &["all_reduce", "reduce_scatter", "all_gather", "barrier"]),
];

/// A size of several rounds and chunks.
pub(crate) const LONG: usize = 65_537;

/// One operation in so many is of a share with that size.
const LONG_OPS: u64 = 3;

/// How many cells were walked, by algorithm and collective.
pub(crate) type Walked = BTreeMap<(Algorithm, &'static str), usize>;

/// A way of doing a collective.
type Way = (Algorithm, Collective);

/// One rank of one world, through the whole table.
pub(crate) struct Walk<'a> {
    comm: &'a mut Communicator,
    n: usize,
    me: usize,
    /// What reduces, a barrier aside, and what does not; with every root.
    reducing: Vec<Way>,
    copying: Vec<Way>,
    walked: Walked,
}

/// All pairs of algorithm and collective, and whether the one makes the other.
fn ways(n: usize) -> impl Iterator<Item = (Way, bool)> {
    let ring = Ring::natural(n as u32);
    let all = Collective::all(n as u32).into_iter();
    let all = all.flat_map(|collective| Algorithm::ALL.map(|algorithm| (algorithm, collective)));
    all.map(move |(algorithm, it)| {
        // On registered memory it makes that too.
        let direct = algorithm == Algorithm::Direct && matches!(it, Collective::Broadcast { .. });
        ((algorithm, it), algorithm.makes(it, &ring) && !direct)
    })
}

/// What fits a stage: so much each rank can lay open for all others.
pub(crate) const STAGE: usize = 16 << 10;

/// Lengths of buffers or blocks.
pub(crate) fn counts(n: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, n - 1, n, n + 1, 1000];
    counts.sort_unstable();
    counts.dedup();
    counts
}

impl<'a> Walk<'a> {
    pub(crate) fn new(comm: &'a mut Communicator) -> Self {
        let (n, me) = (comm.size(), comm.rank());
        let made = ways(n).filter_map(|(way, made)| made.then_some(way));
        let made = made.filter(|(_, collective)| *collective != Collective::Barrier);
        let (reducing, copying) = made.partition(|(_, collective)| collective.reduces());
        Self { comm, n, me, reducing, copying, walked: Walked::new() }
    }

    /// The calls of one cell.
    fn cell<T: Value>(&mut self, way: Way, given: &Given<T>, count: usize) -> u64 {
        let (algorithm, collective) = way;
        let blocks = if collective.has_blocks() { self.n } else { 1 };
        if algorithm == Algorithm::Direct && count * blocks * size_of::<T>() > STAGE {
            return 0;
        }
        let mut comm = self.comm.with(CallOptions::new().algorithm(algorithm));
        let (n, me, mut alike) = (self.n, self.me, DefaultHasher::new());
        let comm = &mut comm;
        let mut calls = Calls { comm, algorithm, collective, given, n, me, count };
        calls.make(&mut alike);
        if algorithm == Algorithm::Ring {
            calls.uneven();
        }
        *self.walked.entry((algorithm, collective.name())).or_default() += 1;
        alike.finish()
    }

    /// Every operation, way and length for a type.
    pub(crate) fn every<T: Value>(&mut self) {
        for (number, op) in Op::all::<T>().into_iter().enumerate() {
            let given = Given::<T>::new(op, self.n, self.me);
            let average = op == Op::Plain(ReduceOp::Avg);
            let prefix = |way: &Way| matches!(way.1, Collective::Scan | Collective::Exscan);
            let mut ways = self.reducing.clone();
            ways.retain(|way| !(average && prefix(way)));
            if number == 0 {
                ways.extend(&self.copying);
            }
            for count in counts(self.n) {
                let alike = ways.iter().map(|&way| self.cell(way, &given, count)).collect();
                self.compare(alike, &ways, op, count);
            }
            if !share::has((number + T::DTYPE as usize) as u64, LONG_OPS) {
                continue;
            }
            // With one root, where there is one.
            let root = ((number + T::DTYPE as usize) % self.n) as u32;
            ways.retain(|(_, collective)| collective.root().is_none_or(|its| its == root));
            let block = LONG.div_ceil(self.n);
            let count = |way: &Way| if way.1.has_blocks() { block } else { LONG };
            let alike = ways.iter().map(|way| self.cell(*way, &given, count(way))).collect();
            self.compare(alike, &ways, op, LONG);
        }
    }

    /// All ranks must have got the same bits.
    fn compare(&mut self, mine: Vec<u64>, ways: &[Way], op: Op, count: usize) {
        let mut all = vec![0; self.n * mine.len()];
        self.comm.all_gather(&mine, &mut all).unwrap();
        for (at, digest) in all.iter().enumerate() {
            let way = at % mine.len();
            assert!(*digest == mine[way], "ranks differ: {:?} {op:?} {count}", ways[way]);
        }
    }

    /// What an algorithm can't do is refused, and harmless.
    pub(crate) fn refusals(&mut self) {
        for ((algorithm, collective), made) in ways(self.n) {
            let mut comm = self.comm.with(CallOptions::new().algorithm(algorithm));
            let done = attempt(&mut comm, collective);
            let name = collective.name();
            if made {
                done.unwrap_or_else(|error| panic!("{algorithm} {name}: {error}"));
                *self.walked.entry((algorithm, name)).or_default() += 1;
            } else {
                let refused = matches!(done, Err(Error::Argument { argument: "algorithm", .. }));
                // Alone, a rank has nobody to send to, by whatever algorithm.
                assert!(refused || self.n == 1, "{algorithm} {name}: {done:?}");
            }
        }
    }

    /// How often each way was walked.
    pub(crate) fn walked(self) -> Walked {
        self.walked
    }
}

/// A call of one element.
fn attempt(comm: &mut Communicator, collective: Collective) -> ringreduce::Result<()> {
    let sum = ReduceOp::Sum;
    let (mut one, mut all, mut into) = ([1_u8], vec![1; comm.size()], vec![1; comm.size()]);
    match collective {
        Collective::AllReduce => comm.all_reduce(&mut one, sum),
        Collective::ReduceScatter => comm.reduce_scatter_in_place(&mut all, sum),
        Collective::AllGather => comm.all_gather(&one, &mut all),
        Collective::Broadcast { root } => comm.broadcast(&mut one, root as usize),
        Collective::Reduce { root } => comm.reduce(&mut one, sum, root as usize),
        Collective::Gather { root } => comm.gather(&one, &mut all, root as usize),
        Collective::Scatter { root } => comm.scatter(&all, &mut one, root as usize),
        Collective::AllToAll => comm.all_to_all(&all, &mut into),
        Collective::Scan => comm.scan(&mut one, sum),
        Collective::Exscan => comm.exscan(&mut one, sum),
        Collective::Barrier => comm.barrier(),
        other => panic!("no call for {other:?}"),
    }
}

/// Did a walk of `n` ranks miss a way that is known to be there?
pub(crate) fn complete(walked: &Walked, n: usize) {
    for collective in Collective::all(1) {
        let way = (Algorithm::Ring, collective.name());
        assert!(walked.contains_key(&way), "{way:?} was not walked, n={n}");
    }
    let halves = |algorithm| algorithm == Algorithm::HalvingDoubling && !n.is_power_of_two();
    for (algorithm, made) in MAKES.into_iter().filter(|(algorithm, _)| !halves(*algorithm)) {
        for way in made.iter().map(|&name| (algorithm, name)) {
            assert!(walked.contains_key(&way), "{way:?} was not walked, n={n}");
        }
    }
}
