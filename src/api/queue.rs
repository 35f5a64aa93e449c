//! The nonblocking collectives: a row macro for the table in `verbs`, and the verbs whose arguments
//! fit no row of the table.
//! Law: an operation is the communicator's own method, run by the worker; nothing is implemented
//! twice.

use bytemuck::{cast_slice, cast_slice_mut};

use super::call::{Buffers, Call, Counts, call};
use super::nonblocking::Queue;
use super::nonblocking::pending::Pending;
use super::verbs::for_each_verb;
use crate::element::{DataType, Element, Reduction};

/// Makes a verb's typed method and its `_bytes` twin.
macro_rules! row {
    (in_place $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!(
            "Starts [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, B>(&mut self, buf: B, $($params)*) -> Pending<B>
        where
            T: Element,
            B: AsMut<[T]> + Send + 'env,
        {
            let call = call!(T::DTYPE, $verb);
            self.start(buf, move |comm, buf| {
                comm.call(&call, Buffers::InPlace(cast_slice_mut(buf.as_mut())))
            })
        }

        #[doc = concat!(
            "Starts [`", stringify!($bytes), "`](crate::Communicator::", stringify!($bytes), ")."
        )]
        pub fn $bytes<B>(&mut self, buf: B, dtype: DataType, $($params)*) -> Pending<B>
        where
            B: AsMut<[u8]> + Send + 'env,
        {
            let call = call!(dtype, $verb);
            self.start(buf, move |comm, buf| comm.call(&call, Buffers::InPlace(buf.as_mut())))
        }
    };
    (out_of_place $($row:tt)*) => { row! { @two_buffers [] $($row)* } };
    (out_of_place_v $($row:tt)*) => { row! { @two_buffers [counts: C] $($row)* } };
    (@two_buffers [$($counts:ident: $C:ident)?]
        $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!(
            "Starts [`", stringify!($name), "`](crate::Communicator::", stringify!($name), ")."
        )]
        pub fn $name<T, S, R $(, $C)?>(
            &mut self,
            send: S,
            recv: R,
            $($counts: $C,)?
            $($params)*
        ) -> Pending<(S, R)>
        where
            T: Element,
            S: AsRef<[T]> + Send + 'env,
            R: AsMut<[T]> + Send + 'env,
            $($C: AsRef<[usize]> + Send + 'env,)?
        {
            let call = call!(T::DTYPE, $verb);
            self.start((send, recv), move |comm, (send, recv)| {
                let (send, recv) = (cast_slice(send.as_ref()), cast_slice_mut(recv.as_mut()));
                $(let call = call.with(Counts::Parts($counts.as_ref()));)?
                comm.call(&call, Buffers::OutOfPlace { send, recv })
            })
        }

        #[doc = concat!(
            "Starts [`", stringify!($bytes), "`](crate::Communicator::", stringify!($bytes), ")."
        )]
        pub fn $bytes<S, R $(, $C)?>(
            &mut self,
            send: S,
            recv: R,
            $($counts: $C,)?
            dtype: DataType,
            $($params)*
        ) -> Pending<(S, R)>
        where
            S: AsRef<[u8]> + Send + 'env,
            R: AsMut<[u8]> + Send + 'env,
            $($C: AsRef<[usize]> + Send + 'env,)?
        {
            let call = call!(dtype, $verb);
            self.start((send, recv), move |comm, (send, recv)| {
                $(let call = call.with(Counts::Parts($counts.as_ref()));)?
                comm.call(&call, Buffers::OutOfPlace { send: send.as_ref(), recv: recv.as_mut() })
            })
        }
    };
}

impl<'env> Queue<'_, 'env> {
    for_each_verb!(row);

    /// Starts [`call`](crate::Communicator::call).
    pub fn call<S, R>(&mut self, call: Call<'env>, buffers: Buffers<S, R>) -> Pending<Buffers<S, R>>
    where
        S: AsRef<[u8]> + Send + 'env,
        R: AsMut<[u8]> + Send + 'env,
    {
        self.start(buffers, move |comm, buffers| {
            let buffers = match buffers {
                Buffers::InPlace(buf) => Buffers::InPlace(R::as_mut(buf)),
                Buffers::OutOfPlace { send, recv } => {
                    Buffers::OutOfPlace { send: S::as_ref(send), recv: R::as_mut(recv) }
                }
            };
            comm.call(&call, buffers)
        })
    }

    /// Starts [`barrier`](crate::Communicator::barrier).
    pub fn barrier(&mut self) -> Pending<()> {
        self.start((), |comm, ()| comm.barrier())
    }

    /// Starts [`all_reduce_many`](crate::Communicator::all_reduce_many).
    pub fn all_reduce_many<T, B, L>(&mut self, bufs: L, op: impl Into<Reduction>) -> Pending<L>
    where
        T: Element,
        B: AsMut<[T]>,
        L: AsMut<[B]> + Send + 'env,
    {
        let op = op.into();
        self.start(bufs, move |comm, bufs| comm.all_reduce_many(bufs.as_mut(), op))
    }

    /// Starts [`all_reduce_many_bytes`](crate::Communicator::all_reduce_many_bytes).
    pub fn all_reduce_many_bytes<B, L>(
        &mut self,
        bufs: L,
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Pending<L>
    where
        B: AsMut<[u8]>,
        L: AsMut<[B]> + Send + 'env,
    {
        let op = op.into();
        self.start(bufs, move |comm, bufs| comm.all_reduce_many_bytes(bufs.as_mut(), dtype, op))
    }

    /// Starts [`all_to_all_v`](crate::Communicator::all_to_all_v).
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

    /// Starts [`all_to_all_v_bytes`](crate::Communicator::all_to_all_v_bytes).
    pub fn all_to_all_v_bytes<S, C, R, D>(
        &mut self,
        send: S,
        send_counts: C,
        recv: R,
        recv_counts: D,
        dtype: DataType,
    ) -> Pending<(S, R)>
    where
        S: AsRef<[u8]> + Send + 'env,
        R: AsMut<[u8]> + Send + 'env,
        C: AsRef<[usize]> + Send + 'env,
        D: AsRef<[usize]> + Send + 'env,
    {
        self.start((send, recv), move |comm, (send, recv)| {
            let counts = [send_counts.as_ref(), recv_counts.as_ref()];
            comm.all_to_all_v_bytes(send.as_ref(), counts[0], recv.as_mut(), counts[1], dtype)
        })
    }
}
