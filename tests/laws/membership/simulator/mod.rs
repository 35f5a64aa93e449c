//! A simulator of members among faults: messages are late, links break, and processes die, stop and
//! lose their network, all by a seeded random number generator; `laws` checks every verdict.
//! Law: a seed always gives the same run.

mod agreements;
mod caller;
mod connecting;
mod faults;
mod laws;
mod network;
mod polling;
mod world;

use core::fmt;

use ringreduce::recovery::membership::{Settings, Time};
use ringreduce::sim::Random;

/// A law that did not hold in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The seed of the run.
    pub(crate) seed: u64,
    /// The broken law.
    pub(crate) law: &'static str,
    /// The event that broke the law.
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "seed {}: {}: {}", self.seed, self.law, self.what)
    }
}

impl core::error::Error for Violation {}

/// Counts of the events of runs in which all laws held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Messages, ticks and faults.
    pub(crate) events: u64,
    /// Epochs that began after the first.
    pub(crate) epochs: u64,
    /// Operations that returned `Ok`.
    pub(crate) succeeded: u64,
    /// Operations that failed.
    pub(crate) failed: u64,
    /// Agreements that ended.
    pub(crate) agreed: u64,
    /// Members that ended without a quorum.
    pub(crate) quorums_lost: u64,
    /// Members that were evicted.
    pub(crate) evicted: u64,
    /// Calls that timed out.
    pub(crate) timed_out: u64,
    /// Joiners that were admitted.
    pub(crate) joined: u64,
    /// Members that learnt that a change was undone.
    pub(crate) undone: u64,
}

impl Tally {
    /// Adds the counts of another run.
    pub(crate) const fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.epochs += other.epochs;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.agreed += other.agreed;
        self.quorums_lost += other.quorums_lost;
        self.evicted += other.evicted;
        self.timed_out += other.timed_out;
        self.joined += other.joined;
        self.undone += other.undone;
    }
}

/// The kinds of faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultMix {
    /// No faults.
    None,
    /// Deaths, each with certain evidence at some process soon after.
    Deaths,
    /// All kinds of faults.
    All,
}

/// The longest delay of a message on a link without faults.
const DELAY: usize = 20;

/// The silence after which a rank is suspected by its peers.
const SILENCE: Time = 120;

/// The longest time of a program between two calls.
const BUSY: Time = 600;

/// How long members wait for a program that is busy before they settle operations without it.
const SETTLING: Time = 2 * BUSY;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    fault_mix: FaultMix,
    size: u32,
    settings: Settings,
    /// Operations of each program.
    operations: u64,
    /// Programs agree after each operation whether it succeeded.
    agree: bool,
    /// The operation after which the members call for joiners, if they do.
    grow: Option<u64>,
    /// How long programs wait for each other's calls.
    deadline: Option<Time>,
    /// Programs are busy for a while between two calls.
    is_busy: bool,
    /// A launcher tells all processes of each end.
    has_launcher: bool,
    /// Programs evict ranks that have not called by the deadline.
    evict_missing: bool,
    /// A program that sees a failure may leave.
    cascade: bool,
    /// Processes are killed soon after they have sent a message of a ballot or of the connecting,
    /// which random times would hardly meet.
    aims: bool,
}

impl Scenario {
    fn new(seed: u64, random: &mut Random) -> Self {
        let fault_mix = match random.below(10) {
            0 => FaultMix::None,
            1..4 => FaultMix::Deaths,
            _ => FaultMix::All,
        };
        let operations = 2 + random.below(2) as u64;
        let all_faults = fault_mix == FaultMix::All;
        let sometimes = |random: &mut Random, one_in| random.below(one_in) == 0;
        Self {
            fault_mix,
            // Rarely up to 8 ranks: larger worlds take longer, and few ranks show most bugs.
            size: 2 + random.below(4) as u32 + if seed % 16 == 15 { 3 } else { 0 },
            settings: Settings {
                grace: 20,
                answer_timeout: 150,
                settling: if all_faults && sometimes(random, 2) { 150 } else { SETTLING },
                uniform: !sometimes(random, 4),
            },
            operations,
            agree: sometimes(random, 3),
            grow: sometimes(random, 2).then(|| 1 + random.below(operations as usize) as u64),
            deadline: sometimes(random, 4).then(|| 50 + random.below(400) as Time),
            is_busy: sometimes(random, 4),
            has_launcher: !all_faults || !sometimes(random, 3),
            evict_missing: all_faults && sometimes(random, 2),
            cascade: sometimes(random, 6),
            aims: fault_mix != FaultMix::None && sometimes(random, 3),
        }
    }
}

/// Runs the simulation of `seed`, up to the first law that does not hold.
pub(crate) fn run(seed: u64) -> Result<Tally, Violation> {
    let mut random = Random::new(seed);
    let scenario = Scenario::new(seed, &mut random);
    let violation = |(law, what)| Violation { seed, law, what };
    world::World::new(scenario, random).and_then(world::World::run).map_err(violation)
}
