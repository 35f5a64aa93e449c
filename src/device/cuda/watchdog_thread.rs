//! The thread that looks after calls. May touch: error, watch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::watchdog::{RELEASE, Watch};
use crate::error::{Error, Result};

/// The thread, and how to wake it.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) watch: Arc<Watch>,
    thread: Option<JoinHandle<bool>>,
}

impl Guard {
    pub(crate) fn new(watch: Watch) -> Result<Self> {
        let watch = Arc::new(watch);
        let its = Arc::clone(&watch);
        let builder = thread::Builder::new().name("ringreduce-guard".into());
        let thread = builder
            .spawn(move || its.serve())
            .map_err(|error| Error::no_thread("starting the thread that guards streams", error))?;
        Ok(Self { watch, thread: Some(thread) })
    }

    /// A call was claimed.
    pub(crate) fn wake(&self) {
        if self.watch.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Waits until all calls are over; the guard sees to it that they end. If a stream does not
    /// come to them in time, or there are graphs that may still be launched, it is false: then the
    /// guard goes on, and nothing that those use may be given back.
    pub(crate) fn finish(&mut self) -> bool {
        self.watch.ends.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return true };
        thread.thread().unpark();
        while !thread.is_finished() {
            if self.watch.left_behind.load(Ordering::Acquire) {
                return false;
            }
            thread::sleep(RELEASE);
        }
        true
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}
