//! The thread that runs what was started. It stays, and is given the engine while operations are
//! pending.
//! May touch: as `comm`. Law: nobody waits for a thread that could wait for him.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::api::options::Settings;
use crate::api::pending::Answers;
use crate::api::{AbortHandle, Communicator, InPlace};
use crate::error::Error;

/// What an operation does.
pub(crate) type Work<'env> = InPlace<dyn FnMut(&mut Communicator) + Send + 'env>;

/// One operation that was started, and what its calls go by.
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
            // Where in a call it stopped is not known: the ranks are no longer in step.
            comm.come_home();
            if let Some(engine) = &mut comm.engine {
                engine.give_up("an operation panicked".into());
            }
            // To drop it might panic again.
            std::mem::forget(panic);
        }
    }
}

/// What a communicator and its worker share.
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Jobs to do, in their order.
    jobs: VecDeque<Job>,
    /// What they are run with. It is away while one runs, and from the end on.
    comm: Option<Communicator>,
    /// The last job is the one that runs: it dropped its own worker.
    ended: bool,
}

impl Desk {
    /// The state, once it is so.
    fn once(&self, so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| !so(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The state once all jobs are done.
    fn idle(&self) -> MutexGuard<'_, State> {
        self.once(|state| state.jobs.is_empty() && state.comm.is_some())
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.once(|_| true));
        self.changed.notify_all();
    }

    /// Runs jobs in their order until the end.
    fn serve(&self) {
        loop {
            let mut state = self.once(|state| !state.jobs.is_empty() || state.comm.is_none());
            let (job, comm) = (state.jobs.pop_front(), state.comm.take());
            drop(state);
            let (Some(job), Some(mut comm)) = (job, comm) else { return };
            job.run(&mut comm);
            let mut state = self.once(|_| true);
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

/// The thread.
pub(crate) struct Worker {
    desk: Arc<Desk>,
    answers: Arc<Answers>,
    abort: AbortHandle,
    thread: ThreadId,
}

impl Worker {
    /// One that runs jobs with `comm`, once that has an engine.
    fn new(comm: Communicator) -> io::Result<Self> {
        let abort = comm.abort_handle();
        let state = State { jobs: VecDeque::new(), comm: Some(comm), ended: false };
        let state = Mutex::new(state);
        let desk = Arc::new(Desk { state, changed: Condvar::new() });
        let its = Arc::clone(&desk);
        let builder = thread::Builder::new().name("ringreduce-worker".into());
        let thread = builder.spawn(move || its.serve())?.thread().id();
        Ok(Self { desk, answers: Arc::default(), abort, thread })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::current().id() == self.thread {
            // An operation has its own communicator and drops it: it can't wait for itself.
            return self.desk.change(|state| state.ended = true);
        }
        if thread::panicking() {
            self.abort.abort();
        }
        let comm = self.desk.idle().comm.take();
        self.desk.changed.notify_all();
        drop(comm);
    }
}

/// The error of a call whose engine did not come back.
pub(crate) fn lost(call: &'static str) -> Error {
    Error::Broken { call, first: "its worker thread ended".into() }
}

impl Communicator {
    /// Gives the engine to the worker.
    fn go_away(&mut self) -> io::Result<&Worker> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => {
                let (seat, abort) = (Arc::clone(&self.seat), Arc::clone(&self.abort));
                let settings = self.settings.clone();
                Worker::new(Self::of(seat, None, settings, abort))?
            }
        };
        if self.engine.is_some() {
            worker.desk.change(|state| {
                if let Some(comm) = &mut state.comm {
                    comm.engine = self.engine.take();
                }
            });
        }
        Ok(self.worker.insert(worker))
    }

    /// Where operations that are started put their results; with an error if the worker's thread
    /// can't be started, which is then their result.
    pub(crate) fn answers(&mut self) -> (Arc<Answers>, Option<Error>) {
        match self.go_away() {
            Ok(worker) => (Arc::clone(&worker.answers), None),
            Err(error) => {
                let error = Error::no_thread("starting a thread for operations", error);
                (Arc::default(), Some(error))
            }
        }
    }

    /// Hands an operation to the worker, if there is one.
    pub(crate) fn enqueue(&mut self, work: Work<'static>) {
        let job = Job { settings: self.settings.clone(), work };
        if let Some(worker) = &self.worker {
            worker.desk.change(|state| state.jobs.push_back(job));
        }
    }

    /// Waits for what is pending and takes the engine back.
    #[cold]
    pub(crate) fn come_home(&mut self) {
        if self.engine.is_some() {
            return;
        }
        let Some(worker) = &self.worker else { return };
        if let Some(comm) = &mut worker.desk.idle().comm {
            // It may have started operations of its own, or be another one by now.
            comm.come_home();
            self.engine = comm.engine.take();
            self.seat = Arc::clone(&comm.seat);
            self.abort = Arc::clone(&comm.abort);
        }
    }
}
