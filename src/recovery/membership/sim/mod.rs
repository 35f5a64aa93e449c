//! Members among faults: a seeded world in which messages are late, links break, ranks die, pause
//! and are cut off, and the laws of what their callers see. May touch: sim's random numbers, the
//! machine's public side. Law: a seed always tells the same story.

mod caller;
mod faults;
mod laws;
mod network;
mod world;

use core::fmt;

use super::member::{Settings, Time};
use crate::sim::Random;

/// A law that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// In the story of this seed.
    pub seed: u64,
    /// Which law.
    pub law: &'static str,
    /// What happened instead.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed {}: {}: {}", self.seed, self.law, self.what)
    }
}

impl core::error::Error for Violation {}

/// What happened in stories where all laws held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Things that happened: messages, ticks, faults.
    pub events: u64,
    /// Epochs that began after the first.
    pub epochs: u64,
    /// Operations that returned `Ok`, and those that failed.
    pub succeeded: u64,
    /// See `succeeded`.
    pub failed: u64,
    /// Agreements that ended.
    pub agreed: u64,
    /// Members that ended for want of a quorum.
    pub quorums_lost: u64,
    /// Members the others went on without.
    pub evicted: u64,
    /// Calls that timed out.
    pub timed_out: u64,
    /// Ranks that were admitted.
    pub joined: u64,
}

impl Tally {
    /// Adds what happened in another story.
    pub const fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.epochs += other.epochs;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.agreed += other.agreed;
        self.quorums_lost += other.quorums_lost;
        self.evicted += other.evicted;
        self.timed_out += other.timed_out;
        self.joined += other.joined;
    }
}

/// What may go wrong in a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Nothing.
    Calm,
    /// Processes are killed, and soon somebody is certain of it.
    Kills,
    /// Everything.
    Storm,
}

/// The longest that a message is under way, where nothing is wrong.
const DELAY: usize = 20;

/// How long a rank is silent before its peers suspect it.
const SILENCE: Time = 120;

/// What is fixed for a story when it begins.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    weather: Weather,
    size: u32,
    settings: Settings,
    /// Operations that each caller makes.
    operations: u64,
    /// Do callers agree after each operation whether it succeeded?
    agree: bool,
    /// Before which operation joiners are admitted, if at all.
    grow: Option<u64>,
    /// How long callers wait for others' calls, and whether they go on without them then.
    deadline: Option<Time>,
    evict_missing: bool,
    /// Does a caller that sees a failure leave?
    cascade: bool,
}

impl Scenario {
    fn new(seed: u64, random: &mut Random) -> Self {
        let weather = match random.below(10) {
            0 => Weather::Calm,
            1..4 => Weather::Kills,
            _ => Weather::Storm,
        };
        let operations = 2 + random.below(2) as u64;
        let storm = weather == Weather::Storm;
        let sometimes = |random: &mut Random, one_in| random.below(one_in) == 0;
        Self {
            weather,
            // Seldom up to 8: larger worlds take longer, and most mistakes need few.
            size: 2 + random.below(4) as u32 + if seed % 16 == 15 { 3 } else { 0 },
            settings: Settings {
                grace: 20,
                patience: 150,
                settling: 150,
                uniform: !sometimes(random, 4),
            },
            operations,
            agree: sometimes(random, 3),
            grow: sometimes(random, 3).then(|| 1 + random.below(operations as usize) as u64),
            deadline: sometimes(random, 4).then(|| 50 + random.below(400) as Time),
            evict_missing: storm && sometimes(random, 2),
            cascade: sometimes(random, 6),
        }
    }
}

/// Tells the story of `seed`; the first law that does not hold ends it.
pub fn run(seed: u64) -> Result<Tally, Violation> {
    let mut random = Random::new(seed);
    let scenario = Scenario::new(seed, &mut random);
    let violation = |(law, what)| Violation { seed, law, what };
    world::World::new(scenario, random).and_then(world::World::run).map_err(violation)
}
