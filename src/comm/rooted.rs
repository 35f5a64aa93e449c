//! One rank against all: reduce, gather and scatter; broadcast stands with the first verbs.
//! May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verbs::{count, same_length};
use crate::element::{DataType, Element, Reduction};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

impl Communicator {
    /// Reduces `buf` over all ranks, element by element, in place at the root. The others' stay as
    /// they are.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    pub fn reduce<T: Element>(
        &mut self,
        buf: &mut [T],
        op: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        self.reduce_bytes(cast_slice_mut(buf), T::DTYPE, op, root)
    }

    /// As [`Self::reduce`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::reduce`]; and if `buf` is not whole elements.
    pub fn reduce_bytes(
        &mut self,
        buf: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        let collective = self.rooted(|root| Collective::Reduce { root }, root)?;
        let count = count(collective.name(), "buf", buf.len(), dtype)?;
        let request = Request { collective, count, dtype, op: Some(op.into()) };
        self.run(&request, &Buffer::in_place(buf))
    }

    /// Reduces `send` over all ranks into the root's `recv`, which has the same length; the others'
    /// `recv` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::reduce`]; and at the root if the lengths differ.
    pub fn reduce_into<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        self.reduce_into_bytes(cast_slice(send), cast_slice_mut(recv), T::DTYPE, op, root)
    }

    /// As [`Self::reduce_into`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::reduce_into`]; and if `send` is not whole elements.
    pub fn reduce_into_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
        root: usize,
    ) -> Result<()> {
        let collective = self.rooted(|root| Collective::Reduce { root }, root)?;
        let count = count(collective.name(), "send", send.len(), dtype)?;
        if self.rank() == root {
            same_length(collective, "recv", recv.len(), Some(send.len()), "as send")?;
        }
        let request = Request { collective, count, dtype, op: Some(op.into()) };
        self.run(&request, &Buffer::apart(send, recv))
    }

    /// Every rank's `send`, in rank order, to the root's `recv`, size x `send.len()` long; the
    /// others' `recv` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; if there is no such root, and at the root if the lengths do not
    /// fit.
    pub fn gather<T: Element>(&mut self, send: &[T], recv: &mut [T], root: usize) -> Result<()> {
        let collective = self.rooted(|root| Collective::Gather { root }, root)?;
        if self.rank() == root {
            let whole = size_of_val(send).checked_mul(self.size());
            same_length(collective, "recv", size_of_val(recv), whole, "size x send")?;
        }
        let request = Request { collective, count: send.len(), dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::apart(cast_slice(send), cast_slice_mut(recv)))
    }

    /// Part r of the root's `send`, size x `recv.len()` long, to rank r's `recv`; the others'
    /// `send` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Self::gather`].
    pub fn scatter<T: Element>(&mut self, send: &[T], recv: &mut [T], root: usize) -> Result<()> {
        let collective = self.rooted(|root| Collective::Scatter { root }, root)?;
        if self.rank() == root {
            let whole = size_of_val(recv).checked_mul(self.size());
            same_length(collective, "send", size_of_val(send), whole, "size x recv")?;
        }
        let request = Request { collective, count: recv.len(), dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::apart(cast_slice(send), cast_slice_mut(recv)))
    }
}
