//! Operations that are started now and run in their order, beside the caller.
//! May touch: as `comm`. Law: a verb here is the communicator's own, run by its worker; there is
//! one line for each and no second implementation.

use std::fmt;
use std::io;
use std::sync::mpsc::Sender;

use super::Communicator;
use super::options::Settings;
use super::pending::{Pending, pair};
use super::worker::Job;
use crate::element::{Element, ReduceOp};
use crate::error::{Error, Result};

/// Where operations are started: each method returns at once with a [`Pending`], and the
/// operations run one after the other in the order of these calls, on a thread of the communicator.
///
/// Buffers are whatever lends a slice (`&mut [T]`, `&mut Vec<T>`, `Vec<T>`, `Box<[T]>`, ...) and
/// lives for `'env`; [`Pending::wait`] gives them back. [`Communicator::scope`] makes one for
/// borrowed buffers, [`Communicator::nonblocking`] for owned ones.
pub struct Queue<'q, 'env: 'q> {
    state: State<'q, 'env>,
    /// What the operations started here go by.
    settings: Settings,
}

/// Brings the engine to a worker.
type Open<'q, 'env> = Box<dyn FnOnce() -> io::Result<&'q Sender<Job<'env>>> + 'q>;

enum State<'q, 'env: 'q> {
    /// No operation was started yet.
    Idle(Open<'q, 'env>),
    Open(&'q Sender<Job<'env>>),
    /// There is no worker, and this is why.
    Failed(io::ErrorKind),
}

impl<'q, 'env: 'q> Queue<'q, 'env> {
    /// One whose worker is found by `open` when the first operation is started.
    pub(super) fn new(
        settings: Settings,
        open: impl FnOnce() -> io::Result<&'q Sender<Job<'env>>> + 'q,
    ) -> Self {
        Self { state: State::Idle(Box::new(open)), settings }
    }

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
        let (answer, pending) = pair();
        match self.jobs() {
            Err(error) => answer.give(Err(error)),
            Ok(jobs) => {
                let (mut buffers, settings) = (buffers, self.settings.clone());
                // Sent in vain, the job is dropped, and its answer says so.
                let _ = jobs.send(Box::new(move |comm| {
                    let before = std::mem::replace(&mut comm.settings, settings);
                    let result = work(comm, &mut buffers);
                    comm.settings = before;
                    answer.give(result.map(|()| buffers));
                }));
            }
        }
        pending
    }

    fn jobs(&mut self) -> Result<&'q Sender<Job<'env>>> {
        let failed = State::Failed(io::ErrorKind::Other);
        let opened = match std::mem::replace(&mut self.state, failed) {
            State::Idle(open) => open(),
            State::Open(jobs) => Ok(jobs),
            State::Failed(kind) => Err(kind.into()),
        };
        self.state = match &opened {
            Ok(jobs) => State::Open(jobs),
            Err(error) => State::Failed(error.kind()),
        };
        opened.map_err(|error| Error::io("starting a thread for operations", error))
    }

    /// Starts a [`Communicator::barrier`].
    pub fn barrier(&mut self) -> Pending<()> {
        self.start((), |comm, ()| comm.barrier())
    }
}

/// One line for each verb: whether it works in place or from one buffer to another, its name, and
/// its arguments beside the buffers.
macro_rules! verbs {
    ($($form:ident $name:ident($($arg:ident: $type:ty),*);)*) => {
        impl<'env> Queue<'_, 'env> {
            $(verbs!(@ $form $name($($arg: $type),*));)*
        }
    };
    (@ in_place $name:ident($($arg:ident: $type:ty),*)) => {
        #[doc = concat!("Starts a [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T, B>(&mut self, buf: B, $($arg: $type),*) -> Pending<B>
        where
            T: Element,
            B: AsMut<[T]> + Send + 'env,
        {
            self.start(buf, move |comm, buf| comm.$name(buf.as_mut(), $($arg),*))
        }
    };
    (@ apart $name:ident($($arg:ident: $type:ty),*)) => {
        #[doc = concat!("Starts a [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T, S, R>(&mut self, send: S, recv: R, $($arg: $type),*) -> Pending<(S, R)>
        where
            T: Element,
            S: AsRef<[T]> + Send + 'env,
            R: AsMut<[T]> + Send + 'env,
        {
            self.start((send, recv), move |comm, (send, recv)| {
                comm.$name(send.as_ref(), recv.as_mut(), $($arg),*)
            })
        }
    };
}

verbs! {
    in_place all_reduce(op: ReduceOp);
    apart all_reduce_into(op: ReduceOp);
    apart reduce_scatter(op: ReduceOp);
    in_place reduce_scatter_in_place(op: ReduceOp);
    apart all_gather();
    in_place all_gather_in_place();
    in_place broadcast(root: usize);
}

impl fmt::Debug for Queue<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Idle(_) => "idle",
            State::Open(_) => "open",
            State::Failed(_) => "failed",
        };
        f.debug_tuple("Queue").field(&state).finish()
    }
}
