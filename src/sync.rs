//! Waiting and waking across threads and processes: futexes, fences that cost only the one who
//! goes to sleep, and how long to spin before that. May touch: OS crates.

mod sleeper;
mod system;

use std::cell::Cell;
use std::time::{Duration, Instant};

pub(crate) use sleeper::Sleeper;

/// Where `sleeper` and the words of a FIFO take theirs from: `tests/loom` has others there.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
}

/// The CPUs that the ranks of this host share, as far as this process can tell.
pub(crate) fn cpus() -> usize {
    let mine = std::thread::available_parallelism().map_or(1, usize::from);
    // A rank bound to one CPU of many has that one to itself.
    let online = || nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    if mine > 1 { mine } else { online().map_or(1, |online| online.max(1) as usize) }
}

/// How long to look before sleeping: spin (the peer runs on another CPU), then give way (it may
/// need this one), then park.
///
/// Waking a CPU costs about 25 us on a virtual machine and a spin hand-over 0.2 us, so that looking
/// for some 100 us is cheap. Most looks give way: even with a CPU for each rank the system may put
/// two on one, and there who only spins keeps the other from its work.
#[derive(Debug)]
pub struct Patience {
    spins: u32,
    /// Waits left that give way no more, since it took so long the last time.
    hurry: Cell<u32>,
}

/// Looks that give way before a rank parks.
const YIELDS: u32 = 1_000;
/// The same where a look is a system call.
const DEAR_YIELDS: u32 = 100;
/// Who gave way for that long gave way to a program that is not waiting for anybody: a sleeper is
/// woken in its place, one that gives way is not.
const LONG: Duration = Duration::from_millis(1);
/// How many waits remember it.
const MEMORY: u32 = 256;

impl Patience {
    /// For a host where `ranks` of the job share the CPUs that this process may use. With more
    /// ranks than CPUs spinning only keeps the others from work.
    #[must_use]
    pub fn for_ranks(ranks: usize) -> Self {
        Self { spins: if ranks <= cpus() { 100 } else { 10 }, hurry: Cell::new(0) }
    }

    /// A wait begins; `dear` if every look is a system call: those never spin.
    pub(crate) fn begin(&self, dear: bool) -> Waiting<'_> {
        let hurry = self.hurry.get();
        self.hurry.set(hurry.saturating_sub(1));
        let spins = if dear { 0 } else { self.spins };
        let yields = match (hurry > 0, dear) {
            (true, _) => 0,
            (false, true) => DEAR_YIELDS,
            (false, false) => YIELDS,
        };
        Waiting { hurry: &self.hurry, spins, limit: spins + yields, began: Cell::new(None) }
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    hurry: &'a Cell<u32>,
    spins: u32,
    limit: u32,
    /// When it was clear that this is no short wait.
    began: Cell<Option<Instant>>,
}

impl Waiting<'_> {
    /// One round of it, the `round`-th; false when it is time to park.
    pub(crate) fn wait(&self, round: u32) -> bool {
        if round < self.spins {
            std::hint::spin_loop();
        } else if round < self.limit && self.hurry.get() == 0 {
            // The clock costs as much as a look: one in eight is timed, the first too.
            let since = (round - self.spins).is_multiple_of(8).then(Instant::now);
            std::thread::yield_now();
            if let Some(since) = since {
                self.began.set(self.began.get().or(Some(since)));
                if since.elapsed() > LONG {
                    self.hurry.set(MEMORY);
                }
            }
        } else {
            return false;
        }
        true
    }

    /// When the wait began, as far as it was timed.
    pub(crate) fn began(&self) -> Instant {
        self.began.get().unwrap_or_else(Instant::now)
    }
}
