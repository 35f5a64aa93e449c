//! The worker (MPI's progress thread) of a communicator runs its nonblocking operations while no
//! other thread waits for one. The queue has the engine while operations are pending, and a thread
//! of the process (`worker_threads`).
//! Law: no thread waits for a thread that could be waiting for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::job_queue::{Job, JobQueue, Work};
use crate::api::Communicator;
use crate::error::Error;

/// The worker, as its communicator sees it.
pub(crate) struct Worker {
    queue: Arc<JobQueue>,
    abort: Arc<AtomicBool>,
}

impl Worker {
    /// A worker that runs jobs with `comm`, which has no engine yet.
    fn new(comm: Communicator) -> Self {
        let abort = Arc::clone(&comm.abort);
        Self { queue: Arc::new(JobQueue::new(comm)), abort }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort.store(true, Ordering::Relaxed);
        }
        self.queue.close();
    }
}

/// The error of a call whose engine did not come back.
pub(in crate::api) fn worker_ended(call: &'static str) -> Error {
    Error::Broken { call, first: "its worker thread ended".into() }
}

impl Communicator {
    /// Gives the engine to the queue of the worker, which has a thread from now on.
    fn lend_engine_to_worker(&mut self) -> io::Result<&Worker> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::new(self.for_worker()),
        };
        // Without a thread the queue keeps the engine for the next blocking call.
        let worker = self.worker.insert(worker);
        JobQueue::expect_job(&worker.queue)?;
        if self.engine.is_some()
            && let Some(comm) = &mut worker.queue.lock().comm
        {
            comm.engine = self.engine.take();
        }
        Ok(worker)
    }

    /// The queue in which operations wait and leave their results; with an error if the worker's
    /// thread can't be started, which is then the result of the operation.
    pub(crate) fn job_queue(&mut self) -> (Arc<JobQueue>, Option<Error>) {
        match self.lend_engine_to_worker() {
            Ok(worker) => (Arc::clone(&worker.queue), None),
            Err(error) => {
                let error = Error::no_thread("starting a thread for operations", error);
                (Arc::default(), Some(error))
            }
        }
    }

    /// Gives an operation to the worker, if there is one.
    pub(crate) fn enqueue(&mut self, work: Work<'static>) {
        if let Some(worker) = &self.worker {
            worker.queue.push(Job { settings: self.settings.clone(), work });
        }
    }

    /// Waits for pending operations and takes the engine back.
    #[cold]
    pub(crate) fn reclaim_engine(&mut self) {
        // A forked child has no thread that would finish the operations.
        if self.engine.is_some() || !self.rank_info.process.is_current() {
            return;
        }
        let Some(worker) = &self.worker else { return };
        if let Some(mut comm) = worker.queue.take_when_idle() {
            // A job may have started operations of its own, or put another communicator in this
            // one's place.
            comm.reclaim_engine();
            self.engine = comm.engine.take();
            self.rank_info = Arc::clone(&comm.rank_info);
            self.origin = Arc::clone(&comm.origin);
            self.abort = Arc::clone(&comm.abort);
            self.failure = Arc::clone(&comm.failure);
            worker.queue.give_back(comm);
        }
    }
}
