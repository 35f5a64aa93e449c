//! Nonblocking operations: started now, carried out in their order by the worker thread or by a
//! thread that waits.
//! Law: an operation on borrowed buffers ends before the borrow does, whatever is forgotten or
//! panics, because the scope waits for its operations in a stack frame of its own.
#![allow(unsafe_code)]

pub(crate) mod job_queue;
pub(crate) mod pending;
pub(crate) mod worker;
mod worker_threads;

use std::fmt;
use std::marker::PhantomData;
use std::mem::transmute;
use std::sync::atomic::Ordering;

use smallbox::smallbox;

use super::Communicator;
use crate::error::Result;
use job_queue::Work;
use pending::{Pending, result_channel};

/// Starts operations. Each method returns at once with a [`Pending`]. The operations run one after
/// the other, in the order of these calls, on a worker thread or one that waits.
/// Messages, which wait for none of them, are started by a [`Messenger`](crate::Messenger).
///
/// Buffers are any type that lends a slice (`&mut [T]`, `&mut Vec<T>`, `Vec<T>`, `Box<[T]>`, ...)
/// and lives for `'env`; [`Pending::wait`] gives them back. [`Communicator::scope`] makes a queue
/// for borrowed buffers, [`Communicator::nonblocking`] one for owned buffers.
///
/// Starting an operation allocates nothing if as many operations were pending before and its
/// arguments, including the closure of [`Self::start`], take up to 200 bytes: a slice takes 16, a
/// `Vec` 24. Larger arguments, such as arrays by value, go in a box. A [`Pending`] that is
/// forgotten instead of dropped keeps its place. An operation must not wait for an operation that
/// was started after it.
pub struct Queue<'q, 'env: 'q> {
    pub(super) comm: &'q mut Communicator,
    /// Makes `'env` invariant: no caller may shorten or extend the lifetime of the buffers.
    life: PhantomData<&'env mut &'env ()>,
}

impl<'env> Queue<'_, 'env> {
    /// Starts any operation: `work` runs with the communicator and `buffers`, which
    /// [`Pending::wait`] gives back.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let twice = comm.nonblocking().start(vec![1.0_f32; 4], |comm, buf| {
    ///     comm.all_reduce(buf, ReduceOp::Sum)?;
    ///     comm.all_reduce(buf, ReduceOp::Max)
    /// });
    /// assert_eq!(twice.wait()?, [1.0; 4]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    pub fn start<B, F>(&mut self, buffers: B, work: F) -> Pending<B>
    where
        B: Send + 'env,
        F: FnOnce(&mut Communicator, &mut B) -> Result<()> + Send + 'env,
    {
        let (queue, start_error) = self.comm.job_queue();
        let (sender, pending) = result_channel(&queue);
        if let Some(error) = start_error {
            sender.send(Err(error));
            return pending;
        }
        let mut operation = Some((work, buffers, sender));
        let work: Work<'env> = smallbox!(move |comm: &mut Communicator| {
            if let Some((work, mut buffers, sender)) = operation.take() {
                let result = work(comm, &mut buffers);
                sender.send(result.map(|()| buffers));
            }
        });
        // SAFETY: the types differ in the lifetime alone, and the queue drops the closure before
        // 'env ends: either 'env is 'static, or a `Scope` waits until no job is left.
        let work = unsafe { transmute::<Work<'env>, Work<'static>>(work) };
        self.comm.enqueue(work);
        pending
    }
}

/// Waits on drop until no job is left. If the user's closure panicked, drop aborts the pending call
/// first.
struct Scope<'a> {
    comm: &'a mut Communicator,
    ended: bool,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.comm.abort.store(true, Ordering::Relaxed);
        }
        self.comm.reclaim_engine();
    }
}

impl Communicator {
    /// Runs `work`, which may start operations on borrowed buffers and do other things while they
    /// run. Returns when all operations are done, waited for or not. An operation starts a worker
    /// thread of the process if none is free; it ends once it had nothing to do for a second.
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
    /// Until an operation is done, its buffer can't be touched:
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
    /// After an operation that failed, later ones fail with
    /// [`Error::Broken`](crate::Error::Broken). If `work` panics, the operations are aborted and
    /// every further call on the communicator fails.
    pub fn scope<'env, R>(&mut self, work: impl for<'q> FnOnce(&mut Queue<'q, 'env>) -> R) -> R {
        let mut scope = Scope { comm: self, ended: false };
        let result = work(&mut Queue { comm: &mut *scope.comm, life: PhantomData });
        scope.ended = true;
        result
    }

    /// Starts operations on owned buffers. The operations outlive this call, and the handle to
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
    /// Borrowed buffers do not compile:
    ///
    /// ```compile_fail,E0597
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// let mut a = vec![1.0_f32; 1000];
    /// let sum = comm.nonblocking().all_reduce(&mut a, ReduceOp::Sum);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    pub fn nonblocking(&mut self) -> Queue<'_, 'static> {
        Queue { comm: self, life: PhantomData }
    }
}

impl fmt::Debug for Queue<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.comm).finish()
    }
}
