//! The thread that runs what was started: one for the time of a scope, which borrows the
//! communicator, or one that stays and is given the engine while owned buffers are pending.
//! May touch: as `comm`. Law: a worker ends with its jobs; nobody waits for a thread that could
//! wait for him.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{AbortHandle, Communicator, Queue};
use crate::error::Error;

/// One operation that was started.
pub(super) type Job<'env> = Box<dyn FnOnce(&mut Communicator) + Send + 'env>;

/// Runs jobs in their order until there is nobody left to send one.
fn serve(comm: &mut Communicator, jobs: Receiver<Job<'_>>) {
    for job in jobs {
        // Where in a call it stopped is not known: the ranks are no longer in step.
        if catch_unwind(AssertUnwindSafe(|| job(comm))).is_err() {
            comm.come_home();
            if let Some(engine) = &mut comm.engine {
                engine.give_up("an operation panicked".into());
            }
        }
    }
}

/// The thread that stays. It has the communicator's engine while `jobs` is there.
pub(super) struct Worker {
    away: Sender<(Communicator, Receiver<Job<'static>>)>,
    back: Receiver<Communicator>,
    jobs: Option<Sender<Job<'static>>>,
    abort: AbortHandle,
}

impl Worker {
    fn new(abort: AbortHandle) -> io::Result<Self> {
        let (away, came) = channel::<(Communicator, Receiver<Job<'static>>)>();
        let (done, back) = channel();
        thread::Builder::new().name("ringreduce-worker".into()).spawn(move || {
            for (mut comm, jobs) in came {
                serve(&mut comm, jobs);
                if done.send(comm).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { away, back, jobs: None, abort })
    }

    /// What it was given, once all jobs are done.
    fn recall(&mut self) -> Option<Communicator> {
        self.jobs.take()?;
        self.back.recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort.abort();
        }
        drop(self.recall());
    }
}

/// Raises the abort flag unless the caller's work came to its end.
struct Unfinished(Option<AbortHandle>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(abort) = &self.0 {
            abort.abort();
        }
    }
}

/// The error of a call whose engine did not come back.
pub(super) fn lost(call: &'static str) -> Error {
    Error::Broken { call, first: "its worker thread ended".into() }
}

impl Communicator {
    /// Runs `work`, which may start operations on borrowed buffers and do other things while they
    /// run. Returns when all operations are done, waited for or not. With its first operation a
    /// scope starts a thread, which costs tens of microseconds.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let (mut a, mut b) = (vec![1.0_f32; 1000], vec![2.0_f32; 1000]);
    /// comm.scope(|s| {
    ///     let first = s.all_reduce(&mut a, ReduceOp::Sum);
    ///     let second = s.all_reduce(&mut b, ReduceOp::Sum);
    ///     // ... compute something else ...
    ///     let a = first.wait()?; // a is ours again, b not yet
    ///     a[0] = 0.0;
    ///     second.wait()?;
    ///     Ok::<_, ringreduce::Error>(())
    /// })?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// Until an operation is done nobody else can touch its buffer:
    ///
    /// ```compile_fail,E0499
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// # let mut a = vec![1.0_f32; 1000];
    /// comm.scope(|s| {
    ///     let first = s.all_reduce(&mut a[..], ReduceOp::Sum);
    ///     a[0] = 0.0;
    ///     first.wait()?;
    ///     Ok::<_, ringreduce::Error>(())
    /// })?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// An operation that fails makes the later ones fail with [`Error::Broken`]. If `work` panics,
    /// the operations are aborted and the communicator is of no more use.
    pub fn scope<'env, R>(&mut self, work: impl for<'q> FnOnce(&mut Queue<'q, 'env>) -> R) -> R {
        let (abort, settings) = (self.abort_handle(), self.settings.clone());
        thread::scope(|threads| {
            let mut jobs = None;
            let mut queue = Queue::new(settings, || {
                let (sender, receiver) = channel();
                let thread = thread::Builder::new().name("ringreduce-scope".into());
                thread.spawn_scoped(threads, || serve(self, receiver))?;
                Ok(&*jobs.insert(sender))
            });
            // Inside, so that the flag is raised before the thread is waited for.
            let mut unfinished = Unfinished(Some(abort));
            let result = work(&mut queue);
            unfinished.0 = None;
            result
        })
    }

    /// Where operations on owned buffers are started. They outlive this call, and the handle to
    /// their result outlives the communicator; the next blocking call waits for them first.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let sum = comm.nonblocking().all_reduce(vec![1.0_f32; 1000], ReduceOp::Sum);
    /// // ... compute something else ...
    /// let sum = sum.wait()?; // or sum.await
    /// # assert_eq!(sum, [1.0; 1000]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// Borrowed buffers won't do:
    ///
    /// ```compile_fail,E0597
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// let mut a = vec![1.0_f32; 1000];
    /// let sum = comm.nonblocking().all_reduce(&mut a, ReduceOp::Sum);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    pub fn nonblocking(&mut self) -> Queue<'_, 'static> {
        Queue::new(self.settings.clone(), || self.go_away())
    }

    /// Gives the engine to the worker that stays; where its jobs go.
    fn go_away(&mut self) -> io::Result<&Sender<Job<'static>>> {
        let abort = self.abort_handle();
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => none.insert(Worker::new(abort)?),
        };
        let jobs = match worker.jobs.take() {
            Some(jobs) => jobs,
            None => {
                let (seat, abort) = (Arc::clone(&self.seat), Arc::clone(&self.abort));
                let settings = self.settings.clone();
                let engine = self.engine.take();
                let comm = Self { seat, engine, worker: None, settings, abort };
                let (sender, receiver) = channel();
                let sent = worker.away.send((comm, receiver));
                sent.map_err(|_| io::Error::other("it ended"))?;
                sender
            }
        };
        Ok(worker.jobs.insert(jobs))
    }

    /// Waits for what is pending and takes the engine back.
    #[cold]
    pub(super) fn come_home(&mut self) {
        if let Some(mut back) = self.worker.as_mut().and_then(Worker::recall) {
            // It may have started operations of its own, or be another one by now.
            back.come_home();
            self.engine = back.engine.take();
            self.seat = Arc::clone(&back.seat);
            self.abort = Arc::clone(&back.abort);
        }
    }
}
