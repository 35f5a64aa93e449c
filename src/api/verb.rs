//! What the verbs on host memory come down to, whatever the type of the elements: a few functions
//! of bytes, compiled once. May touch: as `comm`. Law: a call's arguments are checked before a byte
//! moves.

use std::ops::Range;

use super::Communicator;
use super::uneven::Uneven;
use crate::element::{DataType, ReduceOp, Reduction};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::plan::{Blocks, Request};
use crate::schedule::Collective;

/// A collective call without its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    /// Its root may be no rank, until the call checks it.
    pub(crate) collective: Collective,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<Reduction>,
}

/// A root as schedules number ranks. What is beyond their numbers is no rank of any world.
pub(crate) fn root_rank(root: usize) -> u32 {
    u32::try_from(root).unwrap_or(u32::MAX)
}

/// An argument that does not fit.
pub(crate) fn refuse<T>(
    call: &'static str,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T> {
    let (given, expected) = (given.to_string(), expected.to_string());
    Err(Error::Argument { call, argument, given, expected })
}

/// Whole elements in `bytes`.
pub(super) fn count(
    call: &'static str,
    argument: &'static str,
    bytes: usize,
    dtype: DataType,
) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    let expected = format!("a multiple of {}, the size of {dtype}", dtype.size());
    refuse(call, argument, format!("{bytes} bytes long"), expected)
}

pub(super) fn same_length(
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
    refuse(call.name(), argument, format!("{given} bytes long"), format!("{expected} bytes, {why}"))
}

impl Verb {
    fn request(self, count: usize) -> Request {
        let Self { collective, dtype, op } = self;
        Request { collective, count, dtype, op }
    }

    /// Elements of a buffer.
    fn elements(self, argument: &'static str, bytes: usize) -> Result<usize> {
        count(self.collective.name(), argument, bytes, self.dtype)
    }

    /// A prefix has no average: each rank's result is over another number of ranks.
    fn has_its_op(self) -> Result<()> {
        let is_prefix = matches!(self.collective, Collective::Scan | Collective::Exscan);
        match self.op {
            Some(op) if is_prefix && op == ReduceOp::Avg.into() => {
                let expected = "another operation: each rank's result is over another number of \
                                ranks";
                refuse(self.collective.name(), "op", op, expected)
            }
            _ => Ok(()),
        }
    }
}

impl Communicator {
    /// A call whose one buffer is both what this rank gives and what it gets.
    pub(crate) fn in_place(&mut self, verb: Verb, buf: &mut [u8]) -> Result<()> {
        self.is_possible(verb)?;
        let mut count = verb.elements("buf", buf.len())?;
        if verb.collective == Collective::AllToAll {
            count = self.part(verb.collective, "buf", count)?;
        }
        self.run(&verb.request(count), &Buffer::in_place(buf))
    }

    /// A call in place between a buffer of `size` parts and this rank's own part of it.
    pub(super) fn in_own_part(&mut self, verb: Verb, buf: &mut [u8]) -> Result<()> {
        self.is_possible(verb)?;
        let elements = verb.elements("buf", buf.len())?;
        let count = self.part(verb.collective, "buf", elements)?;
        let (whole, mine) = self.whole_and_own_part(count * verb.dtype.size());
        let (input, output) = match verb.collective {
            Collective::ReduceScatter => (whole, mine),
            _ => (mine, whole),
        };
        self.run(&verb.request(count), &Buffer::within(buf, input, output))
    }

    /// A call from `send` to `recv`.
    pub(crate) fn out_of_place(&mut self, verb: Verb, send: &[u8], recv: &mut [u8]) -> Result<()> {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        self.is_possible(verb)?;
        let (size, given, got) = (self.size(), send.len(), recv.len());
        let (count, (argument, len), expected, why) = match verb.collective {
            ReduceScatter | Scatter { .. } => {
                let whole = got.checked_mul(size);
                (verb.elements("recv", got)?, ("send", given), whole, "size x recv")
            }
            AllGather | Gather { .. } => {
                let whole = given.checked_mul(size);
                (verb.elements("send", given)?, ("recv", got), whole, "size x send")
            }
            AllToAll => {
                let count = self.part(AllToAll, "send", verb.elements("send", given)?)?;
                (count, ("recv", got), Some(given), "as send")
            }
            _ => (verb.elements("send", given)?, ("recv", got), Some(given), "as send"),
        };
        if self.looks_at_all(verb.collective) {
            same_length(verb.collective, argument, len, expected, why)?;
        }
        self.run(&verb.request(count), &Buffer::apart(send, recv))
    }

    /// A call from `send` to `recv` whose parts have these lengths, in elements.
    pub(crate) fn out_of_place_v(
        &mut self,
        verb: Verb,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
    ) -> Result<()> {
        self.is_possible(verb)?;
        let call = Uneven::of(verb.collective);
        if verb.collective.root().is_some() {
            call.all_pairs(self.ring(call.name)?)?;
        }
        let scatters =
            matches!(verb.collective, Collective::ReduceScatter | Collective::Scatter { .. });
        let (send_bytes, recv_bytes) = (("send", send.len()), ("recv", recv.len()));
        let (whole, part) =
            if scatters { (send_bytes, recv_bytes) } else { (recv_bytes, send_bytes) };
        let elements = count(call.name, part.0, part.1, verb.dtype)?;
        let mine = call.own(counts, self.size(), self.rank(), part.0, elements)?;
        if self.looks_at_all(verb.collective) {
            let elements = count(call.name, whole.0, whole.1, verb.dtype)?;
            call.whole("counts", counts, whole.0, elements)?;
        }
        let (inputs, outputs) = if scatters { (counts, mine) } else { (mine, counts) };
        let blocks = Blocks::new(inputs, outputs, counts);
        self.run_uneven(call.name, &verb.request(0), blocks, &Buffer::apart(send, recv))
    }

    /// Is the buffer of all parts looked at here? Of a call with a root it is the root's alone.
    fn looks_at_all(&self, collective: Collective) -> bool {
        collective.root().is_none_or(|root| root as usize == self.rank())
    }

    /// Is there such a root, and such a reduction?
    fn is_possible(&self, verb: Verb) -> Result<()> {
        self.has_root(verb.collective)?;
        verb.has_its_op()
    }

    /// Is the collective's root a rank?
    pub(crate) fn has_root(&self, collective: Collective) -> Result<()> {
        let Some(root) = collective.root() else { return Ok(()) };
        if (root as usize) < self.size() {
            return Ok(());
        }
        let expected = format!("a rank below the size, {}", self.size());
        refuse(collective.name(), "root", root, expected)
    }

    /// Where all ranks' parts of so many bytes are, and where this rank's own one is.
    pub(super) fn whole_and_own_part(&self, part: usize) -> (Range<usize>, Range<usize>) {
        (0..self.size() * part, self.rank() * part..(self.rank() + 1) * part)
    }

    /// One of `size` equal parts of `len` elements.
    pub(crate) fn part(
        &self,
        call: Collective,
        argument: &'static str,
        len: usize,
    ) -> Result<usize> {
        let size = self.size();
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        let expected = format!("a multiple of the size, {size}");
        refuse(call.name(), argument, format!("{len} elements long"), expected)
    }
}
