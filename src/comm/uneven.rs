//! The collectives whose parts differ in length. One part follows the other, in the order of ranks;
//! `counts` says how many elements each has. May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::engine::linked_up_to;
use super::verbs::{count, refuse};
use crate::element::{DataType, Element, Reduction};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::{Blocks, Request};
use crate::schedule::{Collective, Ring};

impl Communicator {
    /// Every rank's `send`, in rank order, to everybody's `recv`. All ranks pass the same `counts`:
    /// the length of each rank's `send`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths are not those that `counts` says.
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let call = Call { call: Collective::AllGather, name: "all_gather_v" };
        let mine = call.own(counts, self.size(), self.rank(), "send", send.len())?;
        call.whole("counts", counts, "recv", recv.len())?;
        let blocks = Blocks::new(mine, counts, counts);
        let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
        self.run_uneven(call.name, &call.request(T::DTYPE, None), blocks, &buffer)
    }

    /// Reduces `send` over all ranks, element by element; part r of the result goes to rank r's
    /// `recv`. All ranks pass the same `counts`: the length of each rank's `recv`.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`].
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (send, recv) = (cast_slice(send), cast_slice_mut(recv));
        self.reduce_scatter_v_bytes(send, recv, counts, T::DTYPE, op)
    }

    /// As [`Self::reduce_scatter_v`], with the type known at run time; any alignment. `counts` are
    /// elements.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_v`]; and if `send` or `recv` are not whole elements.
    pub fn reduce_scatter_v_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let call = Call { call: Collective::ReduceScatter, name: "reduce_scatter_v" };
        let whole = count(call.name, "send", send.len(), dtype)?;
        let part = count(call.name, "recv", recv.len(), dtype)?;
        let mine = call.own(counts, self.size(), self.rank(), "recv", part)?;
        call.whole("counts", counts, "send", whole)?;
        let blocks = Blocks::new(counts, mine, counts);
        self.run_uneven(
            call.name,
            &call.request(dtype, Some(op.into())),
            blocks,
            &Buffer::apart(send, recv),
        )
    }

    /// Every rank's `send`, in rank order, to the root's `recv`; the others' `recv` is not looked
    /// at and may be empty. All ranks pass the same `counts`: the length of each rank's `send`.
    ///
    /// # Errors
    /// As [`Self::all_gather_v`]; if there is no such root; and in worlds without links
    /// between all pairs: see [`Builder::all_pairs`](crate::Builder::all_pairs).
    pub fn gather_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let collective = self.rooted(|root| Collective::Gather { root }, root)?;
        let call = Call { call: collective, name: "gather_v" };
        call.all_pairs(self.ring(call.name)?)?;
        let mine = call.own(counts, self.size(), self.rank(), "send", send.len())?;
        if self.rank() == root {
            call.whole("counts", counts, "recv", recv.len())?;
        }
        let blocks = Blocks::new(mine, counts, counts);
        let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
        self.run_uneven(call.name, &call.request(T::DTYPE, None), blocks, &buffer)
    }

    /// Part r of the root's `send` to rank r's `recv`; the others' `send` is not looked at and may
    /// be empty. All ranks pass the same `counts`: the length of each rank's `recv`.
    ///
    /// # Errors
    /// As [`Self::gather_v`].
    pub fn scatter_v<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let collective = self.rooted(|root| Collective::Scatter { root }, root)?;
        let call = Call { call: collective, name: "scatter_v" };
        call.all_pairs(self.ring(call.name)?)?;
        let mine = call.own(counts, self.size(), self.rank(), "recv", recv.len())?;
        if self.rank() == root {
            call.whole("counts", counts, "send", send.len())?;
        }
        let blocks = Blocks::new(counts, mine, counts);
        let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
        self.run_uneven(call.name, &call.request(T::DTYPE, None), blocks, &buffer)
    }

    /// Part r of `send` to rank r, whose own part for this rank becomes part r of `recv`. Each rank
    /// says how long its parts are: what one sends is what the other expects.
    ///
    /// # Errors
    /// As [`Self::gather_v`]; and if two ranks differ over the length of what one sends the other:
    /// then the one that receives says so, and the others have lost it, in this call or the next.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let call = Call { call: Collective::AllToAll, name: "all_to_all_v" };
        call.all_pairs(self.ring(call.name)?)?;
        call.one_each("send_counts", send_counts, self.size())?;
        call.one_each("recv_counts", recv_counts, self.size())?;
        call.whole("send_counts", send_counts, "send", send.len())?;
        call.whole("recv_counts", recv_counts, "recv", recv.len())?;
        call.same_for_itself(send_counts[self.rank()], recv_counts[self.rank()])?;
        let blocks = Blocks::new(send_counts, recv_counts, &[]);
        let buffer = Buffer::apart(cast_slice(send), cast_slice_mut(recv));
        self.run_uneven(call.name, &call.request(T::DTYPE, None), blocks, &buffer)
    }
}

/// An uneven call: what is walked, and as which method.
pub(super) struct Call {
    pub(super) call: Collective,
    pub(super) name: &'static str,
}

impl Call {
    pub(super) fn request(&self, dtype: DataType, op: Option<Reduction>) -> Request {
        Request { collective: self.call, count: 0, dtype, op }
    }

    fn all_pairs(&self, ring: &Ring) -> Result<()> {
        if ring.all_pairs() {
            return Ok(());
        }
        let expected =
            format!("at most {}: {}", ring.most_pairs(), linked_up_to(ring.most_pairs()));
        refuse(self.name, "size", ring.size(), expected)
    }

    /// Does a rank get what it gives itself?
    pub(super) fn same_for_itself(&self, gives: usize, gets: usize) -> Result<()> {
        if gives == gets {
            return Ok(());
        }
        let given = format!("{gets} for this rank itself");
        refuse(self.name, "recv_counts", given, format!("{gives}, as send_counts"))
    }

    pub(super) fn one_each(
        &self,
        argument: &'static str,
        counts: &[usize],
        size: usize,
    ) -> Result<()> {
        if counts.len() == size {
            return Ok(());
        }
        let given = format!("{} numbers long", counts.len());
        refuse(self.name, argument, given, format!("{size}, one for each rank"))
    }

    /// This rank's entry of `counts`, which must be the length of its buffer.
    pub(super) fn own<'a>(
        &self,
        counts: &'a [usize],
        size: usize,
        rank: usize,
        argument: &'static str,
        len: usize,
    ) -> Result<&'a [usize]> {
        self.one_each("counts", counts, size)?;
        let mine = counts[rank];
        if mine == len {
            return Ok(&counts[rank..=rank]);
        }
        let expected = format!("{mine}, what counts says of rank {rank}");
        refuse(self.name, argument, format!("{len} elements long"), expected)
    }

    /// Do `counts` add up to the length of a buffer?
    pub(super) fn whole(
        &self,
        argument: &'static str,
        counts: &[usize],
        buffer: &'static str,
        len: usize,
    ) -> Result<()> {
        let total = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
        if total == Some(len) {
            return Ok(());
        }
        let total = total.map_or("more than there is address space".into(), |sum| sum.to_string());
        let given = format!("{total} elements together");
        refuse(self.name, argument, given, format!("{len}, the length of {buffer}"))
    }
}
