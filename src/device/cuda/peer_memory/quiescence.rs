//! Quiescence: memory is closed and freed while no direct call of this process is under way. To do
//! so waits for streams, and a driver may keep all threads of the process from the device
//! meanwhile, so that streams would wait for calls that this process cannot make.
//! Law: a call that begins while memory is being released waits for that, a short time.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::device::cuda::locked;
use crate::device::cuda::stream_order::pause;
use crate::device::cuda::watchdog::Watchdog;
use crate::sync::Instant;

/// The watchdogs of this process, whose ranks may be threads that share a context.
static WATCHDOGS: Mutex<Vec<Weak<Watchdog>>> = Mutex::new(Vec::new());
/// The number of threads that release memory.
static RELEASES: AtomicUsize = AtomicUsize::new(0);
/// How long a call waits for memory that is being released. By then the driver has begun, and waits
/// for what the streams had before; work that the caller itself has to end may be among that.
const RELEASE_GRACE: Duration = Duration::from_millis(10);

/// Makes the calls that a watchdog looks after count as calls of this process.
pub(crate) fn add_watchdog(watchdog: &Arc<Watchdog>) {
    let mut all = locked(&WATCHDOGS);
    all.retain(|one| one.strong_count() > 0);
    all.push(Arc::downgrade(watchdog));
}

/// Calls `release` if no call of this process is under way; `None` if one is.
pub(crate) fn while_idle<T>(release: impl FnOnce() -> T) -> Option<T> {
    // The caller of a call publishes its header, then reads this number: one of the two sees the
    // other.
    RELEASES.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let all: Vec<_> = locked(&WATCHDOGS).iter().filter_map(Weak::upgrade).collect();
    let is_idle = !all.iter().any(|one| one.keeps_streams_waiting());
    let released = is_idle.then(release);
    RELEASES.fetch_sub(1, Ordering::SeqCst);
    released
}

/// Waits, a short time, for memory that is being released. The header of the call was published
/// before.
pub(crate) fn wait_for_releases() {
    if RELEASES.load(Ordering::SeqCst) == 0 {
        return;
    }
    let (began, mut round) = (Instant::now(), 0);
    while RELEASES.load(Ordering::SeqCst) > 0 && began.elapsed() < RELEASE_GRACE {
        pause(&mut round);
    }
}

impl Watchdog {
    /// The number of this rank's latest call that is unfinished; 0 if none is.
    pub(crate) fn latest_unfinished(&self) -> u64 {
        self.unfinished().map(|(slot, _)| self.own_header(slot).number()).max().unwrap_or(0)
    }

    /// True if one of this rank's calls up to that number is unfinished.
    pub(crate) fn has_unfinished_up_to(&self, number: u64) -> bool {
        self.unfinished().any(|(slot, _)| self.own_header(slot).number() <= number)
    }

    /// True if streams may wait for other ranks; those of a detached watchdog do not.
    fn keeps_streams_waiting(&self) -> bool {
        !self.is_detached.load(Ordering::Acquire) && self.unfinished().next().is_some()
    }
}
