//! The queue of a communicator's nonblocking operations. They run in their order, one at a time: on
//! the thread that waits for one of them, or else on the worker thread.
//! Law: no code of the user's runs under the lock.

use std::collections::VecDeque;
use std::io;
use std::mem::{replace, take};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::pending::ResultTable;
use crate::api::{Communicator, InlineBox};
use crate::engine::settings::Settings;
use crate::error::Error;
use crate::sync::{Process, WorkerPause};

/// A worker thread that had no job for so long ends. To start another one takes some 50 us.
const IDLE: Duration = Duration::from_secs(1);

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
    /// The worker has something to do.
    work: Condvar,
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
    runner: Option<ThreadId>,
    /// No job is run any more.
    closed: bool,
    /// Threads other than the worker that wait, and run jobs meanwhile.
    waiting: usize,
    /// The threads among these that sleep.
    sleeping: usize,
    /// How often a thread has waited, and how many of these waits the worker has made a pause for.
    waits: u64,
    paused_for: u64,
    /// There is a worker thread: always while there are jobs that have not been started.
    has_worker: bool,
    /// The worker does not end, because a job is about to come.
    expects_job: bool,
    /// The worker sleeps until it is told of work.
    worker_sleeps: bool,
}

impl State {
    /// Takes the communicator, if no other thread has it.
    fn take_comm(&mut self) -> Option<Box<Communicator>> {
        let comm = self.comm.take()?;
        self.runner = Some(thread::current().id());
        Some(comm)
    }

    /// Takes the next job and the communicator to run it with.
    fn take_job(&mut self) -> Option<(Job, Box<Communicator>)> {
        if self.jobs.is_empty() {
            return None;
        }
        let comm = self.take_comm()?;
        Some((self.jobs.pop_front()?, comm))
    }

    /// True if the worker is to be told of work. The next thread that asks need not.
    fn must_wake_worker(&mut self) -> bool {
        let wakes = self.worker_sleeps && self.waiting == 0 && !self.jobs.is_empty();
        self.worker_sleeps &= !wakes;
        wakes
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

    /// Starts the worker thread if there is none. It stays until the next [`Self::push`].
    pub(super) fn expect_job(this: &Arc<Self>) -> io::Result<()> {
        let mut state = this.lock();
        if !state.has_worker {
            let queue = Arc::clone(this);
            let builder = thread::Builder::new().name("ringreduce-worker".into());
            builder.spawn(move || queue.run_worker())?;
            state.has_worker = true;
        }
        state.expects_job = true;
        Ok(())
    }

    pub(super) fn push(&self, job: Job) {
        let mut state = self.lock();
        state.expects_job = false;
        state.jobs.push_back(job);
        let wakes = state.must_wake_worker();
        drop(state);
        if wakes {
            self.work.notify_one();
        }
    }

    /// Has the worker run the jobs at once, because the thread that started them does not wait for
    /// them yet.
    pub(crate) fn hurry(&self) {
        let mut state = self.lock();
        state.paused_for = state.waits;
        drop(state);
        self.work.notify_one();
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
        let wakes = state.must_wake_worker();
        drop(state);
        if wakes {
            self.work.notify_one();
        }
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
        self.lock().closed = true;
        self.work.notify_one();
        drop(comm);
    }

    fn run(&self, (job, mut comm): (Job, Box<Communicator>)) {
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

    /// The worker's thread: runs jobs while no other thread waits, until the end, or until it has
    /// had none for long.
    pub(super) fn run_worker(&self) {
        let (mut state, mut pause) = (self.lock(), WorkerPause::default());
        while !state.closed {
            if state.waits != state.paused_for {
                state.paused_for = state.waits;
                let pause = pause.next(state.waits);
                let woken = self.work.wait_timeout(state, pause);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else if state.waiting == 0
                && let Some(job) = state.take_job()
            {
                drop(state);
                self.run(job);
                state = self.lock();
            } else {
                state.worker_sleeps = true;
                let woken = self.work.wait_timeout(state, IDLE);
                let (after, time) = woken.unwrap_or_else(PoisonError::into_inner);
                state = after;
                let was_told = !replace(&mut state.worker_sleeps, false);
                let has_job = was_told || state.expects_job || !state.jobs.is_empty();
                if time.timed_out() && !has_job {
                    break;
                }
            }
        }
        state.has_worker = false;
    }
}
