//! The worker: one thread of a communicator that makes progress while no other thread waits for a
//! request. It takes what arrives even while this rank has no request: a sender would wait
//! otherwise once the slots are full. Once nothing has come or gone for a while it leaves that to
//! the watch, and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use super::Messages;
use super::progress::State;
use super::wait::Awaited;
use crate::error::{Error, Result};
use crate::sync::{Instant, WorkerPause};

/// How long the worker sleeps at the doorbell before it looks for peers that are gone: while
/// requests are pending, and otherwise. A request that starts meanwhile does not wake it, so the
/// longer one is part of the second that docs/failures.md promises.
const SLEEP: Duration = Duration::from_millis(10);
pub(super) const IDLE_SLEEP: Duration = Duration::from_millis(250);
/// The worker ends after so long without requests and packets.
const IDLE: Duration = Duration::from_secs(1);

/// A request whose handle was dropped, and what keeps its buffer alive.
pub(super) struct Orphan {
    pub(super) request: Awaited,
    #[expect(dead_code, reason = "it is kept alive and dropped")]
    pub(super) buffer: Box<dyn Send>,
}

impl Messages {
    /// Starts the worker, if there is none.
    pub(crate) fn engage_worker(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.worker.is_none() {
            let (messages, seen) = (Arc::clone(self), state.activity());
            let builder = thread::Builder::new().name("ringreduce-messages".into());
            let thread = builder.spawn(move || messages.work(seen));
            let failed = |e| Error::no_thread("starting a thread for messages", e);
            state.worker = Some(thread.map_err(failed)?);
            state.end_watch();
        }
        Ok(())
    }

    /// Waits for the end of the worker, after [`Self::close`]. The worker itself, which may drop
    /// the communicator with a buffer, does not.
    pub(super) fn join_worker(&self) {
        let mut state = self.lock();
        let worker = state.worker.take();
        let orphans =
            if worker.is_none() { std::mem::take(&mut state.orphans) } else { Vec::new() };
        drop(state);
        drop_all(orphans);
        if let Some(worker) = worker.filter(|it| it.thread().id() != thread::current().id()) {
            // A panic of the user's code, in the drop of a buffer, was reported by its thread.
            let _ = worker.join();
        }
    }

    /// Keeps the buffer of a request whose handle was dropped until the request has ended.
    pub(crate) fn adopt(&self, request: Awaited, buffer: Box<dyn Send>) {
        if !self.process.is_current() {
            return std::mem::forget(buffer);
        }
        let mut state = self.lock();
        if state.closed.is_none() {
            state.orphans.push(Orphan { request, buffer });
            drop(state);
            self.bell.ring();
        }
    }

    /// `seen` is the activity before the request that the worker was started for.
    fn work(self: &Arc<Self>, mut seen: u64) {
        let (mut pause, mut idle_since) = (WorkerPause::default(), Instant::now());
        let mut state = self.lock();
        while state.closed.is_none() {
            let ended = state.ended_orphans();
            if !ended.is_empty() {
                drop(state);
                drop_all(ended);
                state = self.lock();
            } else if state.lookers == 0 && state.activity() == seen {
                let is_busy = state.is_busy();
                if !is_busy && state.orphans.is_empty() && idle_since.elapsed() >= IDLE {
                    let Some(back) = self.hand_over(state) else { return };
                    (state, idle_since) = (back, Instant::now());
                    continue;
                }
                state = self.sleep(state, if is_busy { SLEEP } else { IDLE_SLEEP }, &[]);
                if is_busy || state.has_moved {
                    idle_since = Instant::now();
                }
            } else {
                idle_since = Instant::now();
                if state.lookers > 0 {
                    state.worker_rests = true;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.worker_rests = false;
                }
                // A thread that waits again and again wakes the worker once in a pause at most.
                seen = state.activity();
                let woken = self.work.wait_timeout(state, pause.next(seen));
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                // A thread that starts requests again and again may never wait.
                if state.lookers == 0 {
                    state.turn(None);
                    self.wake_due_sleepers(&mut state);
                }
            }
        }
        let orphans = std::mem::take(&mut state.orphans);
        drop(state);
        drop_all(orphans);
    }
}

/// Drops buffers of the user's, whose code may panic.
fn drop_all(orphans: Vec<Orphan>) {
    for orphan in orphans {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(orphan))) {
            // Dropping the panic's payload might panic again.
            std::mem::forget(panic);
        }
    }
}

impl State {
    /// A number that changes when another thread waits or starts a request.
    fn activity(&self) -> u64 {
        self.looks + self.started
    }

    /// Takes the orphans whose requests have ended.
    fn ended_orphans(&mut self) -> Vec<Orphan> {
        let mut orphans = std::mem::take(&mut self.orphans);
        let ended = orphans.extract_if(.., |orphan| orphan.request.take(self).is_some()).collect();
        self.orphans = orphans;
        ended
    }
}
