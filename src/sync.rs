//! Waiting and waking across threads and processes: futexes, a store-load barrier whose cost only
//! the sleeper pays, and the back-off before a sleep.

mod at_exit;
mod clock;
mod cpus;
mod fork;
mod interrupt;
mod sleeper;
mod system;
mod wait_notice;
mod waiters;

use std::cell::Cell;
use std::time::Duration;

pub(crate) use at_exit::call_at_exit;
pub use clock::{Instant, MAX_SLEEP};
pub(crate) use cpus::UsableCpus;
pub use fork::Process;
pub(crate) use fork::{PerProcess, SocketPair, adopt_socket, is_forked_child, open_sockets};
pub(crate) use interrupt::is_interrupted;
pub use interrupt::set_interrupt;
pub(crate) use sleeper::{Sleeper, store_load_fence};
pub(crate) use wait_notice::{FIRST_NOTICE, WaitNotice, rank_list};
pub(crate) use waiters::{FencedBy, Waiters};

/// The atomics of `sleeper`, `waiters` and the transport's FIFOs; `tests/loom` replaces them by
/// loom's.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
}

/// How long a worker thread leaves its work alone after another thread has waited for it. A thread
/// that waits again and again does the work itself: a worker that woke each time would cost ten
/// times a short call. While waits follow each other fast the pause grows, because each wake-up
/// takes time from them; a program that computes between its waits has the shortest one.
#[derive(Debug)]
pub(crate) struct WorkerPause {
    length: Duration,
    /// The number of waits at the latest pause.
    waits: u64,
}

const LEAST_WORKER_PAUSE: Duration = Duration::from_micros(200);
const MOST_WORKER_PAUSE: Duration = Duration::from_micros(1600);
/// Waits in the least pause that follow each other fast.
const FAST_WAITS: u64 = 2;

impl Default for WorkerPause {
    fn default() -> Self {
        Self { length: LEAST_WORKER_PAUSE, waits: 0 }
    }
}

impl WorkerPause {
    /// The length of the pause that begins after so many waits in all.
    pub(crate) fn next(&mut self, waits: u64) -> Duration {
        let parts = self.length.as_micros() / LEAST_WORKER_PAUSE.as_micros();
        let is_fast = waits.wrapping_sub(self.waits) >= FAST_WAITS * parts as u64;
        self.waits = waits;
        self.length =
            if is_fast { (2 * self.length).min(MOST_WORKER_PAUSE) } else { LEAST_WORKER_PAUSE };
        self.length
    }
}

/// The back-off policy: how long a rank polls before it sleeps. It spins (the peer runs on another
/// CPU), then yields (the peer may need this CPU), then sleeps.
///
/// To wake a CPU takes about 25 us on a virtual machine and a hand-over between spinning ranks 0.2
/// us, so polling for some 100 us pays. Most polls yield: even with a CPU for each rank the system
/// may put two on one, and a rank that only spins would keep the other one from its work.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// The CPUs that the ranks of this host share.
    cpus: usize,
    spins: u32,
    /// How long a wait yields before it sleeps.
    yield_time: Duration,
    /// The least time from one look for failed peers to the next.
    look_interval: Duration,
    /// A longer yield gave the CPU to another program.
    long_yield: Duration,
    /// Waits left that do not yield, because a yield took long.
    skips: Cell<u32>,
    /// The number of waits that skipped their yields after the latest long yield, less what the
    /// waits without a long yield took off since.
    penalty: Cell<u32>,
    /// The end of the latest look for failed peers, and its length.
    looked: Cell<Option<Instant>>,
    look_time: Cell<Duration>,
    /// The least time from one look to the next, by what looks take.
    look_pause: Cell<Duration>,
}

/// How long a wait yields for each rank of its CPU. A yield takes as long as the other ranks of the
/// CPU need for their polls, so the number of polls is about the same on any host.
const YIELD_TIME_PER_RANK: Duration = Duration::from_micros(500);
/// The longest time that a wait yields: by then the awaited rank does something longer than a call.
const MAX_YIELD_TIME: Duration = Duration::from_millis(5);
/// The part of that time (1 / this) where each poll is a system call.
const SYSCALL_YIELD_DIVISOR: u32 = 5;
/// The clock costs as much as a poll, so a wait reads it at one yield in so many.
const YIELDS_PER_CLOCK_READ: u32 = 8;
/// A yield of this length, and more for the other ranks of the CPU, gave the CPU to another
/// program, which does not wait for this rank. A sleeper is woken and takes the CPU from such a
/// program; a yielding rank is not. The other ranks take turns, and each looks at all ranks in its
/// turn, so their time grows with the square of their number: with a time for each of them most
/// yields seemed long, and on two CPUs 8 bytes among 32 ranks took 1.6 times as long, 64 KiB among
/// 64 ranks up to 5 times.
const LONG_YIELD: Duration = Duration::from_millis(1);
const LONG_YIELD_PER_PAIR: Duration = Duration::from_micros(15);
/// The fewest and the most waits that do not yield after a long yield. The number grows while each
/// wait that yields meets the other program, and shrinks once the ranks have their CPUs to
/// themselves: where many ranks share a CPU, a yield is long now and then.
const SKIPPED_WAITS: [u32; 2] = [8, 256];
/// The least time from one look for failed peers to the next. A look takes some 10 us, so that of a
/// thousand ranks on two CPUs that looked at each wake-up none got on with its work: where more
/// ranks share a CPU than this, they look as many times less often.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
const RANKS_THAT_LOOK_OFTEN: u32 = 16;
/// Ranks that sleep look every 250 ms at most: a call that differs must be found within a second.
const MOST_LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// A look at many peers takes longer, and where hosts are parts of one machine, their ranks share
/// more CPUs than they know: the pause is so many times what a look takes. Among 128 ranks on two
/// CPUs, as eight hosts of 16, looks took most of their time.
const PAUSE_PER_LOOK: u32 = 50;
/// A rank that sleeps looks once in so many look intervals.
const LOOK_INTERVALS_OF_A_SLEEP: u32 = 10;

impl Backoff {
    /// The policy for a host where `ranks` of the job share `cpus`. With more ranks than CPUs
    /// (oversubscription), spinning keeps other ranks from their work.
    #[must_use]
    pub fn for_ranks(ranks: usize, cpus: usize) -> Self {
        let share = ranks.div_ceil(cpus.max(1)).clamp(1, 1000) as u32;
        let look_interval = (LOOK_INTERVAL * share / RANKS_THAT_LOOK_OFTEN)
            .clamp(LOOK_INTERVAL, MOST_LOOK_INTERVAL);
        Self {
            cpus,
            spins: if share <= 1 { 100 } else { 10 },
            yield_time: (YIELD_TIME_PER_RANK * share).min(MAX_YIELD_TIME),
            look_interval,
            long_yield: LONG_YIELD + LONG_YIELD_PER_PAIR * (share - 1).pow(2),
            skips: Cell::new(0),
            penalty: Cell::new(0),
            looked: Cell::new(None),
            look_time: Cell::new(Duration::ZERO),
            look_pause: Cell::new(look_interval),
        }
    }

    /// The CPUs that the ranks of this host share.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Begins a wait. If `is_syscall_backed`, each poll is a system call, and the rank never spins.
    pub(crate) fn begin(&self, is_syscall_backed: bool) -> WaitBackoff<'_> {
        let skips = self.skips.get();
        self.skips.set(skips.saturating_sub(1));
        let (spins, yield_time) = match is_syscall_backed {
            true => (0, self.yield_time / SYSCALL_YIELD_DIVISOR),
            false => (self.spins, self.yield_time),
        };
        WaitBackoff {
            policy: self,
            spins,
            yield_time: Cell::new(if skips > 0 { Duration::ZERO } else { yield_time }),
            began: Cell::new(None),
        }
    }

    /// The time that must pass before a rank which waits since `began` looks for failed peers; zero
    /// if it should look now. A wait that ends within the interval pays for no look.
    pub(crate) fn time_to_look(&self, began: Instant) -> Duration {
        let last = self.looked.get().map_or(began, |looked| looked.max(began));
        self.look_pause.get().saturating_sub(last.elapsed())
    }

    /// How long a rank sleeps from one look to the next, where nothing wakes it.
    pub(crate) fn sleep_interval(&self) -> Duration {
        LOOK_INTERVALS_OF_A_SLEEP * self.look_pause.get()
    }

    /// Notes that a rank has looked for failed peers, since `began`. Of two looks the shorter one
    /// counts: another program may have had the CPU in the other one.
    pub(crate) fn note_look(&self, began: Instant) {
        let now = Instant::now();
        self.note_look_time(now - began);
        self.looked.set(Some(now));
    }

    fn note_look_time(&self, time: Duration) {
        let pause = PAUSE_PER_LOOK * self.look_time.replace(time).min(time);
        self.look_pause.set(pause.clamp(self.look_interval, MOST_LOOK_INTERVAL));
    }

    /// Notes the length of a wait's first yield, or of a later one if that was long.
    fn note_yield(&self, is_long: bool) {
        let [fewest, most] = SKIPPED_WAITS;
        let penalty = self.penalty.get();
        if is_long {
            self.penalty.set((penalty * 4).clamp(fewest, most));
            self.skips.set(self.penalty.get());
        } else {
            self.penalty.set(penalty - penalty.div_ceil(16));
        }
    }
}

#[derive(Debug)]
pub(crate) struct WaitBackoff<'a> {
    policy: &'a Backoff,
    spins: u32,
    /// How long this wait yields; zero once it should sleep.
    yield_time: Cell<Duration>,
    /// The time of the first yield.
    began: Cell<Option<Instant>>,
}

impl WaitBackoff<'_> {
    /// Backs off once, the `round`-th time; false when it is time to sleep.
    pub(crate) fn wait(&self, round: u32) -> bool {
        if round < self.spins {
            std::hint::spin_loop();
            return true;
        }
        let limit = self.yield_time.get();
        if limit.is_zero() {
            return false;
        }
        let yields = round - self.spins;
        if !yields.is_multiple_of(YIELDS_PER_CLOCK_READ) {
            std::thread::yield_now();
            return true;
        }
        let since = Instant::now();
        let began = self.began.get().unwrap_or(since);
        self.began.set(Some(began));
        if since - began >= limit {
            return false;
        }
        std::thread::yield_now();
        let is_long = since.elapsed() > self.policy.long_yield;
        if is_long {
            self.yield_time.set(Duration::ZERO);
        }
        if is_long || yields == 0 {
            self.policy.note_yield(is_long);
        }
        true
    }

    /// The start of the wait, as far as it was timed; now if it was not.
    pub(crate) fn began(&self) -> Instant {
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_pauses_for_longer_only_while_waits_follow_each_other_fast() {
        let (mut pause, mut waits) = (WorkerPause::default(), 0);
        let mut micros = |more: u64| {
            waits += more;
            pause.next(waits).as_micros()
        };
        // A wait of 1 us each.
        let steady: Vec<_> = [200, 400, 800, 1600, 1600].map(&mut micros).into();
        assert_eq!(steady, [400, 800, 1600, 1600, 1600]);
        // A program that computes for 1 ms between its waits.
        assert_eq!([1, 1, 0, 1].map(&mut micros), [200; 4]);
        // Two waits in each 200 us are fast, one is not.
        assert_eq!([2, 4, 8, 15, 1].map(&mut micros), [400, 800, 1600, 200, 200]);
    }

    #[test]
    fn the_pause_between_looks_follows_the_shorter_of_two() {
        let backoff = Backoff::for_ranks(1, 1);
        let look = |micros| {
            backoff.note_look_time(Duration::from_micros(micros));
            backoff.look_pause.get()
        };
        // Another program had the CPU in the look of 5 ms.
        assert_eq!([10, 5000, 10].map(look), [LOOK_INTERVAL; 3]);
        assert_eq!([200, 300].map(look)[1], PAUSE_PER_LOOK * Duration::from_micros(200));
        assert_eq!([5000, 5000].map(look)[1], MOST_LOOK_INTERVAL);
        assert_eq!(backoff.sleep_interval(), LOOK_INTERVALS_OF_A_SLEEP * MOST_LOOK_INTERVAL);
    }
}
