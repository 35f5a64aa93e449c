//! All-to-all: every rank has something for every other one. May touch: as `comm`.

use bytemuck::{cast_slice, cast_slice_mut};

use super::Communicator;
use super::verbs::same_length;
use crate::element::Element;
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

const ALL_TO_ALL: Collective = Collective::AllToAll;

impl Communicator {
    /// Part r of `send` to rank r, whose own part for this rank becomes part r of `recv`. Both are
    /// of size equal parts.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if the lengths do not fit.
    pub fn all_to_all<T: Element>(&mut self, send: &[T], recv: &mut [T]) -> Result<()> {
        let count = self.part(ALL_TO_ALL, "send", send.len())?;
        let (given, got) = (size_of_val(send), size_of_val(recv));
        same_length(ALL_TO_ALL, "recv", got, Some(given), "as send")?;
        let request = Request { collective: ALL_TO_ALL, count, dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::apart(cast_slice(send), cast_slice_mut(recv)))
    }

    /// As [`Self::all_to_all`], in place.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; and if `buf` can't be cut into size parts.
    pub fn all_to_all_in_place<T: Element>(&mut self, buf: &mut [T]) -> Result<()> {
        let count = self.part(ALL_TO_ALL, "buf", buf.len())?;
        let request = Request { collective: ALL_TO_ALL, count, dtype: T::DTYPE, op: None };
        self.run(&request, &Buffer::in_place(cast_slice_mut(buf)))
    }
}
