//! Releasing the streams of failed calls: a stream goes on after the kernels that touch this rank's
//! buffers have ended.
//! Law: no kernel writes a buffer after the user's stream has passed the call.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaEvent};

use super::context::{CurrentContext, RelaxedCapture};
use super::control_block::SlotRef;
use super::driver::Driver;
use super::failure::{FailedCall, OperationHeader};
use super::stream_order::{new_event, query_event};
use super::watchdog::{RELEASE_INTERVAL, Watchdog};
use crate::error::Result;
use crate::sync::Instant;

/// How long after a failure this rank's kernels may run before the watchdog asks whether its
/// context is lost. In a lost context they have ended, and no stream says so.
const CONTEXT_CHECK_DELAY: Duration = Duration::from_millis(500);

/// A test whether a context still works.
#[derive(Debug)]
pub(crate) struct ContextProbe {
    driver: Driver,
    context: Arc<CudaContext>,
    /// An event that is never recorded: the answer to a query is the context's error.
    event: CudaEvent,
}

impl ContextProbe {
    /// Makes the event. The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>) -> Result<Self> {
        Ok(Self { driver, context: Arc::clone(context), event: new_event(context)? })
    }

    fn is_lost(&self) -> bool {
        // The query must not invalidate a capture in another thread.
        let relaxed = RelaxedCapture::new();
        let current = CurrentContext::new(self.driver, self.context.cu_ctx());
        let fine = [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_NOT_READY];
        let works = current.is_ok() && relaxed.is_ok() && fine.contains(&query_event(&self.event));
        drop(current);
        !works
    }
}

impl Watchdog {
    /// The first failure, as far as this rank or a peer has published it, for any thread.
    pub(crate) fn known_failure(&self) -> Option<FailedCall> {
        if self.has_failure.load(Ordering::Acquire) {
            return self.failure.try_lock().ok()?.clone();
        }
        let peer = self.others().find(|&peer| self.blocks.close_reason(peer) > 1)?;
        Some((OperationHeader::NONE, self.peer_close_failure(peer)?))
    }

    /// True if kernels of other ranks run on this rank's buffers for a call. Kernels that start
    /// later find the stop word set.
    fn has_running_kernels(&self, slot: usize) -> bool {
        // The stop word was written before this fence: see `kernels/README.md`.
        fence(Ordering::SeqCst);
        let ours = self.own_header(slot).sequence;
        self.others().any(|rank| {
            let at = SlotRef { rank, slot };
            let same = self.blocks.header(at).sequence == ours;
            same && self.blocks.is_running(at) && !self.is_ending(rank)
        })
    }

    /// Sets, once, the words that this rank's streams wait for in calls without running kernels;
    /// false if no call is unfinished.
    pub(super) fn release(&self, since: Instant) -> bool {
        if since.elapsed() > CONTEXT_CHECK_DELAY {
            self.clear_running_if_context_lost();
        }
        let mut busy = false;
        for (slot, _) in self.unfinished() {
            busy = true;
            if !self.has_running_kernels(slot) {
                self.blocks.release(slot, |rank| self.is_worker(rank));
            }
        }
        busy
    }

    /// Clears the running words of this rank's kernels, if its context is lost.
    fn clear_running_if_context_lost(&self) {
        let works = |&slot: &usize| self.blocks.is_running(self.blocks.own(slot));
        if self.slots_in_use().any(|slot| works(&slot)) && self.context.is_lost() {
            self.slots_in_use().filter(works).for_each(|slot| self.blocks.clear_running(slot));
        }
    }

    /// Ends a failed call on a stream that takes no more work, where what is enqueued clears no
    /// word. Two ranks that both do so wait for each other's kernels at most the timeout of a call.
    pub(crate) fn abandon(&self, slot: usize) {
        let began = Instant::now();
        while began.elapsed() < self.timeout() && self.has_running_kernels(slot) {
            thread::sleep(RELEASE_INTERVAL);
        }
        self.blocks.release(slot, |rank| self.is_worker(rank));
        self.abandoned[slot].store(true, Ordering::Release);
    }
}
