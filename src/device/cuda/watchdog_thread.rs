//! The watchdog's thread: start, wake-up, and the end with the communicator.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::peer_memory::add_watchdog;
use super::watchdog::{RELEASE_INTERVAL, Watchdog};
use crate::error::{Error, Result};

/// The thread, and the state that it shares with calls.
#[derive(Debug)]
pub(crate) struct WatchdogThread {
    pub(crate) shared: Arc<Watchdog>,
    thread: Option<JoinHandle<bool>>,
}

impl WatchdogThread {
    pub(crate) fn new(watchdog: Watchdog) -> Result<Self> {
        let shared = Arc::new(watchdog);
        add_watchdog(&shared);
        let watchdog = Arc::clone(&shared);
        let builder = thread::Builder::new().name("ringreduce-gpu".into());
        let thread = builder
            .spawn(move || watchdog.run())
            .map_err(|error| Error::no_thread("starting the watchdog thread", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Wakes the thread, after a call's header was published.
    pub(crate) fn wake(&self) {
        if self.shared.is_asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Waits until all calls are finished; the watchdog ends calls that time out. The result is
    /// false if a stream does not reach its calls in time, or if graphs may still be launched: then
    /// the thread goes on, and nothing that those calls use may be freed.
    pub(crate) fn finish(&mut self) -> bool {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return true };
        thread.thread().unpark();
        while !thread.is_finished() {
            if self.shared.is_detached.load(Ordering::Acquire) {
                return false;
            }
            thread::sleep(RELEASE_INTERVAL);
        }
        true
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        self.finish();
    }
}
