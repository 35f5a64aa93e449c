//! Operations that are started now and run in their order, beside the caller.
//! May touch: as `comm`. Law: what borrows is done before its borrow ends, whatever is forgotten or
//! panics: a scope waits for its operations in a frame of its own.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem::transmute;

use smallbox::smallbox;

use super::Communicator;
use super::pending::{Pending, pair};
use crate::engine::worker::Work;
use crate::error::Result;

/// Where operations are started: each method returns at once with a [`Pending`], and the
/// operations run one after the other in the order of these calls, on a thread of the communicator.
///
/// Buffers are whatever lends a slice (`&mut [T]`, `&mut Vec<T>`, `Vec<T>`, `Box<[T]>`, ...) and
/// lives for `'env`; [`Pending::wait`] gives them back. [`Communicator::scope`] makes one for
/// borrowed buffers, [`Communicator::nonblocking`] for owned ones.
///
/// Starting an operation allocates nothing if as many were pending before and its arguments,
/// [`Self::start`]'s closure among them, take up to 200 bytes: a slice takes 16, a `Vec` 24. Larger
/// ones, such as arrays by value, go in a box. A handle that is forgotten instead of dropped keeps
/// its place. An operation must not wait for one that was started after it.
pub struct Queue<'q, 'env: 'q> {
    pub(super) comm: &'q mut Communicator,
    /// Neither a longer life nor a shorter one.
    life: PhantomData<&'env mut &'env ()>,
}

impl<'env> Queue<'_, 'env> {
    /// Starts any operation: `work` runs with the communicator and `buffers`, which the result
    /// gives back.
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
        let (answers, unstarted) = self.comm.answers();
        let (answer, pending) = pair(&answers);
        if let Some(error) = unstarted {
            answer.give(Err(error));
            return pending;
        }
        let mut operation = Some((work, buffers, answer));
        let work: Work<'env> = smallbox!(move |comm: &mut Communicator| {
            if let Some((work, mut buffers, answer)) = operation.take() {
                let result = work(comm, &mut buffers);
                answer.give(result.map(|()| buffers));
            }
        });
        // SAFETY: the two differ in the lifetime alone, and the worker has dropped it before that
        // ends: either 'env is 'static, or a `Scope` waits until the worker has no jobs any more.
        let work = unsafe { transmute::<Work<'env>, Work<'static>>(work) };
        self.comm.enqueue(work);
        pending
    }
}

/// Waits for the worker, and first aborts what it does unless the caller's work came to its end.
struct Scope<'a> {
    comm: &'a mut Communicator,
    ended: bool,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.comm.abort_handle().abort();
        }
        self.comm.come_home();
    }
}

impl Communicator {
    /// Runs `work`, which may start operations on borrowed buffers and do other things while they
    /// run. Returns when all operations are done, waited for or not. The communicator's first
    /// operation starts a thread, which stays.
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
    /// An operation that fails makes the later ones fail with
    /// [`Error::Broken`](crate::Error::Broken). If `work` panics, the operations are aborted and
    /// the communicator is of no more use.
    pub fn scope<'env, R>(&mut self, work: impl for<'q> FnOnce(&mut Queue<'q, 'env>) -> R) -> R {
        let mut scope = Scope { comm: self, ended: false };
        let result = work(&mut Queue { comm: &mut *scope.comm, life: PhantomData });
        scope.ended = true;
        result
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
        Queue { comm: self, life: PhantomData }
    }
}

impl fmt::Debug for Queue<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.comm).finish()
    }
}
