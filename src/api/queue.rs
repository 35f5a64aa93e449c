//! The verbs that can be started.
//! May touch: as `comm`. Law: a verb here is the communicator's own, run by its worker: a line for
//! each, and no second implementation.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::dense::verb;
use super::nonblocking::Queue;
use super::pending::Pending;
use super::verb::{Verb, root_rank};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::schedule::Collective;

/// A verb whose one buffer is both what a rank gives and what it gets.
type InPlace = fn(&mut Communicator, Verb, &mut [u8]) -> Result<()>;

/// The forms that verbs have. Each is compiled for a type of buffers, not for each verb too.
impl<'env> Queue<'_, 'env> {
    fn start_in_place<T, B>(&mut self, verb: Verb, call: InPlace, buf: B) -> Pending<B>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'env,
    {
        self.start(buf, move |comm, buf| call(comm, verb, cast_slice_mut(buf.as_mut())))
    }

    fn start_out_of_place<T, S, R>(&mut self, verb: Verb, send: S, recv: R) -> Pending<(S, R)>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
        R: AsMut<[T]> + Send + 'env,
    {
        self.start((send, recv), move |comm, (send, recv)| {
            comm.out_of_place(verb, cast_slice(send.as_ref()), cast_slice_mut(recv.as_mut()))
        })
    }

    fn start_out_of_place_v<T, S, R, C>(
        &mut self,
        verb: Verb,
        send: S,
        recv: R,
        counts: C,
    ) -> Pending<(S, R)>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
        R: AsMut<[T]> + Send + 'env,
        C: AsRef<[usize]> + Send + 'env,
    {
        self.start((send, recv), move |comm, (send, recv)| {
            let (send, recv) = (cast_slice(send.as_ref()), cast_slice_mut(recv.as_mut()));
            comm.out_of_place_v(verb, send, recv, counts.as_ref())
        })
    }
}

/// One line for each verb: which buffers it has, its name, its collective, its operation and root
/// if it has them.
macro_rules! verbs {
    ($($form:ident $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;)*) => {
        impl<'env> Queue<'_, 'env> {
            $(verbs!(@ $form $name [$($op)?] [$($root)?] [$of $(by $op)? $(with $root)?]);)*
        }
    };
    (@ out_of_place $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, S, R>(
            &mut self,
            send: S,
            recv: R,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Pending<(S, R)>
        where
            T: Element,
            S: AsRef<[T]> + Send + 'env,
            R: AsMut<[T]> + Send + 'env,
        {
            self.start_out_of_place(verb!(T::DTYPE, $($verb)*), send, recv)
        }
    };
    (@ out_of_place_v $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, S, R, C>(
            &mut self,
            send: S,
            recv: R,
            counts: C,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Pending<(S, R)>
        where
            T: Element,
            S: AsRef<[T]> + Send + 'env,
            R: AsMut<[T]> + Send + 'env,
            C: AsRef<[usize]> + Send + 'env,
        {
            self.start_out_of_place_v(verb!(T::DTYPE, $($verb)*), send, recv, counts)
        }
    };
    (@ $form:ident $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, B>(
            &mut self,
            buf: B,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Pending<B>
        where
            T: Element,
            B: AsMut<[T]> + Send + 'env,
        {
            self.start_in_place(verb!(T::DTYPE, $($verb)*), Communicator::$form, buf)
        }
    };
}

verbs! {
    in_place all_reduce: AllReduce by op;
    out_of_place all_reduce_into: AllReduce by op;
    out_of_place reduce_scatter: ReduceScatter by op;
    in_own_part reduce_scatter_in_place: ReduceScatter by op;
    out_of_place all_gather: AllGather;
    in_own_part all_gather_in_place: AllGather;
    in_place broadcast: Broadcast with root;
    in_place reduce: Reduce by op with root;
    out_of_place reduce_into: Reduce by op with root;
    out_of_place gather: Gather with root;
    out_of_place scatter: Scatter with root;
    out_of_place all_to_all: AllToAll;
    in_place all_to_all_in_place: AllToAll;
    in_place scan: Scan by op;
    out_of_place scan_into: Scan by op;
    in_place exscan: Exscan by op;
    out_of_place exscan_into: Exscan by op;
    out_of_place_v all_gather_v: AllGather;
    out_of_place_v reduce_scatter_v: ReduceScatter by op;
    out_of_place_v gather_v: Gather with root;
    out_of_place_v scatter_v: Scatter with root;
}

/// Those whose arguments are like no other's.
impl<'env> Queue<'_, 'env> {
    /// Starts a [`barrier`](crate::Communicator::barrier).
    pub fn barrier(&mut self) -> Pending<()> {
        self.start((), |comm, ()| comm.barrier())
    }

    /// Starts a [`all_reduce_many`](crate::Communicator::all_reduce_many).
    pub fn all_reduce_many<T, B, L>(&mut self, bufs: L, op: impl Into<Reduction>) -> Pending<L>
    where
        T: Element,
        B: AsMut<[T]>,
        L: AsMut<[B]> + Send + 'env,
    {
        let op = op.into();
        self.start(bufs, move |comm, bufs| comm.all_reduce_many(bufs.as_mut(), op))
    }

    /// Starts a [`recv`](crate::Communicator::recv).
    pub fn recv<T, B>(&mut self, buf: B, from: usize) -> Pending<B>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'env,
    {
        self.start(buf, move |comm, buf| comm.recv(buf.as_mut(), from))
    }

    /// Starts a [`send`](crate::Communicator::send).
    pub fn send<T, S>(&mut self, buf: S, to: usize) -> Pending<S>
    where
        T: Element,
        S: AsRef<[T]> + Send + 'env,
    {
        self.start(buf, move |comm, buf| comm.send(buf.as_ref(), to))
    }

    /// Starts a [`send_recv`](crate::Communicator::send_recv).
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

    /// Starts a [`all_to_all_v`](crate::Communicator::all_to_all_v).
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
