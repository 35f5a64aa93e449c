//! The watch: one thread of the process for all communicators without a worker, because nothing
//! has come or gone for a while. It sleeps at all their doorbells and sockets, takes what comes
//! first, and starts the worker of that communicator.
//! Law: the watch waits for no other rank, and runs no code of the user's.

use std::mem::take;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::Messages;
use super::progress::State;
use super::worker::IDLE_SLEEP;
use crate::error::{Error, Result};
use crate::sync::{Instant, PerProcess, store_load_fence};
use crate::transport::{Bell, Doorbell};

#[derive(Default)]
struct Watch {
    watched: Vec<Weak<Messages>>,
    /// The doorbell of the thread, while there is one.
    bell: Option<Arc<Doorbell>>,
}

static WATCH: PerProcess<Mutex<Watch>> = PerProcess::new();

fn lock() -> MutexGuard<'static, Watch> {
    WATCH.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Starts the thread, if there is none.
    fn start(&mut self) -> Result<&Doorbell> {
        let bell = match self.bell.take() {
            Some(bell) => bell,
            None => {
                let bell = Arc::new(Doorbell::at(Arc::new(Bell::new()?)));
                let own = Arc::clone(&bell);
                let builder = thread::Builder::new().name("ringreduce-messages".into());
                let thread = builder.spawn(move || watch(&own));
                thread.map_err(|e| Error::no_thread("starting a thread for messages", e))?;
                bell
            }
        };
        Ok(self.bell.insert(bell))
    }
}

/// The thread, which ends once nothing is watched.
fn watch(bell: &Doorbell) {
    let (mut descriptors, mut owners) = (Vec::new(), Vec::new());
    let mut looked = Instant::now();
    loop {
        let mut watch = lock();
        descriptors.clear();
        owners.clear();
        watch.watched.retain(|it| {
            let is_watched = it.upgrade().is_some_and(|it| it.add_watched(&mut descriptors));
            owners.resize(descriptors.len(), it.clone());
            is_watched
        });
        if watch.watched.is_empty() {
            watch.bell = None;
            return;
        }
        drop(watch);
        let ready = bell.sleep_beside(&descriptors, IDLE_SLEEP);
        let mut due: Vec<_> = ready.into_iter().map(|at| owners[at].clone()).collect();
        // Each looks for peers that are gone, as often as a worker would.
        if looked.elapsed() >= IDLE_SLEEP {
            looked = Instant::now();
            due = take(&mut owners);
        }
        due.dedup_by(|one, other| one.ptr_eq(other));
        due.iter().filter_map(Weak::upgrade).for_each(|messages| messages.look_for_watch());
    }
}

impl Messages {
    /// Has the watch take what comes, or starts the worker if there can be no watch.
    pub(crate) fn engage_watch(self: &Arc<Self>) {
        if !self.process.is_current() {
            return;
        }
        let state = self.lock();
        if state.worker.is_none()
            && !state.is_watched
            && state.closed.is_none()
            && let Some(mut state) = self.hand_over(state)
        {
            // Without a thread for it, messages wait for calls of this rank; `isend` says so.
            let _ = self.engage_worker(&mut state);
        }
    }

    /// Leaves the links to the watch, in place of the worker; gives the state back if it can't.
    pub(super) fn hand_over<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> Option<MutexGuard<'a, State>> {
        state.announce_sleep(true);
        store_load_fence();
        if state.turn(None) {
            self.wake_due_sleepers(&mut state);
            return Some(state);
        }
        let worker = state.worker.take();
        state.is_watched = true;
        state.sleepers += 1;
        drop(state);
        let mut watch = lock();
        let started = watch.start().map(Doorbell::ring);
        let this = Arc::downgrade(self);
        if started.is_ok() && !watch.watched.iter().any(|it| it.ptr_eq(&this)) {
            watch.watched.push(this);
        }
        drop(watch);
        let mut state = started.is_err().then(|| self.lock())?;
        // Another thread may have started a worker meanwhile.
        state.worker.is_none().then(|| {
            state.end_watch();
            state.worker = worker;
            state
        })
    }

    /// Adds what the watch sleeps at for this communicator; false if it is not watched any more.
    fn add_watched(&self, descriptors: &mut Vec<RawFd>) -> bool {
        let mut state = self.lock();
        if !state.is_watched || state.closed.is_some() {
            return false;
        }
        let [incoming, outgoing] = state.descriptors();
        descriptors.push(self.bell.descriptor());
        descriptors.extend(&incoming);
        state.return_descriptors([incoming, outgoing]);
        true
    }

    /// Takes what has come, and starts the worker if there may be more to do.
    fn look_for_watch(self: &Arc<Self>) {
        let mut state = self.lock();
        if !state.is_watched || state.closed.is_some() {
            // The ring is the worker's.
            return;
        }
        self.bell.silence();
        let has_moved = state.turn(None);
        if !has_moved {
            state.check_alive();
        }
        self.wake_due_sleepers(&mut state);
        let is_used = state.lookers > 0 || !state.is_announced || state.is_busy();
        if has_moved || is_used || !state.orphans.is_empty() {
            // Without a thread for it the watch goes on.
            let _ = self.engage_worker(&mut state);
        }
    }
}

impl State {
    /// The worker takes the place of the watch.
    pub(super) fn end_watch(&mut self) {
        if take(&mut self.is_watched) {
            self.sleepers -= 1;
        }
    }
}
