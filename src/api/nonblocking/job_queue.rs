//! The queue of a communicator's nonblocking operations. They run in their order, one at a time: on
//! the thread that waits for one of them, or else on the queue's worker thread.
//! Law: no code of the user's runs under the lock.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::pending::ResultTable;
use super::worker_threads::{self, Activity, WorkerThread};
use crate::api::{Communicator, InlineBox};
use crate::engine::settings::Settings;
use crate::error::Error;
use crate::sync::{Process, WorkerPause};

/// The closure of a nonblocking operation.
pub(crate) type Work<'env> = InlineBox<dyn FnMut(&mut Communicator) + Send + 'env>;

/// A nonblocking operation, and the settings of its calls.
pub(super) struct Job {
    pub(super) settings: Settings,
    pub(super) work: Work<'static>,
}

impl Job {
    fn run(self, comm: &mut Communicator) {
        let Self { settings, mut work } = self;
        comm.settings = settings;
        let run = AssertUnwindSafe(|| {
            work(comm);
            drop(work);
        });
        if let Err(panic) = catch_unwind(run) {
            // The panic may have left a call half made, so the ranks are no longer in step.
            comm.reclaim_engine();
            if let Some(engine) = &mut comm.engine {
                let first = "an operation panicked".into();
                engine.give_up(Error::Broken { call: "start", first });
            }
            // Dropping the panic's payload might panic again.
            std::mem::forget(panic);
        }
    }
}

/// The queue, which a communicator, its worker and the handles of its operations share.
#[derive(Default)]
pub(crate) struct JobQueue {
    state: Mutex<State>,
    /// A result was stored or a job has ended.
    changed: Condvar,
    /// The process of this rank.
    pub(crate) process: Process,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) results: ResultTable,
    /// Jobs that have not been started, in their order.
    pub(super) jobs: VecDeque<Job>,
    /// The communicator of the jobs, which has the engine while operations are pending. `None`
    /// while a thread runs a job or has taken the communicator, and after the end.
    pub(super) comm: Option<Box<Communicator>>,
    /// The thread that has taken the communicator.
    pub(super) runner: Option<ThreadId>,
    /// No job is run any more.
    pub(super) closed: bool,
    /// Threads other than the worker that wait, and run jobs meanwhile.
    pub(super) waiting: usize,
    /// The threads among these that sleep.
    sleeping: usize,
    /// How often a thread has waited, and how many of these waits the worker has made a pause for.
    pub(super) waits: u64,
    pub(super) paused_for: u64,
    pub(super) pause: WorkerPause,
    /// The thread that serves this queue: always one while there are jobs that have not been
    /// started.
    pub(super) worker: Option<WorkerThread>,
    /// The worker stays, because a job is about to come.
    pub(super) expects_job: bool,
}

impl State {
    /// Takes the communicator, if no other thread has it.
    fn take_comm(&mut self) -> Option<Box<Communicator>> {
        let comm = self.comm.take()?;
        self.runner = Some(thread::current().id());
        Some(comm)
    }

    /// Takes the next job and the communicator to run it with.
    pub(super) fn take_job(&mut self) -> Option<(Job, Box<Communicator>)> {
        if self.jobs.is_empty() {
            return None;
        }
        let comm = self.take_comm()?;
        Some((self.jobs.pop_front()?, comm))
    }

    /// True if a job is there or about to come.
    pub(super) fn has_work(&self) -> bool {
        self.expects_job || !self.jobs.is_empty()
    }

    /// Tells a worker that sleeps of jobs that no other thread waits for, once the lock is free.
    fn unlock_with_jobs(mut state: MutexGuard<'_, Self>) {
        let is_wanted = state.waiting == 0 && !state.jobs.is_empty();
        let worker = state.worker.as_mut();
        let sleeper = worker.filter(|it| is_wanted && it.activity == Activity::Sleeps);
        let told = sleeper.map(|worker| {
            worker.activity = Activity::Runs;
            worker.thread.clone()
        });
        drop(state);
        if let Some(thread) = told {
            thread.unpark();
        }
    }
}

impl JobQueue {
    /// A queue whose jobs run with `comm`, which has no engine yet.
    pub(super) fn new(comm: Communicator) -> Self {
        let state = State { comm: Some(Box::new(comm)), ..State::default() };
        Self { state: Mutex::new(state), ..Self::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait for a result.
    pub(crate) fn unlock_with_change(&self, state: MutexGuard<'_, State>) {
        let sleeping = state.sleeping > 0;
        drop(state);
        if sleeping {
            self.changed.notify_all();
        }
    }

    /// Has a worker thread serve this queue, until the next [`Self::push`] at least.
    pub(super) fn expect_job(this: &Arc<Self>) -> io::Result<()> {
        let mut state = this.lock();
        if state.worker.is_none() {
            drop(state);
            return worker_threads::assign(this);
        }
        state.expects_job = true;
        Ok(())
    }

    pub(super) fn push(&self, job: Job) {
        let mut state = self.lock();
        state.expects_job = false;
        state.jobs.push_back(job);
        State::unlock_with_jobs(state);
    }

    /// Has the worker run the jobs at once, because the thread that started them does not wait for
    /// them yet.
    pub(crate) fn hurry(&self) {
        let mut state = self.lock();
        state.paused_for = state.waits;
        Self::unlock_and_wake_worker(state);
    }

    /// Ends the worker's sleep or pause.
    fn unlock_and_wake_worker(state: MutexGuard<'_, State>) {
        let worker = state.worker.as_ref().filter(|worker| worker.activity != Activity::Runs);
        let thread = worker.map(|worker| worker.thread.clone());
        drop(state);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    /// Runs jobs in their order until `find` finds something.
    pub(crate) fn wait_for<R>(&self, mut find: impl FnMut(&mut State) -> Option<R>) -> R {
        let mut state = self.lock();
        if let Some(found) = find(&mut state) {
            return found;
        }
        state.waiting += 1;
        let found = loop {
            state = match state.take_job() {
                Some(job) => {
                    drop(state);
                    self.run(job);
                    self.lock()
                }
                None => {
                    state.sleeping += 1;
                    let woken = self.changed.wait(state);
                    let mut state = woken.unwrap_or_else(PoisonError::into_inner);
                    state.sleeping -= 1;
                    state
                }
            };
            if let Some(found) = find(&mut state) {
                break found;
            }
        };
        state.waiting -= 1;
        state.waits += 1;
        State::unlock_with_jobs(state);
        found
    }

    /// Waits until all jobs are done and takes the communicator, which goes to [`Self::give_back`]
    /// or [`Self::close`].
    pub(super) fn take_when_idle(&self) -> Option<Box<Communicator>> {
        self.wait_for(|state| match state.comm {
            _ if state.closed => Some(None),
            Some(_) if state.jobs.is_empty() => Some(state.take_comm()),
            _ => None,
        })
    }

    /// Ends the queue at the end of its communicator. A job that owns the communicator drops it
    /// while the job runs, and is the last one.
    pub(super) fn close(&self) {
        let is_in_job = self.lock().runner == Some(thread::current().id());
        let comm = if is_in_job { None } else { self.take_when_idle() };
        let mut state = self.lock();
        state.closed = true;
        Self::unlock_and_wake_worker(state);
        drop(comm);
    }

    pub(super) fn run(&self, (job, mut comm): (Job, Box<Communicator>)) {
        job.run(&mut comm);
        self.give_back(comm);
    }

    pub(super) fn give_back(&self, comm: Box<Communicator>) {
        let mut state = self.lock();
        state.runner = None;
        if state.closed {
            let jobs = take(&mut state.jobs);
            drop(state);
            return drop((jobs, comm));
        }
        state.comm = Some(comm);
        self.unlock_with_change(state);
    }
}
