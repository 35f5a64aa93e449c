//! What happens in one trial: all of it follows from its seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What happens to one rank, or to two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Killed.
    Kill,
    /// Two are, at once.
    TwoKills,
    /// Stopped for longer than the others wait.
    Stop,
    /// Stopped, and continued in time.
    Pause,
    /// It aborts, from another thread.
    Abort,
    /// It calls something else.
    Mismatch,
    /// It exits without a word, in the middle of anything.
    Exit,
    /// One of its TCP connections ends.
    Close,
    /// Packets between two hosts are dropped for a while.
    Drops,
    /// From here on all are.
    Cut,
}

use Fault::{Abort, Close, Cut, Drops, Exit, Kill, Mismatch, Pause, Stop, TwoKills};

const FAULTS: [Fault; 10] = [Kill, TwoKills, Stop, Pause, Abort, Mismatch, Exit, Close, Drops, Cut];

/// How the ranks of a trial reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Shm,
    Tcp,
    /// Both, on two hosts.
    Mixed,
}

#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) seed: u64,
    pub(crate) n: usize,
    /// The largest world with links between all pairs; others have those of rings and trees.
    pub(crate) all_pairs: usize,
    pub(crate) way: Way,
    pub(crate) fault: Fault,
    pub(crate) victims: Vec<usize>,
    /// When, after all are at work.
    pub(crate) after: Duration,
    /// How long a pause is, or packets are dropped; those of more bytes than this.
    pub(crate) pause: Duration,
    pub(crate) passes: u32,
    pub(crate) timeout: Duration,
    /// The most elements of a call, as a power of two.
    pub(crate) most: u32,
    /// Do the ranks have a secret? And is what they send encrypted?
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
        let few = if fault == TwoKills { 1 } else { 0 };
        let n = [2, 3, 4, 8, 4, 8, 16][random.random_range(few..7)];
        let all_pairs = if n > 3 && random.random_bool(0.4) { 2 } else { 32 };
        let way = match random.random_range(0..3) {
            _ if matches!(fault, Drops | Cut) => Way::Mixed,
            0 if fault != Close => Way::Shm,
            1 if has_hosts => Way::Mixed,
            _ => Way::Tcp,
        };
        let first = random.random_range(0..n);
        let second = (first + random.random_range(1..n)) % n;
        let victims = if fault == TwoKills { vec![first, second] } else { vec![first] };
        let after = Duration::from_micros(random.random_range(0..60_000));
        let pause = Duration::from_millis(random.random_range(1..400));
        // Who waits for the end of a long stop is not to be held up by much data, and sixteen ranks
        // have made a group by then also where CPUs are few.
        let (timeout, most) = if fault == Stop { (4_000, 16) } else { (15_000, 20) };
        let timeout = Duration::from_millis(timeout);
        let passes = if fault == Drops { [1, 3_000][random.random_range(0..2)] } else { 1 };
        let (secret, encrypt) =
            [(false, false), (true, false), (true, true)][random.random_range(0..3)];
        Self {
            seed,
            n,
            all_pairs,
            way,
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

    /// Which of two hosts a rank is on, if there are two.
    pub(crate) fn host(&self, rank: usize) -> usize {
        2 * rank / self.n
    }
}
