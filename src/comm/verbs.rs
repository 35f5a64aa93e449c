//! The collectives, typed and by bytes. Each says what it needs of its buffers and refuses
//! anything else before a byte moves. May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use crate::element::{DataType, Element, ReduceOp, Reduction};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

/// An argument that does not fit.
fn refuse<T>(
    call: Collective,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T> {
    let (given, expected) = (given.to_string(), expected.to_string());
    Err(Error::Argument { call: call.name(), argument, given, expected })
}

/// Whole elements in `bytes`.
fn count(call: Collective, argument: &'static str, bytes: usize, dtype: DataType) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    let expected = format!("a multiple of {}, the size of {dtype}", dtype.size());
    refuse(call, argument, format!("{bytes} bytes long"), expected)
}

fn same_length(
    call: Collective,
    argument: &'static str,
    given: usize,
    expected: Option<usize>,
    why: &str,
) -> Result<()> {
    if expected == Some(given) {
        return Ok(());
    }
    let expected = expected.map_or("less than the address space".into(), |n| n.to_string());
    refuse(call, argument, format!("{given} bytes long"), format!("{expected} bytes, {why}"))
}

const ALL_REDUCE: Collective = Collective::AllReduce;
const REDUCE_SCATTER: Collective = Collective::ReduceScatter;
const ALL_GATHER: Collective = Collective::AllGather;

impl Communicator {
    /// Reduces `buf` over all ranks, element by element, in place. All ranks pass the same length
    /// and operation and end with the same bits.
    ///
    /// # Errors
    /// If a peer is lost, makes another call or does not come before the timeout.
    pub fn all_reduce<T: Element>(
        &mut self,
        buf: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.all_reduce_bytes(cast_slice_mut(buf), T::DTYPE, op)
    }

    /// As [`Self::all_reduce`], with the type known at run time; `buf` may have any alignment.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` is not whole elements.
    pub fn all_reduce_bytes(
        &mut self,
        buf: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let count = count(ALL_REDUCE, "buf", buf.len(), dtype)?;
        let request = Request { collective: ALL_REDUCE, count, dtype, op: Some(op.into()) };
        self.run(&request, &Buffer::in_place(buf))
    }

    /// Reduces `send` over all ranks into `recv`, which has the same length.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths differ.
    pub fn all_reduce_into<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.all_reduce_into_bytes(cast_slice(send), cast_slice_mut(recv), T::DTYPE, op)
    }

    /// As [`Self::all_reduce_into`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::all_reduce_into`]; and if `send` is not whole elements.
    pub fn all_reduce_into_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let count = count(ALL_REDUCE, "send", send.len(), dtype)?;
        same_length(ALL_REDUCE, "recv", recv.len(), Some(send.len()), "as send")?;
        if self.size() == 1 {
            recv.copy_from_slice(send);
        }
        let request = Request { collective: ALL_REDUCE, count, dtype, op: Some(op.into()) };
        self.run(&request, &Buffer::apart(send, recv, 0))
    }

    /// Reduces `send`, size x `recv.len()` long, over all ranks; part r of the result goes to
    /// rank r's `recv`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.reduce_scatter_bytes(cast_slice(send), cast_slice_mut(recv), T::DTYPE, op)
    }

    /// As [`Self::reduce_scatter`], with the type known at run time; any alignment.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter`]; and if `recv` is not whole elements.
    pub fn reduce_scatter_bytes(
        &mut self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DataType,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let count = count(REDUCE_SCATTER, "recv", recv.len(), dtype)?;
        let whole = recv.len().checked_mul(self.size());
        same_length(REDUCE_SCATTER, "send", send.len(), whole, "size x recv")?;
        if self.size() == 1 {
            recv.copy_from_slice(send);
        }
        let request = Request { collective: REDUCE_SCATTER, count, dtype, op: Some(op.into()) };
        let mine = self.rank() * recv.len();
        self.run(&request, &Buffer::apart(send, recv, mine))
    }

    /// As [`Self::reduce_scatter`], in place: `buf` is size parts long, and part `rank` of it
    /// becomes the result; the others stay as they are.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buf: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let count = self.part(REDUCE_SCATTER, buf.len())?;
        let request =
            Request { collective: REDUCE_SCATTER, count, dtype: T::DTYPE, op: Some(op.into()) };
        self.run(&request, &Buffer::in_place(cast_slice_mut(buf)))
    }

    /// Every rank's `send`, in rank order, to everybody's `recv`, size x `send.len()` long.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    pub fn all_gather<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let (mine, whole) = (size_of_val(send), size_of_val(recv));
        same_length(ALL_GATHER, "recv", whole, mine.checked_mul(self.size()), "size x send")?;
        let start = self.rank() * send.len();
        recv[start..start + send.len()].copy_from_slice(send);
        self.all_gather_in_place(recv)
    }

    /// As [`Self::all_gather`], in place: part `rank` of `buf` is what this rank gives.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    pub fn all_gather_in_place<T: Element>(&mut self, buf: &mut [T]) -> Result<()> {
        let count = self.part(ALL_GATHER, buf.len())?;
        let request = Request { collective: ALL_GATHER, count, dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::in_place(cast_slice_mut(buf)))
    }

    /// The root's `buf` to everybody's, of the same length.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if there is no such root.
    pub fn broadcast<T: Element>(&mut self, buf: &mut [T], root: usize) -> Result<()> {
        let size = self.size();
        let collective = Collective::Broadcast { root: root as u32 };
        if root >= size {
            return refuse(collective, "root", root, format!("a rank below the size, {size}"));
        }
        let request = Request { collective, count: buf.len(), dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::in_place(cast_slice_mut(buf)))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&mut self) -> Result<()> {
        let mut token = [0_u8];
        let op = Some(ReduceOp::Max.into());
        let request =
            Request { collective: Collective::Barrier, count: 1, dtype: DataType::U8, op };
        self.run(&request, &Buffer::in_place(&mut token))
    }

    /// One of `size` equal parts of `len` elements.
    fn part(&self, call: Collective, len: usize) -> Result<usize> {
        let size = self.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        let expected = format!("a multiple of the size, {size}");
        refuse(call, "buf", format!("{len} elements long"), expected)
    }
}
