//! Operations that are started now and run in their order, beside the caller.
//! May touch: as `comm`. Law: a verb here is the communicator's own, run by its worker: a line for
//! each, and no second implementation.

use std::fmt;
use std::io;
use std::sync::mpsc::Sender;

use super::Communicator;
use super::options::Settings;
use super::pending::{Pending, pair};
use super::worker::Job;
use crate::element::{Element, Reduction};
use crate::error::{Error, Result};

/// Where operations are started: each method returns at once with a [`Pending`], and the
/// operations run one after the other in the order of these calls, on a thread of the communicator.
///
/// Buffers are whatever lends a slice (`&mut [T]`, `&mut Vec<T>`, `Vec<T>`, `Box<[T]>`, ...) and
/// lives for `'env`; [`Pending::wait`] gives them back. [`Communicator::scope`] makes one for
/// borrowed buffers, [`Communicator::nonblocking`] for owned ones.
///
/// Starting an operation allocates, twice or thrice and some hundred bytes: what it does goes to
/// the other thread in a box, whose size is that of the arguments, and what it gives back stays
/// where both ends find it, of which either may be the last. The operation itself does not.
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
    (@ uneven $name:ident($($arg:ident: $type:ty),*)) => {
        #[doc = concat!("Starts a [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T, S, R, C>(
            &mut self,
            send: S,
            recv: R,
            counts: C,
            $($arg: $type),*
        ) -> Pending<(S, R)>
        where
            T: Element,
            S: AsRef<[T]> + Send + 'env,
            R: AsMut<[T]> + Send + 'env,
            C: AsRef<[usize]> + Send + 'env,
        {
            self.start((send, recv), move |comm, (send, recv)| {
                comm.$name(send.as_ref(), recv.as_mut(), counts.as_ref(), $($arg),*)
            })
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
    in_place all_reduce(op: impl Into<Reduction> + Send + 'env);
    apart all_reduce_into(op: impl Into<Reduction> + Send + 'env);
    apart reduce_scatter(op: impl Into<Reduction> + Send + 'env);
    in_place reduce_scatter_in_place(op: impl Into<Reduction> + Send + 'env);
    apart all_gather();
    in_place all_gather_in_place();
    in_place broadcast(root: usize);
    in_place reduce(op: impl Into<Reduction> + Send + 'env, root: usize);
    apart reduce_into(op: impl Into<Reduction> + Send + 'env, root: usize);
    apart gather(root: usize);
    apart scatter(root: usize);
    apart all_to_all();
    in_place all_to_all_in_place();
    in_place scan(op: impl Into<Reduction> + Send + 'env);
    apart scan_into(op: impl Into<Reduction> + Send + 'env);
    in_place exscan(op: impl Into<Reduction> + Send + 'env);
    apart exscan_into(op: impl Into<Reduction> + Send + 'env);
    uneven all_gather_v();
    uneven reduce_scatter_v(op: impl Into<Reduction> + Send + 'env);
    uneven gather_v(root: usize);
    uneven scatter_v(root: usize);
    in_place recv(from: usize);
}

/// Those whose arguments are like no other's.
impl<'env> Queue<'_, 'env> {
    /// Starts a [`Communicator::all_reduce_many`].
    pub fn all_reduce_many<T, B, L>(
        &mut self,
        bufs: L,
        op: impl Into<Reduction> + Send + 'env,
    ) -> Pending<L>
    where
        T: Element,
        B: AsMut<[T]>,
        L: AsMut<[B]> + Send + 'env,
    {
        self.start(bufs, move |comm, bufs| comm.all_reduce_many(bufs.as_mut(), op))
    }

    /// Starts a [`Communicator::send`].
    pub fn send<T, S>(&mut self, buf: S, to: usize) -> Pending<S>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
    {
        self.start(buf, move |comm, buf| comm.send(buf.as_ref(), to))
    }

    /// Starts a [`Communicator::send_recv`].
    pub fn send_recv<T, S, R>(
        &mut self,
        send: S,
        to: usize,
        recv: R,
        from: usize,
    ) -> Pending<(S, R)>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
        R: AsMut<[T]> + Send + 'env,
    {
        self.start((send, recv), move |comm, (send, recv)| {
            comm.send_recv(send.as_ref(), to, recv.as_mut(), from)
        })
    }

    /// Starts a [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<T, S, C, R, D>(
        &mut self,
        send: S,
        send_counts: C,
        recv: R,
        recv_counts: D,
    ) -> Pending<(S, R)>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
        R: AsMut<[T]> + Send + 'env,
        C: AsRef<[usize]> + Send + 'env,
        D: AsRef<[usize]> + Send + 'env,
    {
        self.start((send, recv), move |comm, (send, recv)| {
            let counts = [send_counts.as_ref(), recv_counts.as_ref()];
            comm.all_to_all_v(send.as_ref(), counts[0], recv.as_mut(), counts[1])
        })
    }
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
