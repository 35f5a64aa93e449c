//! `Communicator::call`, which makes any collective on host memory, and the checks of its
//! arguments. The buffers are bytes, so all element types share one compiled function.
//! Law: a call's arguments are checked before a byte moves.

use std::fmt::Display;

use super::call::{Buffers, Call, Counts, Verb};
use super::layout::Layout;
use super::{Communicator, FoldOrder, uneven};
use crate::element::{DataType, ReduceOp, Reduction, ReductionKind};
use crate::engine::{CheckedCall, PlanBy};
use crate::error::{Result, argument_error};
use crate::matching::MAX_BYTES;
use crate::memory::Buffer;
use crate::plan::{Blocks, Request};
use crate::schedule::Collective;

/// The number of elements in `bytes`, which must be whole elements.
#[inline]
pub(crate) fn element_count(
    call: &'static str,
    argument: &'static str,
    bytes: usize,
    dtype: DataType,
) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size()) {
        return Ok(bytes / dtype.size());
    }
    partial_element(call, argument, bytes, (dtype.size(), &dtype))
}

/// The error of `bytes` that are not whole elements of this size.
#[cold]
fn partial_element<T>(
    call: &'static str,
    argument: &'static str,
    bytes: usize,
    (size, element): (usize, &dyn Display),
) -> Result<T> {
    let expected = format!("a multiple of {size}, the size of {element}");
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

/// The error of a call in place on parts that differ in length.
pub(crate) fn uneven_in_place_error<T>(call: &'static str) -> Result<T> {
    let expected = "two buffers: parts that differ in length have no form in place";
    argument_error(call, "buffers", "one buffer", expected)
}

/// Refuses a reduction that the type does not have, and the average in a scan: each rank's prefix
/// has another number of ranks.
#[inline]
pub(crate) fn check_reduction(
    call: &'static str,
    collective: Collective,
    dtype: DataType,
    op: Reduction,
) -> Result<()> {
    if is_reduction(collective, dtype, op) {
        return Ok(());
    }
    reduction_error(call, dtype, op)
}

#[inline]
fn is_reduction(collective: Collective, dtype: DataType, op: Reduction) -> bool {
    op.is_defined_for(dtype) && (!collective.is_prefix() || op != ReduceOp::Avg.into())
}

#[cold]
fn reduction_error(call: &'static str, dtype: DataType, op: Reduction) -> Result<()> {
    if !op.is_defined_for(dtype) {
        let (given, defined) = (format!("{op} of {dtype}"), Reduction::defined_for(dtype));
        return argument_error(call, "op", given, format!("one of {defined}"));
    }
    let expected = "another operation: each rank's result is over another number of ranks";
    argument_error(call, "op", op, expected)
}

impl Call<'_> {
    /// The number of elements in `bytes`, which must be whole elements.
    #[inline]
    pub(crate) fn elements(&self, argument: &'static str, bytes: usize) -> Result<usize> {
        let (size, element): (_, &dyn Display) = match self.op.map(Reduction::kind) {
            Some(ReductionKind::User(_, size)) if self.function.is_some() => (size, &"an element"),
            _ => (self.dtype.size(), &self.dtype),
        };
        if bytes.is_multiple_of(size) {
            return Ok(bytes / size);
        }
        partial_element(self.name(), argument, bytes, (size, element))
    }

    /// Refuses counts for a message, which has no parts.
    pub(crate) fn check_counts(&self) -> Result<()> {
        match (self.verb, self.counts) {
            (Verb::Collective(_), _) | (_, Counts::Equal) => Ok(()),
            _ => argument_error(self.name(), "counts", "given", "none: a message has no parts"),
        }
    }

    /// Refuses a collective without the reduction that it needs, or with one that has no meaning.
    #[inline]
    pub(crate) fn check_op(&self, collective: Collective) -> Result<()> {
        match self.op {
            _ if !collective.reduces() || collective == Collective::Barrier => Ok(()),
            Some(op) if is_reduction(collective, self.dtype, op) => Ok(()),
            Some(op) => reduction_error(self.name(), self.dtype, op),
            None => argument_error(self.name(), "op", "missing", "a reduction"),
        }
    }

    /// The call as the planner knows it.
    pub(crate) fn request(&self, collective: Collective, count: usize) -> Request {
        let op = self.op.filter(|_| collective.reduces());
        Request { collective, count, dtype: self.dtype, op }
    }
}

impl Communicator {
    /// Makes any call on bytes, which may have any alignment. A method such as
    /// [`Self::all_reduce_bytes`] makes the same call. In place, a call uses the memory as
    /// [`Buffers::InPlace`] says. A broadcast out of place copies the root's `send` to its `recv`
    /// too; a barrier looks at no buffer.
    ///
    /// ```
    /// # use ringreduce::{Buffers, Call, Collective, Communicator, DataType};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let (root, rank) = (0, comm.rank());
    /// let gather = Call::new(Collective::Gather { root }, DataType::U8);
    /// let mut all = vec![7; if rank == 0 { comm.size() } else { 1 }];
    /// comm.call(&gather, Buffers::InPlace(&mut all))?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the method that makes the same call.
    /// [`Error::Argument`](crate::Error::Argument) too for a call on uneven parts in place, for
    /// counts that the collective does not have, and for a reduction that is missing.
    pub fn call(&mut self, call: &Call<'_>, buffers: Buffers<&[u8], &mut [u8]>) -> Result<()> {
        call.check_counts()?;
        let collective = match call.verb {
            Verb::Collective(collective) => collective,
            Verb::Send { to } => return self.send_bytes(buffers.sent(), call.dtype, to),
            Verb::Recv { from } => return self.recv_bytes(buffers.received(), call.dtype, from),
            Verb::SendRecv { to, from } => {
                let (send, recv) = buffers.both(call.name())?;
                return self.send_recv_bytes(send, to, recv, from, call.dtype);
            }
        };
        self.check_root(call.name(), collective)?;
        call.check_op(collective)?;
        match (call.counts, buffers) {
            (Counts::Equal, _) if collective == Collective::Barrier => {
                let (mut byte, request) = ([0], Request::barrier());
                self.make(call, &request, PlanBy::Request, &Buffer::in_place(&mut byte))
            }
            (Counts::Equal, Buffers::InPlace(buf)) => self.in_place(call, collective, buf),
            (Counts::Equal, Buffers::OutOfPlace { send, recv }) => {
                self.out_of_place(call, collective, send, recv)
            }
            (Counts::Parts(counts), Buffers::OutOfPlace { send, recv }) => {
                self.out_of_place_v(call, collective, (send, recv), counts)
            }
            (Counts::Pairs { send: given, recv: got }, Buffers::OutOfPlace { send, recv }) => {
                self.exchange_v(call, collective, (send, recv), [given, got])
            }
            (_, Buffers::InPlace(_)) => uneven_in_place_error(call.name()),
        }
    }

    /// A call with one buffer. It is the input and the output if both are equally long; else it is
    /// the longer one of the two, and this rank's part of it is the shorter one.
    #[inline]
    fn in_place(&mut self, call: &Call<'_>, collective: Collective, buf: &mut [u8]) -> Result<()> {
        let Layout { count, input, output } =
            self.layout(call, collective, Buffers::InPlace(buf.len()))?;
        let buffer = Buffer::in_one_memory(buf, input, output);
        self.make(call, &call.request(collective, count), PlanBy::Request, &buffer)
    }

    /// A call from `send` to `recv`.
    fn out_of_place(
        &mut self,
        call: &Call<'_>,
        collective: Collective,
        send: &[u8],
        recv: &mut [u8],
    ) -> Result<()> {
        if matches!(collective, Collective::Broadcast { .. }) && !self.uses_whole_buffer(collective)
        {
            return self.in_place(call, collective, recv);
        }
        let lens = Buffers::OutOfPlace { send: send.len(), recv: recv.len() };
        let Layout { count, .. } = self.layout(call, collective, lens)?;
        let buffer = Buffer::out_of_place(send, recv);
        self.make(call, &call.request(collective, count), PlanBy::Request, &buffer)
    }

    /// A call from `send` to `recv` whose parts have these lengths, in elements.
    fn out_of_place_v(
        &mut self,
        call: &Call<'_>,
        collective: Collective,
        (send, recv): (&[u8], &mut [u8]),
        counts: &[usize],
    ) -> Result<()> {
        if collective.root().is_some() {
            uneven::check_links(call.name(), self.ring(call.name())?)?;
        }
        let mine = self.own_part_of(call, collective, counts, [send.len(), recv.len()])?;
        let (input, output) = if collective.scatters() { (counts, mine) } else { (mine, counts) };
        let blocks = PlanBy::Blocks(Blocks::new(input, output, counts));
        let request = call.request(collective, 0);
        self.make(call, &request, blocks, &Buffer::out_of_place(send, recv))
    }

    /// An exchange of parts whose lengths only two ranks know.
    fn exchange_v(
        &mut self,
        call: &Call<'_>,
        collective: Collective,
        (send, recv): (&[u8], &mut [u8]),
        counts: [&[usize]; 2],
    ) -> Result<()> {
        uneven::check_links(call.name(), self.ring(call.name())?)?;
        let lens = [call.elements("send", send.len())?, call.elements("recv", recv.len())?];
        uneven::check_pairs(self, call.name(), collective, counts, lens)?;
        let blocks = PlanBy::Blocks(Blocks::new(counts[0], counts[1], &[]));
        let request = call.request(collective, 0);
        self.make(call, &request, blocks, &Buffer::out_of_place(send, recv))
    }

    /// Makes a call whose arguments were checked.
    #[inline]
    fn make(
        &mut self,
        call: &Call<'_>,
        request: &Request,
        plan_by: PlanBy<'_>,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        let name = call.name();
        let (kernel, order) = call.function.unzip();
        let is_in_rank_order = order == Some(FoldOrder::Ranks);
        let (engine, settings) = self.engine_on_this_thread(name)?;
        let checked = CheckedCall::of(request, buffer, settings);
        engine.make(&CheckedCall { name, kernel, plan_by, is_in_rank_order, ..checked })
    }

    /// Checks `counts` against the bytes of both buffers, and returns this rank's entry.
    pub(crate) fn own_part_of<'a>(
        &self,
        call: &Call<'_>,
        collective: Collective,
        counts: &'a [usize],
        [send, recv]: [usize; 2],
    ) -> Result<&'a [usize]> {
        let name = uneven::name(call, collective)?;
        let (send, recv) = (("send", send), ("recv", recv));
        let (whole, part) = if collective.scatters() { (send, recv) } else { (recv, send) };
        let elements = call.elements(part.0, part.1)?;
        let mine = uneven::own_count(name, counts, (self.rank(), self.size()), part.0, elements)?;
        if self.uses_whole_buffer(collective) {
            let elements = call.elements(whole.0, whole.1)?;
            uneven::check_total(name, "counts", counts, whole.0, elements)?;
        } else {
            uneven::check_sum(name, counts, call.dtype.size())?;
        }
        Ok(mine)
    }

    /// True if this rank's buffer of all parts is used: in a call with a root only the root's is.
    pub(crate) fn uses_whole_buffer(&self, collective: Collective) -> bool {
        collective.root().is_none_or(|root| root as usize == self.rank())
    }

    /// Refuses a root that is no rank.
    #[inline]
    pub(crate) fn check_root(&self, call: &'static str, collective: Collective) -> Result<()> {
        match collective.root() {
            Some(root) if root as usize >= self.size() => root_error(call, root, self.size()),
            _ => Ok(()),
        }
    }
}

#[cold]
fn root_error(call: &'static str, root: u32, size: usize) -> Result<()> {
    // A root that schedules can't number was made the largest number.
    let given = if root == u32::MAX { format!("{root} or more") } else { root.to_string() };
    argument_error(call, "root", given, format!("a rank below the size, {size}"))
}
