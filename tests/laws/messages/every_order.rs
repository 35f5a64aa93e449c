//! All programs of two ranks with a few calls each, and all orders of the steps of some of them.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use super::checks::{Tally, run};
use super::network::{Fault, Network, Step};
use super::program::{Operation, Programs, SLOT, all_programs};
use harness::share;
use ringreduce::element::DataType;
use ringreduce::matching::{Envelope, Expected};
use ringreduce::sim::Random;

/// The longest message, in bytes: three slots.
const LONG: u64 = 3 * SLOT;

fn send(to: u32, tag: u32, bytes: u64) -> Operation {
    Operation::Send { to, envelope: Envelope { tag, dtype: DataType::F32, bytes } }
}

fn receive(source: u32, tag: Option<u32>, bytes: u64) -> Operation {
    let expected = Expected { source: Some(source), tag };
    Operation::Receive { expected, form: (DataType::F32, bytes) }
}

/// Calls of one rank with `peer`: those of these tags, lengths, and kinds.
fn alphabet(
    peer: u32,
    tags: &[Option<u32>],
    lengths: &[u64],
    blocks: &[bool],
) -> Vec<(Operation, bool)> {
    let mut all = Vec::new();
    for &bytes in lengths {
        for &is_blocking in blocks {
            for &tag in tags {
                all.extend(tag.map(|tag| (send(peer, tag, bytes), is_blocking)));
                all.push((receive(peer, tag, bytes), is_blocking));
            }
        }
    }
    all
}

/// Calls `each` with one in `of` of all pairs of programs of up to `longest` calls.
fn pairs(
    (tags, lengths, blocks): (&[Option<u32>], &[u64], &[bool]),
    longest: u32,
    of: u64,
    mut each: impl FnMut(&Programs, u64),
) {
    let [first, second] =
        [1, 0].map(|peer| all_programs(&alphabet(peer, tags, lengths, blocks), longest));
    let mut case = 0;
    for (number, one) in first.iter().enumerate() {
        // The ranks differ by their numbers alone, so one order of two programs is enough.
        for two in &second[number..] {
            case += 1;
            if share::has(case, of) {
                each(&vec![one.clone(), two.clone()], case);
            }
        }
    }
}

const TAGS: [Option<u32>; 3] = [Some(0), Some(1), None];

#[test]
fn small_programs_of_two_ranks_end_as_the_oracle_says() {
    let mut tally = Tally::default();
    let mut each = |programs: &Programs, seed| {
        let random = &mut Random::new(seed);
        let limits = ([2 * 68, 1 << 20][random.below(2)], 1 + random.below(2));
        run(programs, limits, (Fault::Nothing, 0), random, &mut tally).check_oracle(programs);
    };
    // All calls, up to two each; then up to three each of those that differ in one thing.
    pairs((&TAGS, &[SLOT, LONG], &[false, true]), 2, 11, &mut each);
    pairs((&TAGS, &[SLOT], &[false]), 3, 5, &mut each);
    pairs((&[Some(0)], &[SLOT, LONG], &[false, true]), 3, 31, &mut each);
    pairs((&[Some(0), None], &[LONG], &[false, true]), 3, 13, &mut each);
    println!("{tally:?}");
    assert!(tally.runs > 15_000 && tally.whole > tally.runs / 20, "{tally:?}");
}

/// A hash of what is written.
struct Hash(DefaultHasher);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// All that the steps to come depend on, and what the programs have got so far.
fn fingerprint(network: &Network) -> u64 {
    let mut hash = Hash(DefaultHasher::new());
    write!(hash, "{:?}{:?}", network.ranks, network.channels).unwrap();
    let messages = network.history.messages.values().map(|it| (it.mate, it.end));
    let receives = network.history.receives.values().map(|it| (it.received, it.end));
    write!(hash, "{:?}{:?}", messages.collect::<Vec<_>>(), receives.collect::<Vec<_>>()).unwrap();
    hash.0.finish()
}

/// Runs programs in all orders of steps, depth first; gives the number of states.
fn explore(programs: &Programs, credit: u64, capacity: usize) -> usize {
    let mut seen = HashSet::new();
    let mut prefixes: Vec<Vec<Step>> = vec![Vec::new()];
    while let Some(mut path) = prefixes.pop() {
        let mut network = Network::new(programs, credit, capacity, Fault::Nothing);
        path.iter().for_each(|step| network.make(*step));
        while seen.insert(fingerprint(&network)) {
            let steps = network.steps();
            let Some((&next, others)) = steps.split_first() else {
                network.check_rest();
                network.check_oracle(programs);
                break;
            };
            prefixes.extend(others.iter().map(|other| [&path[..], &[*other]].concat()));
            path.push(next);
            network.make(next);
        }
    }
    seen.len()
}

#[test]
fn the_order_of_steps_does_not_decide_which_messages_meet() {
    let (mut states, mut programs) = (0, 0);
    let mut each = |pair: &Programs, case| {
        // All orders of all programs would take a quarter of an hour.
        if case % 8 > 0 && share::is_all() {
            return;
        }
        let (credit, capacity) = ([2 * 68, 1 << 20][case as usize / 2 % 2], 1 + case as usize % 2);
        states += explore(pair, credit, capacity);
        programs += 1;
    };
    pairs((&TAGS, &[SLOT, LONG], &[false, true]), 2, 509, &mut each);
    pairs((&TAGS, &[SLOT], &[false]), 3, 307, &mut each);
    pairs((&[Some(0)], &[SLOT, LONG], &[false, true]), 3, 1009, &mut each);
    println!("{programs} programs, {states} states");
    assert!(programs > 200 && states > 100 * programs, "{programs} programs, {states} states");
}
