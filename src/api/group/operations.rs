//! The operations of a group: messages, a row macro for the table in `verbs`, and the verbs whose
//! arguments fit no row of the table.

use std::fmt;

use bytemuck::{cast_slice, cast_slice_mut};
use smallbox::smallbox;

use super::Group;
use crate::api::Communicator;
use crate::api::call::{Buffers, Call, Verb, call};
use crate::api::collective::check_message;
use crate::api::verbs::for_each_verb;
use crate::element::{DataType, Element, Reduction};
use crate::error::Result;
use crate::messages::{Bytes, Transfer};

impl<'env> Group<'_, 'env> {
    /// See [`Communicator::send`]. This rank may send to itself, if it receives in the same group.
    ///
    /// # Errors
    /// If there is no such rank or no link to it.
    pub fn send<T: Element>(&mut self, buf: &'env [T], to: usize) -> Result<()> {
        self.send_bytes(cast_slice(buf), T::DTYPE, to)
    }

    /// See [`Communicator::send_bytes`].
    ///
    /// # Errors
    /// As [`Self::send`]; and if `buf` is not whole elements.
    pub fn send_bytes(&mut self, buf: &'env [u8], dtype: DataType, to: usize) -> Result<()> {
        self.add_transfer(("send", "to", "buf"), Bytes::Sent(buf), dtype, to)
    }

    /// See [`Communicator::recv`]. This rank may receive from itself.
    ///
    /// # Errors
    /// If there is no such rank or no link from it.
    pub fn recv<T: Element>(&mut self, buf: &'env mut [T], from: usize) -> Result<()> {
        self.recv_bytes(cast_slice_mut(buf), T::DTYPE, from)
    }

    /// See [`Communicator::recv_bytes`].
    ///
    /// # Errors
    /// As [`Self::recv`]; and if `buf` is not whole elements.
    pub fn recv_bytes(&mut self, buf: &'env mut [u8], dtype: DataType, from: usize) -> Result<()> {
        self.add_transfer(("recv", "from", "buf"), Bytes::Received(buf), dtype, from)
    }

    /// See [`Communicator::send_recv`]. A message to this rank itself must be received in the same
    /// group, by this call or another one.
    ///
    /// # Errors
    /// If there is no such rank or no link to it, or from it.
    pub fn send_recv<T: Element>(
        &mut self,
        send: &'env [T],
        to: usize,
        recv: &'env mut [T],
        from: usize,
    ) -> Result<()> {
        self.send_recv_bytes(cast_slice(send), to, cast_slice_mut(recv), from, T::DTYPE)
    }

    /// See [`Communicator::send_recv_bytes`].
    ///
    /// # Errors
    /// As [`Self::send_recv`]; and if a buffer is not whole elements.
    pub fn send_recv_bytes(
        &mut self,
        send: &'env [u8],
        to: usize,
        recv: &'env mut [u8],
        from: usize,
        dtype: DataType,
    ) -> Result<()> {
        const NAME: &str = "send_recv";
        self.check_peer(NAME, "from", from)?;
        check_message(NAME, "recv", recv.len(), dtype)?;
        self.add_transfer((NAME, "to", "send"), Bytes::Sent(send), dtype, to)?;
        self.add_transfer((NAME, "from", "recv"), Bytes::Received(recv), dtype, from)
    }

    fn check_peer(
        &mut self,
        call: &'static str,
        argument: &'static str,
        peer: usize,
    ) -> Result<()> {
        if peer == self.comm.rank() {
            return Ok(());
        }
        self.comm.check_linked_peer(call, argument, peer)
    }

    fn add_transfer(
        &mut self,
        (call, rank, buf): (&'static str, &'static str, &'static str),
        bytes: Bytes<'env>,
        dtype: DataType,
        peer: usize,
    ) -> Result<()> {
        self.check_peer(call, rank, peer)?;
        let transfer = Transfer { bytes, dtype, peer };
        check_message(call, buf, transfer.len(), dtype)?;
        self.lists.transfers.push(transfer);
        Ok(())
    }

    /// See [`Communicator::all_reduce_many`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_reduce_many<T: Element, B: AsMut<[T]> + Send>(
        &mut self,
        bufs: &'env mut [B],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let op = op.into();
        self.add(move |comm| comm.all_reduce_many(bufs, op))
    }

    /// See [`Communicator::all_reduce_many_bytes`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_reduce_many_bytes<B: AsMut<[u8]> + Send>(
        &mut self,
        bufs: &'env mut [B],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let op = op.into();
        self.add(move |comm| comm.all_reduce_many_bytes(bufs, dtype, op))
    }

    /// See [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'env [T],
        send_counts: &'env [usize],
        recv: &'env mut [T],
        recv_counts: &'env [usize],
    ) -> Result<()> {
        self.add(move |comm| comm.all_to_all_v(send, send_counts, recv, recv_counts))
    }

    /// See [`Communicator::all_to_all_v_bytes`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_to_all_v_bytes(
        &mut self,
        send: &'env [u8],
        send_counts: &'env [usize],
        recv: &'env mut [u8],
        recv_counts: &'env [usize],
        dtype: DataType,
    ) -> Result<()> {
        self.add(move |comm| comm.all_to_all_v_bytes(send, send_counts, recv, recv_counts, dtype))
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    /// If the options in force rule it out.
    pub fn barrier(&mut self) -> Result<()> {
        self.add(Communicator::barrier)
    }

    /// Checks a call's arguments now, and makes the call when the group ends.
    fn add(
        &mut self,
        mut call: impl FnMut(&mut Communicator) -> Result<()> + Send + 'env,
    ) -> Result<()> {
        call(DryRun::of(self.comm).0)?;
        self.lists.calls.push(smallbox!(call));
        Ok(())
    }
}

/// Makes calls check their arguments and do nothing else, until it is dropped.
struct DryRun<'a>(&'a mut Communicator);

impl<'a> DryRun<'a> {
    fn of(comm: &'a mut Communicator) -> Self {
        comm.settings.is_dry_run = true;
        Self(comm)
    }
}

impl Drop for DryRun<'_> {
    fn drop(&mut self) {
        self.0.settings.is_dry_run = false;
    }
}

/// Makes a verb's typed method and its `_bytes` twin.
macro_rules! row {
    (in_place $($row:tt)*) => { row! { @method (InPlace(buf)) [] buf [] $($row)* } };
    (out_of_place $($row:tt)*) => {
        row! { @method (OutOfPlace { send, recv }) [send] recv [] $($row)* }
    };
    (out_of_place_v $($row:tt)*) => {
        row! { @method (OutOfPlace { send, recv }) [send] recv [counts] $($row)* }
    };
    (@method ($form:ident $fields:tt) [$($read:ident)?] $written:ident [$($counts:ident)?]
        $docs:tt $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        #[doc = concat!("See [`Communicator::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// If the arguments do not fit.
        pub fn $name<T: Element>(
            &mut self,
            $($read: &'env [T],)?
            $written: &'env mut [T],
            $($counts: &'env [usize],)?
            $($params)*
        ) -> Result<()> {
            $(let $read = cast_slice($read);)?
            let $written = cast_slice_mut($written);
            self.call(call!(T::DTYPE, $verb $(, $counts)?), Buffers::$form $fields)
        }

        #[doc = concat!("See [`Communicator::", stringify!($bytes), "`].")]
        ///
        /// # Errors
        /// If the arguments do not fit.
        pub fn $bytes(
            &mut self,
            $($read: &'env [u8],)?
            $written: &'env mut [u8],
            $($counts: &'env [usize],)?
            dtype: DataType,
            $($params)*
        ) -> Result<()> {
            self.call(call!(dtype, $verb $(, $counts)?), Buffers::$form $fields)
        }
    };
}

impl<'env> Group<'_, 'env> {
    for_each_verb!(row);

    /// See [`Communicator::call`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn call(
        &mut self,
        call: Call<'env>,
        mut buffers: Buffers<&'env [u8], &'env mut [u8]>,
    ) -> Result<()> {
        call.check_counts()?;
        match call.verb {
            Verb::Collective(_) => self.add(move |comm| comm.call(&call, buffers.reborrow())),
            Verb::Send { to } => self.send_bytes(buffers.sent(), call.dtype, to),
            Verb::Recv { from } => self.recv_bytes(buffers.received(), call.dtype, from),
            Verb::SendRecv { to, from } => {
                let (send, recv) = buffers.both(call.name())?;
                self.send_recv_bytes(send, to, recv, from, call.dtype)
            }
        }
    }
}

impl fmt::Debug for Group<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, calls) = (self.lists.transfers.len(), self.lists.calls.len());
        f.debug_struct("Group").field("messages", &messages).field("calls", &calls).finish()
    }
}
