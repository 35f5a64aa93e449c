//! The clock by which waits end and failures are noticed. It stands still while the process is
//! stopped (by Ctrl-Z, SIGSTOP, a freezer of control groups, a batch system that suspends the job),
//! so that a job which is resumed after longer than its timeout goes on. A single stopped rank is
//! reported all the same: by its peers, whose clocks go on.
//!
//! Law: a time in which no thread of the process reads the clock counts as half a second at most.
//! Each wait reads it more often, so only a stop leaves a longer gap, or a program that waits for
//! nothing. Where threads starve for want of a CPU each look still counts, so every deadline comes.

use std::ops::{Add, Sub};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest time between two reads of the clock that counts in full.
const MAX_GAP: u64 = 500_000_000;
/// The longest sleep of a thread that waits: each sleep ends with a read of the clock.
pub const MAX_SLEEP: Duration = Duration::from_millis(250);
/// A read is noted if the latest noted one is so much older: threads that read often share the
/// cache line without writing to it.
const NOTE_INTERVAL: u64 = 10_000_000;
/// In [`LATEST`]: a thread takes a gap off the clock.
const IS_UPDATED: u64 = 1 << 63;

/// The system's clock at the first read; the other times are in nanoseconds from it.
static BASE: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
/// The time of the latest noted read.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The time for which the clock has stood still.
static STOPPED: AtomicU64 = AtomicU64::new(0);

/// A time of the clock, in nanoseconds; as [`std::time::Instant`] otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The time now.
    #[must_use]
    pub fn now() -> Self {
        // The noted read is loaded before the clock is read: a stop in between shows as a gap.
        let latest = LATEST.load(Ordering::Acquire);
        let now = system_time();
        let gap = now.saturating_sub(latest);
        if gap > MAX_GAP || latest & IS_UPDATED != 0 {
            return Self(after_gap());
        }
        if gap > NOTE_INTERVAL {
            LATEST.fetch_max(now, Ordering::AcqRel);
        }
        Self(now.saturating_sub(STOPPED.load(Ordering::Acquire)))
    }

    /// The time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        *self - earlier
    }

    /// The time since `earlier`; none if that is later.
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        (earlier <= *self).then(|| *self - earlier)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Zero if `earlier` is later, as of [`std::time::Instant`].
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// The first read of the clock, if the result would be earlier.
    fn sub(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

/// The system's time, which goes on while this process is stopped.
fn system_time() -> u64 {
    u64::try_from(BASE.elapsed().as_nanos()).unwrap_or(u64::MAX) & !IS_UPDATED
}

/// The time now, after the first thread that comes here has taken the gap off.
#[cold]
fn after_gap() -> u64 {
    loop {
        let latest = LATEST.load(Ordering::Acquire);
        let now = system_time();
        if latest & IS_UPDATED == 0 {
            let gap = now.saturating_sub(latest);
            let update = || {
                let updated = latest | IS_UPDATED;
                LATEST.compare_exchange(latest, updated, Ordering::AcqRel, Ordering::Relaxed)
            };
            if gap > MAX_GAP && update().is_ok() {
                STOPPED.fetch_add(gap - MAX_GAP, Ordering::AcqRel);
                LATEST.store(now, Ordering::Release);
            }
            if gap <= MAX_GAP {
                return now.saturating_sub(STOPPED.load(Ordering::Acquire));
            }
        }
        std::thread::yield_now();
    }
}

/// In a forked child: a thread that updated the clock does not exist here.
pub(super) fn reset_in_child() {
    LATEST.fetch_and(!IS_UPDATED, Ordering::Relaxed);
}
