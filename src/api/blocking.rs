//! The blocking collectives of a communicator, typed and by bytes: a row macro for the table in
//! `verbs`, and the collectives whose arguments fit no row of the table.
//! Law: a typed method casts to bytes and calls one function of `verb`, so that nothing else is
//! compiled once per type.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::uneven::Uneven;
use super::verb::{element_count, verb};
use super::verbs::for_each_verb;
use crate::element::{DataType, Element, ReduceOp};
use crate::engine::PlanBy;
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Blocks;
use crate::schedule::Collective;

/// Makes a verb's typed method and its `_bytes` twin, whose documentation has these words.
macro_rules! row {
    (out_of_place $($row:tt)*) => {
        row! { @twins out_of_place [send] recv [] ["the buffers", "a buffer", ""] $($row)* }
    };
    (out_of_place_v $($row:tt)*) => {
        row! {
            @twins out_of_place_v [send] recv [counts]
            ["the buffers", "a buffer", " `counts` are elements."] $($row)*
        }
    };
    ($form:ident $($row:tt)*) => {
        row! { @twins $form [] buf [] ["`buf`", "`buf`", ""] $($row)* }
    };
    (@twins $form:ident [$($read:ident)?] $written:ident [$($counts:ident)?]
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
            let verb = verb!(T::DTYPE, $verb);
            self.$form(verb, $(cast_slice($read),)? cast_slice_mut($written) $(, $counts)?)
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
            self.$form(verb!(dtype, $verb), $($read,)? $written $(, $counts)?)
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
        let op = ReduceOp::Max;
        self.in_place(verb!(DataType::U8, [Barrier(op)()]), &mut [0])
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
        let call = Uneven::of(Collective::AllToAll);
        call.check_links(self.ring(call.name)?)?;
        let lens = [
            element_count(call.name, "send", send.len(), dtype)?,
            element_count(call.name, "recv", recv.len(), dtype)?,
        ];
        call.check_all_to_all(self, [send_counts, recv_counts], lens)?;
        let blocks = Blocks::new(send_counts, recv_counts, &[]);
        let buffer = Buffer::out_of_place(send, recv);
        self.run(call.request(dtype, None), (call.name, PlanBy::Blocks(blocks)), &buffer)
    }
}
