//! The worker thread (MPI's progress thread) runs nonblocking operations in their order. The thread
//! stays, and has the engine while operations are pending.
//! Law: no thread waits for a thread that could be waiting for it.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::api::options::Settings;
use crate::api::pending::ResultTable;
use crate::api::{Communicator, InlineBox};
use crate::error::Error;

/// The closure of a nonblocking operation.
pub(crate) type Work<'env> = InlineBox<dyn FnMut(&mut Communicator) + Send + 'env>;

/// A nonblocking operation, and the settings of its calls.
struct Job {
    settings: Settings,
    work: Work<'static>,
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

/// The queue of jobs, which a communicator and its worker share.
struct JobQueue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Jobs that have not been started, in their order.
    jobs: VecDeque<Job>,
    /// The worker's communicator, which has the engine. `None` while a job runs with it, and after
    /// the end.
    comm: Option<Communicator>,
    /// The running job is the last one, because it dropped its own worker.
    ended: bool,
}

impl JobQueue {
    /// Waits until `condition` holds, and returns the locked state.
    fn lock_when(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| !condition(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all jobs are done, and returns the locked state.
    fn lock_when_idle(&self) -> MutexGuard<'_, State> {
        self.lock_when(|state| state.jobs.is_empty() && state.comm.is_some())
    }

    fn update(&self, update: impl FnOnce(&mut State)) {
        update(&mut self.lock_when(|_| true));
        self.changed.notify_all();
    }

    /// Runs jobs in their order until the end.
    fn run_jobs(&self) {
        loop {
            let mut state = self.lock_when(|state| !state.jobs.is_empty() || state.comm.is_none());
            let (job, comm) = (state.jobs.pop_front(), state.comm.take());
            drop(state);
            let (Some(job), Some(mut comm)) = (job, comm) else { return };
            job.run(&mut comm);
            let mut state = self.lock_when(|_| true);
            if state.ended {
                let jobs = take(&mut state.jobs);
                drop(state);
                return drop((jobs, comm));
            }
            state.comm = Some(comm);
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// The worker thread, as its communicator sees it.
pub(crate) struct Worker {
    queue: Arc<JobQueue>,
    results: Arc<ResultTable>,
    abort: Arc<AtomicBool>,
    thread: ThreadId,
}

impl Worker {
    /// Starts a thread that runs jobs with `comm`, which has no engine yet.
    fn new(comm: Communicator) -> io::Result<Self> {
        let abort = Arc::clone(&comm.abort);
        let state = State { jobs: VecDeque::new(), comm: Some(comm), ended: false };
        let state = Mutex::new(state);
        let queue = Arc::new(JobQueue { state, changed: Condvar::new() });
        let jobs = Arc::clone(&queue);
        let builder = thread::Builder::new().name("ringreduce-worker".into());
        let thread = builder.spawn(move || jobs.run_jobs())?.thread().id();
        Ok(Self { queue, results: Arc::default(), abort, thread })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::current().id() == self.thread {
            // A job that owns this communicator drops it on the worker thread, which can't wait for
            // itself.
            return self.queue.update(|state| state.ended = true);
        }
        if thread::panicking() {
            self.abort.store(true, Ordering::Relaxed);
        }
        let comm = self.queue.lock_when_idle().comm.take();
        self.queue.changed.notify_all();
        drop(comm);
    }
}

/// The error of a call whose engine did not come back.
pub(crate) fn worker_ended(call: &'static str) -> Error {
    Error::Broken { call, first: "its worker thread ended".into() }
}

impl Communicator {
    /// Gives the engine to the worker, and starts the worker if there is none.
    fn lend_engine_to_worker(&mut self) -> io::Result<&Worker> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => {
                let flags = (Arc::clone(&self.abort), Arc::clone(&self.failure));
                let (rank_info, settings) = (Arc::clone(&self.rank_info), self.settings.clone());
                Worker::new(Self::from_parts(rank_info, None, settings, flags))?
            }
        };
        if self.engine.is_some() {
            worker.queue.update(|state| {
                if let Some(comm) = &mut state.comm {
                    comm.engine = self.engine.take();
                }
            });
        }
        Ok(self.worker.insert(worker))
    }

    /// The table in which operations store their results; with an error if the worker's thread
    /// can't be started, which is then the result of the operation.
    pub(crate) fn results(&mut self) -> (Arc<ResultTable>, Option<Error>) {
        match self.lend_engine_to_worker() {
            Ok(worker) => (Arc::clone(&worker.results), None),
            Err(error) => {
                let error = Error::no_thread("starting a thread for operations", error);
                (Arc::default(), Some(error))
            }
        }
    }

    /// Gives an operation to the worker, if there is one.
    pub(crate) fn enqueue(&mut self, work: Work<'static>) {
        let job = Job { settings: self.settings.clone(), work };
        if let Some(worker) = &self.worker {
            worker.queue.update(|state| state.jobs.push_back(job));
        }
    }

    /// Waits for pending operations and takes the engine back.
    #[cold]
    pub(crate) fn reclaim_engine(&mut self) {
        if self.engine.is_some() {
            return;
        }
        let Some(worker) = &self.worker else { return };
        if let Some(comm) = &mut worker.queue.lock_when_idle().comm {
            // A job may have started operations of its own, or put another communicator in this
            // one's place.
            comm.reclaim_engine();
            self.engine = comm.engine.take();
            self.rank_info = Arc::clone(&comm.rank_info);
            self.abort = Arc::clone(&comm.abort);
            self.failure = Arc::clone(&comm.failure);
        }
    }
}
