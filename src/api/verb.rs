//! The forms of collective calls on host memory, by bytes and so compiled once for all element
//! types, and the checks of their arguments.
//! Law: a call's arguments are checked before a byte moves.

use std::ops::Range;

use super::Communicator;
use super::uneven::Uneven;
use crate::element::{DataType, ReduceOp, Reduction};
use crate::engine::PlanBy;
use crate::error::{Error, Result};
use crate::matching::MAX_BYTES;
use crate::memory::Buffer;
use crate::plan::{Blocks, Request};
use crate::schedule::Collective;

/// A collective call without its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    /// The root may be no rank until [`Communicator::check_root`] has checked it.
    pub(crate) collective: Collective,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<Reduction>,
}

/// Makes a [`Verb`] from a row of the table of verbs and an element type.
macro_rules! verb {
    ($dtype:expr, [$of:ident ($($op:ident)?) ($($root:ident)?)]) => {
        $crate::api::verb::Verb {
            collective: $crate::schedule::Collective::$of
                $({ root: $crate::api::verb::root_rank($root) })?,
            dtype: $dtype,
            op: $crate::api::verb::verb!(@op $($op)?),
        }
    };
    (@op) => { None };
    (@op $op:ident) => { Some($op.into()) };
}
pub(crate) use verb;

/// A root as schedules number ranks. A root above `u32::MAX` becomes `u32::MAX`, which is never a
/// rank.
pub(crate) fn root_rank(root: usize) -> u32 {
    u32::try_from(root).unwrap_or(u32::MAX)
}

/// The error for an argument that does not fit.
pub(crate) fn argument_error<T>(
    call: &'static str,
    argument: &'static str,
    given: impl ToString,
    expected: impl ToString,
) -> Result<T> {
    Err(Error::argument(call, argument, given.to_string(), expected.to_string()))
}

/// The number of elements in `bytes`, which must be whole elements.
pub(crate) fn element_count(
    call: &'static str,
    argument: &'static str,
    bytes: usize,
    dtype: DataType,
) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    let expected = format!("a multiple of {}, the size of {dtype}", dtype.size());
    argument_error(call, argument, format!("{bytes} bytes long"), expected)
}

/// Refuses a message that is not whole elements, or longer than messages can be.
pub(super) fn check_message(
    call: &'static str,
    argument: &'static str,
    bytes: usize,
    dtype: DataType,
) -> Result<()> {
    element_count(call, argument, bytes, dtype)?;
    if bytes as u64 <= MAX_BYTES {
        return Ok(());
    }
    let expected = format!("at most {MAX_BYTES} bytes: send several messages");
    argument_error(call, argument, format!("{bytes} bytes long"), expected)
}

pub(super) fn check_length(
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
    argument_error(
        call.name(),
        argument,
        format!("{given} bytes long"),
        format!("{expected} bytes, {why}"),
    )
}

impl Verb {
    fn request(self, count: usize) -> Request {
        let Self { collective, dtype, op } = self;
        Request { collective, count, dtype, op }
    }

    fn by_request(self) -> (&'static str, PlanBy<'static>) {
        (self.collective.name(), PlanBy::Request)
    }

    fn elements(self, argument: &'static str, bytes: usize) -> Result<usize> {
        element_count(self.collective.name(), argument, bytes, self.dtype)
    }

    fn check_op(self) -> Result<()> {
        self.op.map_or(Ok(()), |op| check_prefix(self.collective.name(), self.collective, op))
    }
}

/// Refuses the average in a scan: each rank's prefix has another number of ranks.
pub(super) fn check_prefix(call: &'static str, of: Collective, op: Reduction) -> Result<()> {
    let is_prefix = matches!(of, Collective::Scan | Collective::Exscan);
    if !is_prefix || op != ReduceOp::Avg.into() {
        return Ok(());
    }
    let expected = "another operation: each rank's result is over another number of ranks";
    argument_error(call, "op", op, expected)
}

impl Communicator {
    /// A call with one buffer, which is both input and output.
    pub(crate) fn in_place(&mut self, verb: Verb, buf: &mut [u8]) -> Result<()> {
        self.check_verb(verb)?;
        let count = verb.elements("buf", buf.len())?;
        self.run(verb.request(count), verb.by_request(), &Buffer::in_place(buf))
    }

    /// A call in place that exchanges the `size` parts of a buffer with the other ranks.
    pub(super) fn exchange_in_place(&mut self, verb: Verb, buf: &mut [u8]) -> Result<()> {
        let elements = verb.elements("buf", buf.len())?;
        let count = self.block_count(verb.collective, "buf", elements)?;
        self.run(verb.request(count), verb.by_request(), &Buffer::in_place(buf))
    }

    /// A call in place between a buffer of `size` parts and this rank's own part of it.
    pub(super) fn in_own_part(&mut self, verb: Verb, buf: &mut [u8]) -> Result<()> {
        self.check_verb(verb)?;
        let elements = verb.elements("buf", buf.len())?;
        let count = self.block_count(verb.collective, "buf", elements)?;
        let (whole, mine) = self.whole_and_own_part(count * verb.dtype.size());
        let (input, output) = match verb.collective {
            Collective::ReduceScatter => (whole, mine),
            _ => (mine, whole),
        };
        let buffer = Buffer::in_one_memory(buf, input, output);
        self.run(verb.request(count), verb.by_request(), &buffer)
    }

    /// A call from `send` to `recv`.
    pub(crate) fn out_of_place(&mut self, verb: Verb, send: &[u8], recv: &mut [u8]) -> Result<()> {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        self.check_verb(verb)?;
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
                let count = self.block_count(AllToAll, "send", verb.elements("send", given)?)?;
                (count, ("recv", got), Some(given), "as send")
            }
            _ => (verb.elements("send", given)?, ("recv", got), Some(given), "as send"),
        };
        if self.uses_whole_buffer(verb.collective) {
            check_length(verb.collective, argument, len, expected, why)?;
        }
        self.run(verb.request(count), verb.by_request(), &Buffer::out_of_place(send, recv))
    }

    /// A call from `send` to `recv` whose parts have these lengths, in elements.
    pub(crate) fn out_of_place_v(
        &mut self,
        verb: Verb,
        send: &[u8],
        recv: &mut [u8],
        counts: &[usize],
    ) -> Result<()> {
        self.check_verb(verb)?;
        let call = Uneven::of(verb.collective);
        if verb.collective.root().is_some() {
            call.check_links(self.ring(call.name)?)?;
        }
        let mine = self.own_part_of(verb, counts, [send.len(), recv.len()])?;
        let (inputs, outputs) = if call.scatters() { (counts, mine) } else { (mine, counts) };
        let blocks = Blocks::new(inputs, outputs, counts);
        let buffer = Buffer::out_of_place(send, recv);
        self.run(verb.request(0), (call.name, PlanBy::Blocks(blocks)), &buffer)
    }

    /// Checks `counts` against the bytes of both buffers, and returns this rank's entry.
    pub(crate) fn own_part_of<'a>(
        &self,
        verb: Verb,
        counts: &'a [usize],
        [send, recv]: [usize; 2],
    ) -> Result<&'a [usize]> {
        let call = Uneven::of(verb.collective);
        let (send, recv) = (("send", send), ("recv", recv));
        let (whole, part) = if call.scatters() { (send, recv) } else { (recv, send) };
        let elements = element_count(call.name, part.0, part.1, verb.dtype)?;
        let mine = call.own_count(counts, self.size(), self.rank(), part.0, elements)?;
        if self.uses_whole_buffer(verb.collective) {
            let elements = element_count(call.name, whole.0, whole.1, verb.dtype)?;
            call.check_total("counts", counts, whole.0, elements)?;
        }
        Ok(mine)
    }

    /// True if this rank's buffer of all parts is used: in a call with a root only the root's is.
    pub(crate) fn uses_whole_buffer(&self, collective: Collective) -> bool {
        collective.root().is_none_or(|root| root as usize == self.rank())
    }

    /// Refuses a root that is no rank, and a reduction that the collective does not have.
    pub(crate) fn check_verb(&self, verb: Verb) -> Result<()> {
        self.check_root(verb.collective)?;
        verb.check_op()
    }

    /// Refuses a root that is no rank.
    pub(crate) fn check_root(&self, collective: Collective) -> Result<()> {
        let Some(root) = collective.root() else { return Ok(()) };
        if (root as usize) < self.size() {
            return Ok(());
        }
        let expected = format!("a rank below the size, {}", self.size());
        argument_error(collective.name(), "root", root, expected)
    }

    /// The bytes of all ranks' parts in a buffer, and those of this rank's part.
    pub(crate) fn whole_and_own_part(&self, part: usize) -> (Range<usize>, Range<usize>) {
        (0..self.size() * part, self.rank() * part..(self.rank() + 1) * part)
    }

    /// Elements of one of the `size` equal parts of a buffer of `len` elements.
    pub(crate) fn block_count(
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
        argument_error(call.name(), argument, format!("{len} elements long"), expected)
    }
}
