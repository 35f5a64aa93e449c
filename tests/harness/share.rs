//! How much of an exhaustive test a run makes. `cargo test` makes the same share each time;
//! `TEST_SEED` chooses another one, as `.ci/run` does, and `TEST_SHARE=all` makes all of it, as
//! `.ci/full` does. Processes that a test starts inherit both variables.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::{env, thread};

use rand::distr::uniform::{SampleRange, SampleUniform};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// True if this run makes every case.
pub fn is_all() -> bool {
    env::var("TEST_SHARE").is_ok_and(|share| share == "all")
}

/// The number that chooses the share and seeds all random numbers.
pub fn seed() -> u64 {
    let seed = env::var("TEST_SEED").ok();
    seed.map_or(0, |seed| seed.parse().unwrap())
}

/// The number of cases: `few` in a share, else `all`.
pub fn count<T>(few: T, all: T) -> T {
    if is_all() { all } else { few }
}

/// True if the share, one case in `of`, has this case.
pub fn has(case: u64, of: u64) -> bool {
    is_all() || case % of == seed() % of
}

/// True if this run makes the test that calls this: a share makes about one such test in `of`,
/// chosen by the test's name and the seed together. By the seed's remainder alone, a test would
/// always meet the same of its own cases. Tests that are asked for by their names are all made.
pub fn makes_test(of: u64) -> bool {
    let is_asked_for = env::args().skip(1).any(|word| !word.starts_with('-'));
    // The test harness gives a test a thread of its name, unless it runs one test at a time.
    let current = thread::current();
    let Some(name) = current.name().filter(|&name| name != "main" && !is_asked_for) else {
        return true;
    };
    let mut hasher = DefaultHasher::new();
    (name, seed()).hash(&mut hasher);
    let is_made = is_all() || hasher.finish().is_multiple_of(of);
    if !is_made {
        super::skip::leave_to_other_shares(name);
    }
    is_made
}

/// The cases that the share has: one in `of`.
pub fn of<T: Copy>(cases: &[T], of: u64) -> impl Iterator<Item = T> {
    (0..).zip(cases).filter(move |&(case, _)| has(case, of)).map(|(_, case)| *case)
}

thread_local! {
    /// Each test has a thread of its own, so its random numbers depend on the seed alone.
    static RANDOM: RefCell<SmallRng> = RefCell::new(SmallRng::seed_from_u64(seed()));
}

/// A random number of this range, the same in each run with the same seed.
pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    RANDOM.with_borrow_mut(|random| random.random_range(range))
}
