//! The blocking collectives of a communicator, typed and by bytes: a row macro for the table in
//! `verbs`, and the collectives whose arguments fit no row of the table.
//! Law: a typed method casts to bytes and makes the same `call` as any other, so that nothing else
//! is compiled once per type.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::call::{Buffers, Call, Counts, call};
use super::verbs::for_each_verb;
use crate::element::{DataType, Element};
use crate::error::Result;
use crate::schedule::Collective;

/// Makes a verb's typed method and its `_bytes` twin, whose documentation has these words.
macro_rules! row {
    (in_place $($row:tt)*) => {
        row! { @twins (InPlace(buf)) [] buf [] ["`buf`", "`buf`", ""] $($row)* }
    };
    (out_of_place $($row:tt)*) => {
        row! {
            @twins (OutOfPlace { send, recv }) [send] recv []
            ["the buffers", "a buffer", ""] $($row)*
        }
    };
    (out_of_place_v $($row:tt)*) => {
        row! {
            @twins (OutOfPlace { send, recv }) [send] recv [counts]
            ["the buffers", "a buffer", " `counts` are elements."] $($row)*
        }
    };
    (@twins ($form:ident $fields:tt) [$($read:ident)?] $written:ident [$($counts:ident)?]
        [$buffers:literal, $buffer:literal, $note:literal]
        [$($docs:tt)*] $name:ident, $bytes:ident ($($params:tt)*) $verb:tt) => {
        $($docs)*
        pub fn $name<T: Element>(
            &mut self,
            $($read: &[T],)?
            $written: &mut [T],
            $($counts: &[usize],)?
            $($params)*
        ) -> Result<()> {
            $(let $read = cast_slice($read);)?
            let $written = cast_slice_mut($written);
            self.call(&call!(T::DTYPE, $verb $(, $counts)?), Buffers::$form $fields)
        }

        #[doc = concat!("As [`Self::", stringify!($name), "`], with the type known at run time; ",
            $buffers, " may have any alignment.", $note)]
        ///
        /// # Errors
        #[doc = concat!("As [`Self::", stringify!($name), "`]; and if ", $buffer,
            " is not whole elements.")]
        pub fn $bytes(
            &mut self,
            $($read: &[u8],)?
            $written: &mut [u8],
            $($counts: &[usize],)?
            dtype: DataType,
            $($params)*
        ) -> Result<()> {
            self.call(&call!(dtype, $verb $(, $counts)?), Buffers::$form $fields)
        }
    };
}

impl Communicator {
    for_each_verb!(row);

    /// Returns once every rank has called it.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// comm.barrier()?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        let barrier = Call::new(Collective::Barrier, DataType::U8);
        self.call(&barrier, Buffers::InPlace(&mut []))
    }

    /// Sends part r of `send` to rank r, and stores the part that rank r sends to this rank as part
    /// r of `recv`. Each rank passes the lengths of its own parts: rank a's `send_counts[b]` must
    /// equal rank b's `recv_counts[a]`.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (send_counts, recv_counts) = (vec![2; comm.size()], vec![2; comm.size()]);
    /// let (send, mut recv) = (vec![7; 2 * comm.size()], vec![0; 2 * comm.size()]);
    /// comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts)?;
    /// assert_eq!(recv, send);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::gather_v`]. If two ranks pass different lengths for the part between them, the
    /// receiver reports a mismatch, and the other ranks report the receiver as lost, in this call
    /// or the next.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let (send, recv) = (cast_slice(send), cast_slice_mut(recv));
        self.all_to_all_v_bytes(send, send_counts, recv, recv_counts, T::DTYPE)
    }

    /// As [`Self::all_to_all_v`], with the type known at run time; the buffers may have any
    /// alignment. Counts are elements.
    ///
    /// # Errors
    /// As [`Self::all_to_all_v`]; and if a buffer is not whole elements.
    pub fn all_to_all_v_bytes(
        &mut self,
        send: &[u8],
        send_counts: &[usize],
        recv: &mut [u8],
        recv_counts: &[usize],
        dtype: DataType,
    ) -> Result<()> {
        let counts = Counts::Pairs { send: send_counts, recv: recv_counts };
        let call = Call::new(Collective::AllToAll, dtype).with(counts);
        self.call(&call, Buffers::OutOfPlace { send, recv })
    }
}
