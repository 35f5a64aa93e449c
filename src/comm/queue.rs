//! The verbs that can be started.
//! May touch: as `comm`. Law: a verb here is the communicator's own, run by its worker: a line for
//! each, and no second implementation.

use super::{Pending, Queue};
use crate::element::{Element, Reduction};

/// One line for each verb: whether it works in place or from one buffer to another, its name, and
/// its arguments beside the buffers.
macro_rules! verbs {
    ($($form:ident $name:ident($($arg:ident: $type:ty),*);)*) => {
        impl<'env> Queue<'_, 'env> {
            $(verbs!(@ $form $name($($arg: $type),*));)*
        }
    };
    (@ in_place $name:ident($($arg:ident: $type:ty),*)) => {
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, B>(&mut self, buf: B, $($arg: $type),*) -> Pending<B>
        where
            T: Element,
            B: AsMut<[T]> + Send + 'env,
        {
            self.start(buf, move |comm, buf| comm.$name(buf.as_mut(), $($arg),*))
        }
    };
    (@ uneven $name:ident($($arg:ident: $type:ty),*)) => {
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
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
        #[doc = concat!(
            "Starts a [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
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
    /// Starts a [`barrier`](crate::Communicator::barrier).
    pub fn barrier(&mut self) -> Pending<()> {
        self.start((), |comm, ()| comm.barrier())
    }

    /// Starts a [`all_reduce_many`](crate::Communicator::all_reduce_many).
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
