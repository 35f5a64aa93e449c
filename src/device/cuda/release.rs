//! How streams are let pass after a failure: not before kernels that touch this rank's buffers have
//! ended. May touch: board, context, error, watch.
//! Law: no user takes for free what a kernel still writes.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaEvent};

use super::context::{Beside, Current};
use super::control_block::At;
use super::driver::Driver;
use super::stream_order::{event, query};
use super::watchdog::{RELEASE, Watch};
use crate::error::Result;
use crate::transport::hung_up;

/// How long after a failure a rank's kernels may be at work before it asks whether its context is
/// lost: then they have ended, and no stream of it says so.
const DOUBT: Duration = Duration::from_millis(500);

/// Whether a context still works.
#[derive(Debug)]
pub(crate) struct Health {
    driver: Driver,
    context: Arc<CudaContext>,
    /// An event that is never recorded: to ask for it shows the context's error.
    event: CudaEvent,
}

impl Health {
    /// The context is current.
    pub(crate) fn new(driver: Driver, context: &Arc<CudaContext>) -> Result<Self> {
        Ok(Self { driver, context: Arc::clone(context), event: event(context)? })
    }

    fn is_lost(&self) -> bool {
        // A capture in another thread is not disturbed by the question.
        let beside = Beside::new();
        let current = Current::new(self.driver, self.context.cu_ctx());
        let fine = [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_NOT_READY];
        let works = current.is_ok() && beside.is_ok() && fine.contains(&query(&self.event));
        drop(current);
        !works
    }
}

impl Watch {
    /// Are kernels of others at work on this rank's buffers in a call? Those that begin later find
    /// that they are stopped.
    fn is_touched(&self, place: usize) -> bool {
        // After the word that stops kernels was written: see `kernels/README.md`.
        fence(Ordering::SeqCst);
        let ours = self.own(place).sequence;
        self.others().any(|rank| {
            let at = At { rank, place };
            let same = self.boards.claimed(at).sequence == ours;
            let gone = || self.lives[rank].as_ref().is_some_and(hung_up);
            same && self.boards.is_at_work(at) && !gone()
        })
    }

    /// Lets this rank's streams pass, once; false if none waits. They wait for kernels that have
    /// begun, so that none touches what its user takes for free.
    pub(super) fn release(&self, since: Instant) -> bool {
        if since.elapsed() > DOUBT {
            self.own_kernels_ended();
        }
        let mut busy = false;
        for (place, _) in self.open() {
            busy = true;
            if !self.is_touched(place) {
                self.boards.release(place, |rank| self.is_worker(rank));
            }
        }
        busy
    }

    /// Says for this rank's streams that its kernels have ended, if its context is lost.
    fn own_kernels_ended(&self) {
        let works = |&place: &usize| self.boards.is_at_work(At { rank: self.boards.me, place });
        if self.places().any(|place| works(&place)) && self.health.is_lost() {
            self.places().filter(works).for_each(|place| self.boards.rests(place));
        }
    }

    /// Ends a failed call for a stream that takes nothing more; what is there takes no word back.
    /// Two ranks that both do so wait for each other no longer than a call may last.
    pub(crate) fn abandon(&self, place: usize) {
        let began = Instant::now();
        while began.elapsed() < self.timeout() && self.is_touched(place) {
            thread::sleep(RELEASE);
        }
        self.boards.release(place, |rank| self.is_worker(rank));
        self.abandoned[place].store(true, Ordering::Release);
    }
}
