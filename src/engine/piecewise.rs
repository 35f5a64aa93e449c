//! Calls that are made piece by piece, through memory of the communicator: reductions that travel
//! in another form, and user-defined reductions whose contributions are gathered and folded here.
//! Law: each piece is a call of its own that carries the digest of the whole call, so ranks whose
//! calls differ find out at the first piece. All pieces and later calls reuse one memory.

use std::mem::take;
use std::ops::Range;

use super::Engine;
use super::call::{CheckedCall, PlanBy};
use super::make::StageResult;
use crate::element::Wire;
use crate::kernel::{CONVERTED, Kernel, copy, narrow, widen};
use crate::memory::{Buffer, Dst, Src};
use crate::plan::{Blocks, Request};
use crate::schedule::{ChunkResult, Space};

/// Bytes of a piece, about: few enough to stay in a core's cache.
const PIECE_BYTES: usize = 1 << 20;

/// The calls by which a whole call is made.
pub(crate) struct Piecewise<'a> {
    /// The request of a piece, except for its length. If it does not reduce, it gathers the
    /// contributions of all ranks, which are folded here in the order of ranks.
    pub(crate) call: Request,
    /// The kernel of the reduction, in the calls or here.
    pub(crate) kernel: Kernel<'a>,
    /// The factor of contributions, applied as they are converted.
    pub(crate) scale: Option<f32>,
}

impl Piecewise<'_> {
    /// Parts of a piece in memory: one per contribution if they are folded here, else one per part
    /// of the input.
    fn parts(&self, parts: usize, size: usize) -> usize {
        if self.folds_locally() { size } else { parts }
    }

    /// Elements of each part that a piece has: whole blocks, if they travel in blocks.
    fn elements_per_piece(&self, parts: usize, size: usize) -> usize {
        let travelling = PIECE_BYTES / self.call.element_size() / self.parts(parts, size);
        travelling.max(1) * self.call.wire().elements()
    }

    /// The blocks, or elements, as which so many elements of a part travel. The last block of a
    /// part may not be full.
    fn travelling(&self, elements: usize) -> usize {
        elements.div_ceil(self.call.wire().elements())
    }

    fn folds_locally(&self) -> bool {
        !self.call.collective.reduces()
    }

    /// The pieces of `request`: the request of a full piece, how many of these there are, and the
    /// request of the shorter last piece, if there is one.
    pub(crate) fn split(
        &self,
        request: &Request,
        size: usize,
    ) -> (Request, usize, Option<Request>) {
        let most = self.elements_per_piece(parts(request, size), size);
        let piece = |elements| Request { count: self.travelling(elements), ..self.call };
        match (request.count / most, request.count % most) {
            (0, count) => (piece(count), 1, None),
            (full, 0) => (piece(most), full, None),
            (full, rest) => (piece(most), full, Some(piece(rest))),
        }
    }
}

/// The number of parts into which the input of a call among `size` ranks is cut.
fn parts(request: &Request, size: usize) -> usize {
    if request.collective.has_blocks() { size } else { 1 }
}

/// Elements of a memory. They lie there one by one, or in blocks of which each is as an element.
#[derive(Clone, Copy)]
struct Elements<'a> {
    buffer: &'a Buffer<'a>,
    space: Space,
    /// The byte at which the first element or block begins.
    at: usize,
    wire: Wire,
    /// Bytes of an element or block.
    size: usize,
}

impl<'a> Elements<'a> {
    /// The elements from the one, or the block, with number `at` on.
    fn of(call: &Request, buffer: &'a Buffer<'a>, space: Space, at: usize) -> Self {
        let size = call.element_size();
        Self { buffer, space, at: at * size, wire: call.wire(), size }
    }

    /// The bytes of a range of elements that begins with a whole block.
    fn bytes(&self, range: Range<usize>) -> Range<usize> {
        let each = self.wire.elements();
        self.at + range.start / each * self.size..self.at + range.end.div_ceil(each) * self.size
    }

    /// The parts of a range of elements that each lie in one piece of memory. Blocks do so anyway.
    fn contiguous(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut start = range.start;
        std::iter::from_fn(move || {
            let bytes = self.bytes(start..range.end);
            let len = self.buffer.contiguous_len(self.space, bytes.start, bytes.len());
            let elements = len / self.size * self.wire.elements();
            let next = start..range.end.min(start + elements);
            start = next.end;
            (!next.is_empty()).then_some(next)
        })
    }

    fn src(&self, range: Range<usize>) -> Src<'a> {
        self.buffer.src(self.space, self.bytes(range))
    }

    fn dst(&self, range: Range<usize>) -> Dst<'a> {
        self.buffer.dst(self.space, self.bytes(range))
    }

    /// Copies `count` elements from another memory to the start of this one, with conversion.
    fn copy_from(&self, count: usize, scale: Option<f32>, from: Elements<'_>) {
        if from.wire == self.wire {
            let parts = from.contiguous(0..count).flat_map(|part| self.contiguous(part));
            return parts.for_each(|part| copy(self.dst(part.clone()), None, from.src(part)));
        }
        let mut wide = [0.0; CONVERTED];
        for start in (0..count).step_by(CONVERTED) {
            let range = start..count.min(start + CONVERTED);
            let wide = &mut wide[..range.len()];
            for part in from.contiguous(range.clone()) {
                let place = part.start - start..part.end - start;
                widen(from.wire, from.src(part), &mut wide[place]);
            }
            if let Some(scale) = scale {
                wide.iter_mut().for_each(|value| *value *= scale);
            }
            for part in self.contiguous(range) {
                let place = part.start - start..part.end - start;
                narrow(self.wire, &wide[place], self.dst(part));
            }
        }
    }
}

/// Elements of a part of the input of a call.
fn count(call: &CheckedCall<'_>, part: usize) -> usize {
    call.blocks().map_or(call.request.count, |blocks| blocks.input[part])
}

impl Engine {
    /// Makes a call piece by piece. The caller restores the buffer after a failure.
    pub(super) fn make_piecewise(
        &mut self,
        call: &CheckedCall<'_>,
        piecewise: &Piecewise<'_>,
    ) -> StageResult<()> {
        let size = self.rank_info.size();
        let parts = parts(call.request, size);
        let longest = (0..parts).map(|part| count(call, part)).max().unwrap_or(0);
        let most = piecewise.elements_per_piece(parts, size);
        let travelling = piecewise.travelling(most.min(longest));
        let needed = piecewise.parts(parts, size) * travelling * piecewise.call.element_size();
        let mut memory = take(&mut self.piece_memory);
        let pieces = memory.bytes(needed).map_err(|error| self.broken_by(error))?;
        // At least one piece: an empty buffer too is a call that the other ranks take part in.
        let done = (0..longest.max(1)).step_by(most).try_for_each(|at| {
            let piece = at..longest.min(at + most);
            self.make_piece(call, piecewise, piece, pieces)
        });
        self.piece_memory = memory;
        done
    }

    /// Makes the call for a range of elements of each part; this rank gets the result of one part.
    ///
    /// For example rank 1 in a `reduce_scatter` among four ranks, with three elements per part and
    /// two per piece:
    ///
    /// | Piece | Input, converted | to memory | Result in memory | Output, converted back |
    /// |---|---|---|---|---|
    /// | 0..2 | 0..2, 3..5, 6..8, 9..11 | 0..2, 2..4, 4..6, 6..8 | 2..4 | 0..2 |
    /// | 2..3 | 2..3, 5..6, 8..9, 11..12 | 0..1, 1..2, 2..3, 3..4 | 1..2 | 2..3 |
    fn make_piece(
        &mut self,
        whole: &CheckedCall<'_>,
        piecewise: &Piecewise<'_>,
        piece: Range<usize>,
        memory: &mut [u8],
    ) -> StageResult<()> {
        let CheckedCall { request, buffer, settings, .. } = whole;
        let (me, size) = (self.rank_info.rank, self.rank_info.size());
        let parts = parts(request, size);
        let own = if parts == 1 { 0 } else { me };
        let inside = |part| count(whole, part).min(piece.end).saturating_sub(piece.start);
        let travelling = |part| piecewise.travelling(inside(part));
        let count_here = travelling(own);
        // The count of a call whose parts differ in length is 0.
        let call = Request { count: count_here.min(request.count), ..piecewise.call };
        // In an all-gather, this rank's contribution goes straight to its place in the result.
        let first = if piecewise.folds_locally() && parts == 1 { me * count_here } else { 0 };
        let (mut from, mut to, mut result) = (piece.start, first, 0..0);
        let all = Buffer::in_place(&mut *memory);
        for part in 0..parts {
            let given = Elements::of(request, buffer, Space::Input, from);
            Elements::of(&call, &all, Space::Output, to).copy_from(
                inside(part),
                piecewise.scale,
                given,
            );
            if part == own {
                result = to..to + travelling(part);
            }
            (from, to) = (from + count(whole, part), to + travelling(part));
        }
        if piecewise.folds_locally() {
            result = 0..size * count_here;
        }
        let bytes = |of: Range<usize>| of.start * call.element_size()..of.end * call.element_size();
        let places = Buffer::in_one_memory(memory, bytes(first..to), bytes(result));
        let plan_by = match whole.blocks() {
            Some(blocks) => PlanBy::Blocks(Blocks { window: (piece.start, piece.end), ..blocks }),
            None => whole.plan_by,
        };
        self.make_at_once(&CheckedCall {
            name: whole.name,
            parent_digest: request.digest() ^ whole.parent_digest,
            plan_by,
            kernel: Some(&piecewise.kernel),
            ..CheckedCall::of(&call, &places, settings)
        })?;
        if piecewise.folds_locally() {
            let of = |rank| bytes(rank * count_here..(rank + 1) * count_here);
            for rank in 1..size {
                let sources = [of(0), of(rank)].map(|bytes| places.src(Space::Output, bytes));
                piecewise.kernel.fold(true, &mut [places.dst(Space::Output, of(0))], &sources);
            }
        }
        if request.collective.result(me as u32, 0) != ChunkResult::Untouched {
            let made = Elements::of(&call, &places, Space::Output, 0);
            let to = Elements::of(request, buffer, Space::Output, piece.start);
            to.copy_from(inside(own), None, made);
        }
        Ok(())
    }
}
