//! The rows and columns of the matrix: the algorithms that make each collective, and one rank's
//! walk through all of them. Every rank of a world makes the same calls in the same order.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use harness::share;
use ringreduce::schedule::{Algorithm, Collective, Ring};
use ringreduce::{CallOptions, Communicator, Error, ReduceOp};

use super::oracle::{Op, Value};
use super::verbs::{Calls, Given};

/// The collectives that each algorithm must make in worlds of up to nine ranks. The ring, and the
/// library's choice, make all.
const MAKES: [(Algorithm, &[&str]); 13] = [
    (Algorithm::AllPairs, &["all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"]),
    (Algorithm::TwoShot, &["all_reduce", "reduce"]),
    (Algorithm::RecursiveDoubling, &["all_reduce", "barrier"]),
    (Algorithm::HalvingDoubling, &["all_reduce", "reduce_scatter", "all_gather"]),
    (Algorithm::TwoRings, &["all_reduce", "reduce_scatter", "all_gather"]),
    (Algorithm::Binomial, &["all_reduce", "broadcast", "reduce", "barrier"]),
    (Algorithm::DoubleTree, &["all_reduce", "broadcast", "reduce"]),
    (Algorithm::Bruck, &["reduce_scatter", "all_gather"]),
    (Algorithm::Circulant, &["broadcast", "reduce"]),
    (Algorithm::Dissemination, &["barrier"]),
    (Algorithm::Direct, &["all_reduce", "reduce_scatter", "all_gather", "barrier"]),
    (Algorithm::Staged, STAGED),
    (Algorithm::SingleCopy, SINGLE_COPY),
];

/// The collectives in which ranks read each other's memory.
const SINGLE_COPY: &[&str] =
    &["all_reduce", "reduce_scatter", "all_gather", "broadcast", "scatter", "all_to_all"];

/// The collectives that go over stages.
const STAGED: &[&str] = &[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
];

/// A size of several rounds and chunks.
pub(crate) const LONG: usize = 65_537;

/// A share has that size for one operation in so many.
const LONG_OPS: u64 = 3;

/// The number of calls by algorithm and collective.
pub(crate) type Walked = BTreeMap<(Option<Algorithm>, &'static str), usize>;

/// A collective by an algorithm, or by the one that the library chooses.
type Cell = (Option<Algorithm>, Collective);

/// One rank of one world on its walk through the matrix.
pub(crate) struct Walk<'a> {
    comm: &'a mut Communicator,
    n: usize,
    me: usize,
    /// Collectives that reduce (without barriers) and others, each with every root.
    reducing: Vec<Cell>,
    copying: Vec<Cell>,
    walked: Walked,
}

/// All pairs of algorithm and collective, and whether the algorithm makes the collective.
fn pairs(n: usize) -> impl Iterator<Item = (Algorithm, Collective, bool)> {
    let ring = Ring::natural(n as u32);
    let all = Collective::all(n as u32).into_iter();
    let all = all.flat_map(|collective| Algorithm::ALL.map(|algorithm| (algorithm, collective)));
    all.map(move |(algorithm, it)| {
        // The direct algorithm makes a broadcast on registered memory alone.
        let direct = algorithm == Algorithm::Direct && matches!(it, Collective::Broadcast { .. });
        (algorithm, it, algorithm.makes(it, &ring) && !direct)
    })
}

/// Bytes of a stage, the memory by which a rank shares its contribution with all others.
pub(crate) const STAGE: usize = 16 << 10;

/// Lengths of buffers or blocks.
pub(crate) fn counts(n: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, n - 1, n, n + 1, 1000];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The options of a call by this algorithm.
pub(crate) fn options(algorithm: Option<Algorithm>) -> CallOptions {
    algorithm.map_or(CallOptions::new(), |it| CallOptions::new().algorithm(it))
}

impl<'a> Walk<'a> {
    pub(crate) fn new(comm: &'a mut Communicator) -> Self {
        let (n, me) = (comm.size(), comm.rank());
        let made =
            pairs(n).filter(|(.., made)| *made).map(|(algorithm, it, _)| (Some(algorithm), it));
        let chosen = Collective::all(n as u32).into_iter().map(|it| (None, it));
        let cells = chosen.chain(made).filter(|(_, it)| *it != Collective::Barrier);
        let (reducing, copying) = cells.partition(|(_, collective)| collective.reduces());
        Self { comm, n, me, reducing, copying, walked: Walked::new() }
    }

    /// Makes the calls of one cell of the matrix.
    fn call<T: Value>(&mut self, cell: Cell, given: &Given<T>, count: usize) -> u64 {
        let (algorithm, collective) = cell;
        let blocks = if collective.has_blocks() { self.n } else { 1 };
        if algorithm == Some(Algorithm::Direct) && count * blocks * size_of::<T>() > STAGE {
            return 0;
        }
        let mut comm = self.comm.with(options(algorithm));
        let (n, me, mut alike) = (self.n, self.me, DefaultHasher::new());
        let comm = &mut comm;
        let mut calls = Calls { comm, algorithm, collective, given, n, me, count };
        calls.make(&mut alike);
        if algorithm.is_none_or(|it| it == Algorithm::Ring) {
            calls.uneven();
        }
        *self.walked.entry((algorithm, collective.name())).or_default() += 1;
        alike.finish()
    }

    /// Every operation, algorithm and length for a type. A type that is not in the share goes by
    /// the library's choice alone: with two collectives for every operation and all others for the
    /// first one, and with long calls in a world of three.
    pub(crate) fn every<T: Value>(&mut self, in_share: bool) {
        for (number, op) in Op::all::<T>().into_iter().enumerate() {
            let given = Given::<T>::new(op, self.n, self.me);
            let average = op == Op::Plain(ReduceOp::Avg);
            let prefix = |cell: &Cell| matches!(cell.1, Collective::Scan | Collective::Exscan);
            let mut cells = self.reducing.clone();
            cells.retain(|cell| !(average && prefix(cell)));
            if number == 0 {
                cells.extend(&self.copying);
            }
            let root = ((number + T::DTYPE as usize) % self.n) as u32;
            let has_root = |cell: &Cell| cell.1.root().is_none_or(|its| its == root);
            if !in_share {
                let is_for_every_op =
                    |it| matches!(it, Collective::AllReduce | Collective::ReduceScatter);
                cells.retain(|cell| cell.0.is_none() && (number == 0 || is_for_every_op(cell.1)));
            }
            for count in counts(self.n) {
                let alike = cells.iter().map(|&cell| self.call(cell, &given, count)).collect();
                self.compare(alike, &cells, op, count);
                if number == 0 {
                    Calls::new(self.comm, Collective::Barrier, &given, count).messages();
                }
            }
            let is_long = in_share && share::has((number + T::DTYPE as usize) as u64, LONG_OPS);
            if !is_long && self.n != 3 {
                continue;
            }
            cells.retain(|cell| has_root(cell) && (is_long || cell.0.is_none()));
            let block = LONG.div_ceil(self.n);
            let count = |cell: &Cell| if cell.1.has_blocks() { block } else { LONG };
            let alike = cells.iter().map(|cell| self.call(*cell, &given, count(cell))).collect();
            self.compare(alike, &cells, op, LONG);
        }
    }

    /// Every call by the library's choice, for sums, over buffers and blocks of these lengths; and
    /// messages.
    pub(crate) fn chosen<T: Value>(&mut self, counts: &[usize]) {
        let given = Given::<T>::new(Op::SUM, self.n, self.me);
        let all = self.reducing.iter().chain(&self.copying);
        let cells: Vec<Cell> = all.copied().filter(|cell| cell.0.is_none()).collect();
        for &count in counts {
            let alike = cells.iter().map(|&cell| self.call(cell, &given, count)).collect();
            self.compare(alike, &cells, Op::SUM, count);
            Calls::new(self.comm, Collective::Barrier, &given, count).messages();
        }
    }

    /// Compares the digests of results with those of all other ranks.
    fn compare(&mut self, mine: Vec<u64>, cells: &[Cell], op: Op, count: usize) {
        let mut all = vec![0; self.n * mine.len()];
        self.comm.all_gather(&mine, &mut all).unwrap();
        for (at, digest) in all.iter().enumerate() {
            let own = at % mine.len();
            assert!(*digest == mine[own], "ranks differ: {:?} {op:?} {count}", cells[own]);
        }
    }

    /// A collective that an algorithm does not make is refused, and the communicator works on.
    pub(crate) fn refusals(&mut self) {
        for (algorithm, collective, made) in pairs(self.n) {
            let mut comm = self.comm.with(CallOptions::new().algorithm(algorithm));
            let done = attempt(&mut comm, collective);
            let name = collective.name();
            if made {
                done.unwrap_or_else(|error| panic!("{algorithm} {name}: {error}"));
                *self.walked.entry((Some(algorithm), name)).or_default() += 1;
            } else {
                let refused = matches!(done, Err(Error::Argument { argument: "algorithm", .. }));
                // A world of one sends nothing, by any algorithm.
                assert!(refused || self.n == 1, "{algorithm} {name}: {done:?}");
            }
        }
    }

    /// The number of calls of each cell.
    pub(crate) fn walked(self) -> Walked {
        self.walked
    }
}

/// Makes a call of one element.
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

/// Panics if a walk of `n` ranks has missed a cell that must exist.
pub(crate) fn complete(walked: &Walked, n: usize) {
    for collective in Collective::all(1) {
        for algorithm in [Some(Algorithm::Ring), None] {
            let cell = (algorithm, collective.name());
            let is_walked = walked.contains_key(&cell) || cell == (None, "barrier");
            assert!(is_walked, "{cell:?} was not walked, n={n}");
        }
    }
    let halves = |algorithm| algorithm == Algorithm::HalvingDoubling && !n.is_power_of_two();
    for (algorithm, made) in MAKES.into_iter().filter(|(algorithm, _)| !halves(*algorithm)) {
        for cell in made.iter().map(|&name| (Some(algorithm), name)) {
            assert!(walked.contains_key(&cell), "{cell:?} was not walked, n={n}");
        }
    }
}
