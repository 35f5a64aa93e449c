//! Waiting and waking across threads and processes: futexes, a store-load barrier whose cost only
//! the sleeper pays, and the back-off before a sleep.

mod sleeper;
mod system;
mod waiters;

use std::cell::Cell;
use std::time::{Duration, Instant};

pub(crate) use sleeper::Sleeper;
pub(crate) use waiters::{FencedBy, Waiters};

/// The atomics of `sleeper`, `waiters` and the transport's FIFOs; `tests/loom` replaces them by
/// loom's.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
}

/// The number of CPUs that the ranks of this host share, as far as this process can tell.
pub(crate) fn cpus() -> usize {
    let mine = std::thread::available_parallelism().map_or(1, usize::from);
    // A rank that is bound to one CPU of many has that CPU to itself.
    let online = || nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    if mine > 1 { mine } else { online().map_or(1, |online| online.max(1) as usize) }
}

/// The back-off policy: how long a rank polls before it sleeps. It spins (the peer runs on another
/// CPU), then yields (the peer may need this CPU), then sleeps.
///
/// To wake a CPU takes about 25 us on a virtual machine and a hand-over between spinning ranks 0.2
/// us, so polling for some 100 us pays. Most polls yield: even with a CPU for each rank the system
/// may put two on one, and a rank that only spins would keep the other one from its work.
#[derive(Debug)]
pub struct Backoff {
    spins: u32,
    /// Waits left that do not yield, because a yield took long.
    skips: Cell<u32>,
}

/// Polls with a yield before a rank sleeps.
const YIELDS: u32 = 1_000;
/// Polls with a yield where each poll is a system call.
const SYSCALL_YIELDS: u32 = 100;
/// A yield of this length gave the CPU to another program, which does not wait for this rank. A
/// sleeper is woken and takes the CPU from such a program; a yielding rank is not.
const LONG_YIELD: Duration = Duration::from_millis(1);
/// Waits that do not yield after such a yield.
const SKIPPED_WAITS: u32 = 256;

impl Backoff {
    /// The policy for a host where `ranks` of the job share the CPUs that this process may use.
    /// With more ranks than CPUs (oversubscription), spinning keeps other ranks from their work.
    #[must_use]
    pub fn for_ranks(ranks: usize) -> Self {
        Self { spins: if ranks <= cpus() { 100 } else { 10 }, skips: Cell::new(0) }
    }

    /// Begins a wait. If `is_syscall_backed`, each poll is a system call, and the rank never spins.
    pub(crate) fn begin(&self, is_syscall_backed: bool) -> WaitBackoff<'_> {
        let skips = self.skips.get();
        self.skips.set(skips.saturating_sub(1));
        let spins = if is_syscall_backed { 0 } else { self.spins };
        let yields = match (skips > 0, is_syscall_backed) {
            (true, _) => 0,
            (false, true) => SYSCALL_YIELDS,
            (false, false) => YIELDS,
        };
        WaitBackoff { skips: &self.skips, spins, limit: spins + yields, began: Cell::new(None) }
    }
}

#[derive(Debug)]
pub(crate) struct WaitBackoff<'a> {
    skips: &'a Cell<u32>,
    spins: u32,
    limit: u32,
    /// The time of the first yield.
    began: Cell<Option<Instant>>,
}

impl WaitBackoff<'_> {
    /// Backs off once, the `round`-th time; false when it is time to sleep.
    pub(crate) fn wait(&self, round: u32) -> bool {
        if round < self.spins {
            std::hint::spin_loop();
        } else if round < self.limit && self.skips.get() == 0 {
            // The clock costs as much as a poll: one yield in eight is timed, including the first.
            let since = (round - self.spins).is_multiple_of(8).then(Instant::now);
            std::thread::yield_now();
            if let Some(since) = since {
                self.began.set(self.began.get().or(Some(since)));
                if since.elapsed() > LONG_YIELD {
                    self.skips.set(SKIPPED_WAITS);
                }
            }
        } else {
            return false;
        }
        true
    }

    /// The start of the wait, as far as it was timed; now if it was not.
    pub(crate) fn began(&self) -> Instant {
        self.began.get().unwrap_or_else(Instant::now)
    }
}
