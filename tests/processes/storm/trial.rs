//! The parameters of one trial, which all follow from its seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A fault of one rank, or of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// One rank is killed.
    Kill,
    /// One rank is killed, and a child that it has forked lives on.
    KillParent,
    /// One rank is ended by SIGTERM.
    Terminate,
    /// Two ranks are killed together.
    TwoKills,
    /// The rank is stopped for longer than the timeout.
    Stop,
    /// The rank is stopped, and continued before the timeout.
    Pause,
    /// Another thread of the rank aborts.
    Abort,
    /// The rank makes another call than its peers.
    Mismatch,
    /// The process, or the thread that is the rank, ends between two calls or in one.
    Exit,
    /// The thread that makes the rank's calls panics.
    Panic,
    /// One of the TCP connections of the rank is closed.
    Close,
    /// Packets between two hosts are dropped for a while.
    Drops,
    /// All packets between two hosts are dropped from now on.
    Cut,
}

use Fault::{
    Abort, Close, Cut, Drops, Exit, Kill, KillParent, Mismatch, Panic, Pause, Stop, Terminate,
    TwoKills,
};

const FAULTS: [Fault; 13] = [
    Kill, KillParent, Terminate, TwoKills, Stop, Pause, Abort, Mismatch, Exit, Panic, Close, Drops,
    Cut,
];
/// The numbers of ranks, some of them more often than others.
const SIZES: [usize; 16] = [2, 2, 3, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8, 11, 15, 16];

impl Fault {
    /// True if the victims' processes end by the fault.
    pub(crate) fn ends_victims(self) -> bool {
        matches!(self, Kill | KillParent | Terminate | TwoKills | Exit | Panic)
    }

    /// True if a rank that is a thread can have the fault.
    fn is_for_threads(self) -> bool {
        matches!(self, Stop | Abort | Mismatch | Exit | Panic)
    }
}

/// The links between the ranks of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Links {
    Shm,
    Tcp,
    /// Both kinds, on two hosts.
    Mixed,
    /// The ranks are threads of one process.
    Threads,
}

#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) seed: u64,
    pub(crate) n: usize,
    /// The largest world with links between all pairs.
    pub(crate) all_pairs: usize,
    pub(crate) links: Links,
    pub(crate) fault: Fault,
    pub(crate) victims: Vec<usize>,
    /// The time of the fault, from the moment when all ranks are at work.
    pub(crate) after: Duration,
    /// The length of a pause or of a loss of packets, and the bytes of the longest packets that
    /// pass.
    pub(crate) pause: Duration,
    pub(crate) passes: u32,
    pub(crate) timeout: Duration,
    /// The binary logarithm of the most elements of a call.
    pub(crate) most: u32,
    /// True if the ranks have a secret, and if they encrypt.
    pub(crate) secret: bool,
    pub(crate) encrypt: bool,
}

impl Trial {
    pub(crate) fn new(seed: u64, has_hosts: bool) -> Self {
        let fault = match FAULTS[(seed % FAULTS.len() as u64) as usize] {
            Drops if !has_hosts => Pause,
            Cut if !has_hosts => Close,
            fault => fault,
        };
        let mut random = SmallRng::seed_from_u64(seed);
        let few = if fault == TwoKills { SIZES.partition_point(|&n| n < 3) } else { 0 };
        let n = SIZES[random.random_range(few..SIZES.len())];
        let all_pairs = if n > 3 && random.random_bool(0.4) { 2 } else { 32 };
        let links = match random.random_range(0..3) {
            _ if matches!(fault, Drops | Cut) => Links::Mixed,
            _ if fault.is_for_threads() && random.random_ratio(1, 3) => Links::Threads,
            0 if fault != Close => Links::Shm,
            1 if has_hosts => Links::Mixed,
            _ => Links::Tcp,
        };
        let first = random.random_range(0..n);
        let second = (first + random.random_range(1..n)) % n;
        let victims = if fault == TwoKills { vec![first, second] } else { vec![first] };
        let after = Duration::from_micros(random.random_range(0..60_000));
        let pause = Duration::from_millis(random.random_range(1..400));
        // Trials with a long stop have a short timeout, and so short calls.
        let (timeout, most) = match (fault, links) {
            (Stop, Links::Threads) => (1_500, 16),
            (Stop, _) => (4_000, 16),
            _ => (15_000, 20),
        };
        let timeout = Duration::from_millis(timeout);
        let passes = if fault == Drops { [1, 3_000][random.random_range(0..2)] } else { 1 };
        let (secret, encrypt) =
            [(false, false), (true, false), (true, true)][random.random_range(0..3)];
        Self {
            seed,
            n,
            all_pairs,
            links,
            fault,
            victims,
            after,
            pause,
            passes,
            timeout,
            most,
            secret,
            encrypt,
        }
    }

    /// The host of a rank, if there are two.
    pub(crate) fn host(&self, rank: usize) -> usize {
        2 * rank / self.n
    }
}
