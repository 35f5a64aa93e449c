//! Scan and exscan: what the ranks up to each one, or before it, come to. May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verbs::{count, refuse, same_length};
use crate::element::{DataType, Element, ReduceOp, Reduction};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

impl Communicator {
    /// Reduces `buf` over the ranks from 0 to this one, in the order of ranks, in place.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `op` is the average, of which there is none.
    pub fn scan<T: Element>(&mut self, buf: &mut [T], op: impl Into<Reduction>) -> Result<()> {
        self.scan_bytes(cast_slice_mut(buf), T::DTYPE, op)
    }

    /// As [`Self::scan`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::scan`]; and if `buf` is not whole elements.
    pub fn scan_bytes(
        &mut self,
        buf: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let request = prefix(Collective::Scan, "buf", buf.len(), dtype, op)?;
        self.run(&request, &Buffer::in_place(buf))
    }

    /// Reduces `send` over the ranks from 0 to this one into `recv`, which has the same length.
    ///
    /// # Errors
    /// As [`Self::scan`]; and if the lengths differ.
    pub fn scan_into<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.scan_into_bytes(cast_slice(send), cast_slice_mut(recv), T::DTYPE, op)
    }

    /// As [`Self::scan_into`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::scan_into`]; and if `send` is not whole elements.
    pub fn scan_into_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.prefix_into(Collective::Scan, send, recv, dtype, op)
    }

    /// Reduces `buf` over the ranks from 0 to the one before this, in the order of ranks, in place.
    /// Rank 0's stays as it is.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub fn exscan<T: Element>(&mut self, buf: &mut [T], op: impl Into<Reduction>) -> Result<()> {
        self.exscan_bytes(cast_slice_mut(buf), T::DTYPE, op)
    }

    /// As [`Self::exscan`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::exscan`]; and if `buf` is not whole elements.
    pub fn exscan_bytes(
        &mut self,
        buf: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let request = prefix(Collective::Exscan, "buf", buf.len(), dtype, op)?;
        self.run(&request, &Buffer::in_place(buf))
    }

    /// Reduces `send` over the ranks from 0 to the one before this into `recv`, which has the same
    /// length. Rank 0's `recv` stays as it is.
    ///
    /// # Errors
    /// As [`Self::scan_into`].
    pub fn exscan_into<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.exscan_into_bytes(cast_slice(send), cast_slice_mut(recv), T::DTYPE, op)
    }

    /// As [`Self::exscan_into`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::exscan_into`]; and if `send` is not whole elements.
    pub fn exscan_into_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.prefix_into(Collective::Exscan, send, recv, dtype, op)
    }

    fn prefix_into(
        &mut self,
        collective: Collective,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let request = prefix(collective, "send", send.len(), dtype, op)?;
        same_length(collective, "recv", recv.len(), Some(send.len()), "as send")?;
        self.run(&request, &Buffer::apart(send, recv))
    }
}

fn prefix(
    collective: Collective,
    argument: &'static str,
    bytes: usize,
    dtype: DataType,
    op: impl Into<Reduction>,
) -> Result<Request> {
    let op = op.into();
    if op == ReduceOp::Avg.into() {
        let expected = "another operation: each rank's result is over another number of ranks";
        return refuse(collective.name(), "op", op, expected);
    }
    let count = count(collective.name(), argument, bytes, dtype)?;
    Ok(Request { collective, count, dtype, op: Some(op) })
}
