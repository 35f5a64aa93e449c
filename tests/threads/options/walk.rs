//! One rank's walk through the cells of a world.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use harness::share;
use ringreduce::{Algorithm, Communicator, Error, Result};

use super::oracle::{DTYPES, OPS, Op, Sums};
use super::rows::{CallRow, InForce};
use super::verbs::{Call, Memory, Verb, Way, is_left_out};
use super::worlds::{Answer, World};
use ringreduce::DataType;

/// The lengths of buffers and blocks, in elements.
const COUNTS: [usize; 3] = [7, 5003, 0];

/// Verb, option of the call, way, and whether the memory is registered.
pub(super) type Walked = BTreeSet<(Verb, CallRow, Way, bool)>;

pub(super) struct Walk<'a> {
    comm: &'a mut Communicator,
    world: &'a World,
    shares_memory: bool,
    /// One cell in so many is made.
    share: u64,
    number: u64,
    /// A digest of the results that all ranks must have alike.
    alike: DefaultHasher,
    pub(super) cells: u64,
    pub(super) walked: Walked,
}

/// One cell of the table.
struct Cell {
    call: Call,
    rows: [CallRow; 2],
    in_force: InForce,
    way: Way,
    is_registered: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        comm: &'a mut Communicator,
        world: &'a World,
        shares_memory: bool,
        share: u64,
    ) -> Self {
        let (alike, walked) = (DefaultHasher::new(), Walked::new());
        let (number, cells) = (0, 0);
        Self { comm, world, shares_memory, share, number, alike, cells, walked }
    }

    /// Makes all cells, of which all ranks choose the same share.
    pub(super) fn every_cell(&mut self) {
        let algorithms = || Algorithm::ALL.into_iter().map(Some);
        for rows in CallRow::pairs() {
            for algorithm in algorithms().chain([None; 15]) {
                for &verb in Verb::ALL {
                    for (dtype, op) in DTYPES.into_iter().flat_map(|it| OPS.map(|op| (it, op))) {
                        self.number += 1;
                        // The share has all algorithms for each verb in turn.
                        let place = scrambled(self.number) % self.share;
                        let is_in_share = place == share::seed() % self.share;
                        if is_in_share && !is_left_out(verb, op, dtype) {
                            self.cell(rows, algorithm, verb, (dtype, op));
                        }
                    }
                }
            }
            self.compare(rows);
        }
    }

    fn cell(
        &mut self,
        rows: [CallRow; 2],
        algorithm: Option<Algorithm>,
        verb: Verb,
        (dtype, op): (DataType, Op),
    ) {
        let (ranks, me) = (self.comm.size(), self.comm.rank());
        let choice = (scrambled(self.number) >> 20) as usize;
        let in_force = self.world.in_force.with(rows, algorithm);
        let ways = verb.ways();
        // A schedule of the user's own knows no other type than that of its buffers.
        let numbers = match verb {
            Verb::RunReduction => InForce { wide: false, wire: None, ..in_force },
            _ => in_force,
        };
        let cell = Cell {
            call: Call {
                verb,
                sums: Sums { dtype, op, ranks, in_force: numbers },
                me,
                root: choice % ranks,
                count: COUNTS[choice / 8 % 16 % COUNTS.len()],
            },
            rows,
            in_force,
            way: ways[choice / 128 % ways.len()],
            is_registered: (choice / 1024).is_multiple_of(3),
        };
        self.make(&cell, algorithm);
        self.cells += 1;
        self.walked.extend(rows.map(|row| (verb, row, cell.way, cell.is_registered)));
    }

    fn make(&mut self, cell: &Cell, algorithm: Option<Algorithm>) {
        let Cell { call, rows, in_force, way, is_registered } = cell;
        let [send, before] = call.buffers();
        let memory = |bytes: &[u8]| match is_registered {
            false => Memory::Plain(bytes.to_vec()),
            true => {
                let mut memory = self.comm.alloc::<u8>(bytes.len()).unwrap();
                memory.copy_from_slice(bytes);
                Memory::Registered(memory)
            }
        };
        let (from, mut recv) = (memory(&send), memory(&before));
        let mut comm = self.comm.with(CallRow::options(*rows, algorithm));
        let done = call.make(&mut comm, *way, from, &mut recv);
        drop(comm);
        let what = format!(
            "{:?} {} {:?} by {way:?}, registered: {is_registered}, n={}, {} elements, world {:?}, \
             options {rows:?}, {in_force:?}",
            call.verb,
            call.sums.dtype,
            call.sums.op,
            call.sums.ranks,
            call.count,
            self.world.options,
        );
        let answer = self.world.answer(call, in_force, self.shares_memory);
        if is_made(done, answer, &what) {
            self.check(call, recv.as_ref(), &what);
        } else if *way != Way::Nonblocking {
            assert_eq!(recv.as_ref(), before, "{what}: refused, and changed");
        }
    }

    fn check(&mut self, call: &Call, got: &[u8], what: &str) {
        let (start, wants) = call.wants();
        let (dtype, size) = (call.sums.dtype, call.sums.dtype.size());
        let end = start + wants.len() * size;
        for (at, (got, want)) in got[start..end].chunks(size).zip(wants).enumerate() {
            assert!(want.holds(dtype, got), "{what} at {at}: {got:?}, not {want:?}");
        }
        if matches!(call.verb.collective(0), ringreduce::Collective::AllReduce) {
            got.hash(&mut self.alike);
        }
    }

    /// All ranks have the same bits where they have the same result.
    fn compare(&mut self, rows: [CallRow; 2]) {
        let mut all = vec![0; self.comm.size()];
        let mine = self.alike.finish();
        self.comm.all_gather(&[mine], &mut all).unwrap();
        assert!(
            all.iter().all(|&it| it == mine),
            "ranks differ: {:?} {rows:?}",
            self.world.options
        );
    }
}

/// Compares the end of a call with the promise; true if it was made.
fn is_made(done: Result<()>, answer: Answer, what: &str) -> bool {
    match (done, answer) {
        (Ok(()), Answer::Made | Answer::Either) => true,
        (Err(error @ Error::Argument { .. }), Answer::Refused(words)) => {
            let text = error.to_string();
            let missing = words.iter().find(|&&word| !text.contains(word));
            assert!(missing.is_none(), "{what}: {text} does not say {missing:?}");
            false
        }
        (Err(error @ Error::Argument { argument: "algorithm", .. }), Answer::Either) => {
            assert!(error.to_string().contains("algorithm is"), "{what}: {error}");
            false
        }
        (done, answer) => panic!("{what}: {answer:?} is promised, not {done:?}"),
    }
}

/// A number without the regularity of the walk.
fn scrambled(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d) >> 8
}
