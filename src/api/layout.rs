//! Where the equal parts of a collective lie in a rank's buffers, on the host as on devices.

use std::ops::Range;

use super::Communicator;
use super::call::{Buffers, Call};
use crate::error::{Result, argument_error};
use crate::schedule::Collective;

/// The parts of a collective in the buffers of one rank.
pub(crate) struct Layout {
    /// Elements of a part, or of the buffer of a collective without parts.
    pub(crate) count: usize,
    /// The bytes that are read, in the one buffer or in `send`.
    pub(crate) input: Range<usize>,
    /// The bytes that are written, in the one buffer or in `recv`.
    pub(crate) output: Range<usize>,
}

/// Checks the length of a buffer in bytes. Without an `expected` length, the call would need more
/// bytes than the address space has.
fn check_length(
    call: &'static str,
    argument: &'static str,
    given: usize,
    expected: Option<usize>,
    why: &str,
) -> Result<()> {
    if expected == Some(given) {
        return Ok(());
    }
    let expected = expected.map_or("less than the address space".into(), |n| n.to_string());
    argument_error(
        call,
        argument,
        format!("{given} bytes long"),
        format!("{expected} bytes, {why}"),
    )
}

impl Communicator {
    /// The layout of a collective in buffers of so many bytes.
    ///
    /// # Errors
    /// If the buffers that this rank uses do not fit each other, or the number of ranks.
    #[inline]
    pub(crate) fn layout(
        &self,
        call: &Call<'_>,
        collective: Collective,
        lens: Buffers<usize, usize>,
    ) -> Result<Layout> {
        match lens {
            Buffers::InPlace(len) => self.layout_in_place(call, collective, len),
            Buffers::OutOfPlace { send, recv } => {
                let count = self.part_out_of_place(call, collective, [send, recv])?;
                Ok(Layout { count, input: 0..send, output: 0..recv })
            }
        }
    }

    #[inline]
    fn layout_in_place(
        &self,
        call: &Call<'_>,
        collective: Collective,
        len: usize,
    ) -> Result<Layout> {
        let elements = call.elements("buf", len)?;
        if !collective.has_blocks() {
            return Ok(Layout { count: elements, input: 0..len, output: 0..len });
        }
        let (count, part) = match self.uses_whole_buffer(collective) {
            true => {
                let count = self.elements_per_part(call.name(), "buf", elements)?;
                (count, self.own_part(len / self.size()))
            }
            false => (elements, 0..len),
        };
        let sides = collective.sides(self.rank() as u32, self.size() as u32);
        let [input, output] = sides.map(|blocks| match blocks {
            0 => 0..0,
            1 => part.clone(),
            _ => 0..len,
        });
        Ok(Layout { count, input, output })
    }

    /// Elements of a part in a call from `send` to `recv`, of these lengths in bytes.
    fn part_out_of_place(
        &self,
        call: &Call<'_>,
        collective: Collective,
        [send, recv]: [usize; 2],
    ) -> Result<usize> {
        let (name, size) = (call.name(), self.size());
        let (send_side, recv_side) = (("send", send), ("recv", recv));
        let (part, whole) = match collective.scatters() {
            true => (recv_side, send_side),
            false => (send_side, recv_side),
        };
        let elements = call.elements(part.0, part.1)?;
        let (count, expected, why) = match collective.shape(2) {
            [2, 2] => (self.elements_per_part(name, "send", elements)?, Some(send), "as send"),
            [2, _] => (elements, recv.checked_mul(size), "size x recv"),
            [_, 2] => (elements, send.checked_mul(size), "size x send"),
            _ => (elements, Some(send), "as send"),
        };
        if self.uses_whole_buffer(collective) {
            check_length(name, whole.0, whole.1, expected, why)?;
        }
        Ok(count)
    }

    /// This rank's bytes of a buffer whose equal parts are `part_bytes` long.
    pub(crate) fn own_part(&self, part_bytes: usize) -> Range<usize> {
        self.rank() * part_bytes..(self.rank() + 1) * part_bytes
    }

    /// Elements of one of the `size` equal parts of a buffer of `len` elements.
    fn elements_per_part(
        &self,
        call: &'static str,
        argument: &'static str,
        len: usize,
    ) -> Result<usize> {
        let size = self.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        let expected = format!("a multiple of the size, {size}");
        argument_error(call, argument, format!("{len} elements long"), expected)
    }
}
