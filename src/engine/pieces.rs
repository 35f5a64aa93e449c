//! Calls made in pieces, through memory of the communicator's own: reductions that travel as
//! another type, and those by a function for which contributions have to be gathered.
//! May touch: as `comm`. Law: a piece at a time, through memory that is kept; each is a call of its
//! own that stands for the whole, so that ranks whose wholes differ are told at the first.

use std::ops::Range;

use bytemuck::cast_slice_mut;

use super::Head;
use crate::api::Communicator;
use crate::element::DataType;
use crate::error::Result;
use crate::kernel::{Kernel, convert, copy};
use crate::memory::Buffer;
use crate::plan::{Blocks, Plan, Planner, Request};
use crate::schedule::{Collective, Space};

/// Bytes that are in that memory at once, about: few enough to stay in a core's cache.
const PIECE: usize = 1 << 20;

/// A call, all of it.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a> {
    pub(crate) head: &'a Head<'a>,
    pub(crate) request: &'a Request,
    /// Where its parts differ in length.
    pub(crate) blocks: Option<Blocks<'a>>,
    pub(crate) buffer: &'a Buffer<'a>,
}

impl Whole<'_> {
    /// Elements of a part of its input.
    fn count(&self, part: usize) -> usize {
        self.blocks.map_or(self.request.count, |blocks| blocks.input[part])
    }
}

/// The calls that it is made by.
pub(crate) struct Pieces<'a> {
    /// Each of them, but for its length. One that does not reduce brings what all ranks
    /// contribute, to be folded here in their order.
    pub(crate) call: Request,
    /// What folds, in the calls or here.
    pub(crate) kernel: Kernel<'a>,
    /// What contributions are multiplied by as they set off.
    pub(crate) scale: Option<f32>,
}

impl Pieces<'_> {
    /// What is in that memory for each element of a part of a call of so many, among `size` ranks.
    fn blocks(&self, parts: usize, size: usize) -> usize {
        if self.folds_here() { size } else { parts }
    }

    /// Elements of each part that are in one of them.
    fn most(&self, parts: usize, size: usize) -> usize {
        (PIECE / self.call.element_size() / self.blocks(parts, size)).max(1)
    }

    fn folds_here(&self) -> bool {
        !self.call.collective.reduces()
    }

    /// Those of `request`: so many like the first, and what is left.
    pub(crate) fn of(&self, request: &Request, size: usize) -> (Request, usize, Option<Request>) {
        let most = self.most(parts(request, size), size);
        let piece = |count| Request { count, ..self.call };
        match (request.count / most, request.count % most) {
            (0, count) => (piece(count), 1, None),
            (full, 0) => (piece(most), full, None),
            (full, rest) => (piece(most), full, Some(piece(rest))),
        }
    }
}

/// Into how many parts the input of a call among `size` ranks is cut.
fn parts(request: &Request, size: usize) -> usize {
    if request.collective.has_blocks() { size } else { 1 }
}

/// Elements of a memory, from one on.
#[derive(Clone, Copy)]
struct Elements<'a> {
    buffer: &'a Buffer<'a>,
    space: Space,
    at: usize,
    dtype: DataType,
    /// Bytes of each.
    size: usize,
}

impl<'a> Elements<'a> {
    fn of(call: &Request, buffer: &'a Buffer<'a>, space: Space, at: usize) -> Self {
        Self { buffer, space, at, dtype: call.dtype, size: call.element_size() }
    }

    fn bytes(&self, range: Range<usize>) -> Range<usize> {
        (self.at + range.start) * self.size..(self.at + range.end) * self.size
    }

    /// How many of `range` follow each other in memory.
    fn together(&self, range: Range<usize>) -> usize {
        let bytes = self.bytes(range);
        self.buffer.together(self.space, bytes.start, bytes.len()) / self.size
    }

    /// Makes the first `count` of these from others.
    fn take(&self, count: usize, scale: Option<f32>, from: Elements<'_>) {
        let mut done = 0;
        while done < count {
            let next = done + self.together(done..done + from.together(done..count));
            let (source, target) = (from.bytes(done..next), self.bytes(done..next));
            if from.dtype == self.dtype {
                copy(
                    self.buffer.dst(self.space, target),
                    None,
                    from.buffer.src(from.space, source),
                );
            } else {
                let after = |start, bytes: Range<usize>| start + bytes.start..start + bytes.end;
                let read = |bytes| from.buffer.src(from.space, after(source.start, bytes));
                let write = |bytes| self.buffer.dst(self.space, after(target.start, bytes));
                convert(next - done, scale, (from.dtype, read), (self.dtype, write));
            }
            done = next;
        }
    }
}

/// The plan for a call.
pub(crate) fn plan<'p>(
    planner: &'p mut Planner,
    request: &Request,
    blocks: Option<Blocks<'_>>,
) -> Plan<'p> {
    match blocks {
        None => planner.plan(request),
        Some(blocks) => planner.uneven(request, blocks),
    }
}

impl Communicator {
    /// Makes a call in pieces. What a failure leaves of the buffer is up to the caller.
    pub(crate) fn in_pieces(&mut self, whole: &Whole<'_>, pieces: &Pieces<'_>) -> Result<()> {
        let (size, parts) = (self.size(), parts(whole.request, self.size()));
        let longest = (0..parts).map(|part| whole.count(part)).max().unwrap_or(0);
        let (blocks, most) = (pieces.blocks(parts, size), pieces.most(parts, size));
        let needed = blocks * most.min(longest) * pieces.call.element_size();
        let mut memory = std::mem::take(&mut self.at_home(whole.head.name)?.0.own);
        memory.resize(memory.len().max(needed.div_ceil(size_of::<f32>())), 0.0);
        // Once at least: an empty buffer too is a call that the others are told of.
        let done = (0..longest.max(1)).step_by(most).try_for_each(|at| {
            let piece = at..longest.min(at + most);
            self.piece(whole, pieces, piece, cast_slice_mut(&mut memory))
        });
        if let Some(engine) = &mut self.engine {
            engine.own = memory;
        }
        done
    }

    /// Makes these elements of each part; this rank gets those of one.
    fn piece(
        &mut self,
        whole: &Whole<'_>,
        pieces: &Pieces<'_>,
        piece: Range<usize>,
        memory: &mut [u8],
    ) -> Result<()> {
        let Whole { head, request, blocks, buffer } = *whole;
        let (me, size, parts) = (self.rank(), self.size(), parts(request, self.size()));
        let own = if parts == 1 { 0 } else { me };
        let inside = |part| whole.count(part).min(piece.end).saturating_sub(piece.start);
        let count = inside(own);
        // Those whose parts differ count nothing.
        let call = Request { count: count.min(request.count), ..pieces.call };
        // What everybody's is gathered of stands in its place at once.
        let first = if pieces.folds_here() && parts == 1 { me * count } else { 0 };
        let (mut from, mut to, mut result) = (piece.start, first, 0..0);
        let all = Buffer::in_place(&mut *memory);
        for part in 0..parts {
            let given = Elements::of(request, buffer, Space::Input, from);
            Elements::of(&call, &all, Space::Output, to).take(inside(part), pieces.scale, given);
            if part == own {
                result = to..to + inside(part);
            }
            (from, to) = (from + whole.count(part), to + inside(part));
        }
        if pieces.folds_here() {
            result = 0..size * count;
        }
        let bytes = |of: Range<usize>| of.start * call.element_size()..of.end * call.element_size();
        let places = Buffer::within(memory, bytes(first..to), bytes(result));
        let stands_for = request.digest() ^ head.stands_for;
        let Head { name, uneven, .. } = *head;
        let part = Head { name, stands_for, uneven, ..Head::of(&call, pieces.kernel) };
        let blocks = blocks.map(|blocks| Blocks { window: (piece.start, piece.end), ..blocks });
        self.walk(&part, &places, |planner| plan(planner, &call, blocks))?;
        if pieces.folds_here() {
            let of = |rank| bytes(rank * count..(rank + 1) * count);
            for rank in 1..size {
                let sources = [of(0), of(rank)].map(|bytes| places.src(Space::Output, bytes));
                pieces.kernel.fold(true, &mut [places.dst(Space::Output, of(0))], &sources);
            }
        }
        let gets = match request.collective {
            Collective::Exscan => me > 0,
            other => other.root().is_none_or(|root| root as usize == me),
        };
        if gets {
            let made = Elements::of(&call, &places, Space::Output, 0);
            Elements::of(request, buffer, Space::Output, piece.start).take(count, None, made);
        }
        Ok(())
    }
}
