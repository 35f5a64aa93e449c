//! The worker threads of this process. Each serves the queue of one communicator at a time: it runs
//! the jobs of which no other thread waits for one. A queue without a thread gets one that has
//! nothing to do for another queue, or else a new one, so that a process that keeps many
//! communicators has as many threads as run jobs at once.
//! Law: a queue with jobs has a thread for itself. One thread for two might run theirs in another
//! order than another rank's, and wait for ever.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use super::job_queue::{JobQueue, State};
use crate::sync::PerProcess;

/// A thread that had no job for so long ends. To start another one takes some 50 us.
const IDLE: Duration = Duration::from_secs(1);

/// The thread that serves a queue, as the queue knows it.
pub(crate) struct WorkerThread {
    pub(super) thread: Thread,
    pub(super) activity: Activity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// The thread runs jobs, or looks for one.
    Runs,
    /// The thread leaves the jobs to one that has waited, until the pause ends or
    /// [`JobQueue::hurry`].
    Pauses,
    /// The thread sleeps until it is told of a job.
    Sleeps,
}

/// The threads, and the queue that each one serves.
type Table = Vec<(Thread, Arc<JobQueue>)>;

static THREADS: PerProcess<Mutex<Table>> = PerProcess::new();

fn threads() -> MutexGuard<'static, Table> {
    THREADS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a thread serve `queue`, which has none: one that has nothing to do for another queue, or
/// else a new one. A thread that holds the lock of a queue never waits for that of the table.
pub(super) fn assign(queue: &Arc<JobQueue>) -> io::Result<()> {
    let mut threads = threads();
    // A thread that pauses may soon be wanted by its own queue, and one that runs is busy yet.
    let free =
        [Activity::Sleeps, Activity::Pauses, Activity::Runs].into_iter().find_map(|activity| {
            threads.iter_mut().find_map(|(thread, served)| {
                let worker = served.release_worker(thread.id(), activity)?;
                *served = Arc::clone(queue);
                Some(worker)
            })
        });
    let worker = match free {
        Some(worker) => worker,
        None => {
            let own = Arc::clone(queue);
            let builder = thread::Builder::new().name("ringreduce-worker".into());
            let thread = builder.spawn(move || run(own))?.thread().clone();
            threads.push((thread.clone(), Arc::clone(queue)));
            WorkerThread { thread, activity: Activity::Runs }
        }
    };
    queue.employ(worker);
    Ok(())
}

/// The thread: serves one queue after the other, until it has had no job for long.
fn run(mut queue: Arc<JobQueue>) {
    let me = thread::current().id();
    while let Served::Reassigned = queue.serve(me) {
        // The lock is free once the other queue has this thread.
        let threads = threads();
        let Some((_, other)) = threads.iter().find(|(thread, _)| thread.id() == me) else { return };
        queue = Arc::clone(other);
    }
    threads().retain(|(thread, _)| thread.id() != me);
}

enum Served {
    /// Another queue has got the thread.
    Reassigned,
    /// The queue was closed, or had no job for long.
    Ended,
}

impl JobQueue {
    /// Has `worker` serve this queue, until the next [`Self::push`] at least. A pause was another
    /// queue's, and ends at a job here.
    fn employ(&self, mut worker: WorkerThread) {
        let mut state = self.lock();
        if worker.activity == Activity::Pauses {
            worker.activity = Activity::Sleeps;
        }
        state.worker = Some(worker);
        state.expects_job = true;
    }

    /// Gives the worker of this queue away if it is that thread, does that, and has no job.
    fn release_worker(&self, thread: ThreadId, activity: Activity) -> Option<WorkerThread> {
        let mut state = self.lock();
        if state.has_work() || state.closed || state.runner == Some(thread) {
            return None;
        }
        state.worker.take_if(|it| it.thread.id() == thread && it.activity == activity)
    }

    /// Runs jobs on the thread `me` while no other thread waits.
    fn serve(&self, me: ThreadId) -> Served {
        let (mut state, mut idle_since) = (self.lock(), None);
        loop {
            let Some(worker) = state.worker.as_mut().filter(|it| it.thread.id() == me) else {
                return Served::Reassigned;
            };
            if worker.activity != Activity::Sleeps {
                idle_since = None;
            }
            worker.activity = Activity::Runs;
            let idle = idle_since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
            if state.closed || !state.has_work() && idle >= IDLE {
                state.worker = None;
                return Served::Ended;
            }
            if state.waits != state.paused_for {
                state.paused_for = state.waits;
                let waits = state.waits;
                let length = state.pause.next(waits);
                state = self.park(state, Activity::Pauses, length);
            } else if state.waiting == 0
                && let Some(job) = state.take_job()
            {
                drop(state);
                self.run(job);
                state = self.lock();
            } else {
                idle_since.get_or_insert_with(Instant::now);
                state = self.park(state, Activity::Sleeps, IDLE);
            }
        }
    }

    fn park<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        activity: Activity,
        longest: Duration,
    ) -> MutexGuard<'a, State> {
        if let Some(worker) = &mut state.worker {
            worker.activity = activity;
        }
        drop(state);
        thread::park_timeout(longest);
        self.lock()
    }
}
