//! The pieces of calls on a stream: each fits a staging block, or a half of the scratch memory.
//! Law: ranks of a call cut it alike, so that a cut follows from arguments that all of them pass.

use std::array::from_fn;
use std::iter::successors;
use std::ops::Range;

use super::{BlockBuffer, CallBuffers};
use crate::device::cuda::CopyArea;
use crate::error::{Error, Result};

/// Alignment of the second buffer in a staging block: a cache line, at which any element may begin.
pub(super) const LINE: usize = 64;

/// The rule that cuts a call into pieces. A piece is a range in a unit of the call's own and begins
/// where the one before ends; a call on nothing has one empty piece.
pub(super) trait PieceRule {
    /// The end of the last piece.
    fn len(&self) -> usize;

    /// The end of the piece that begins at `from`.
    fn end(&self, from: usize) -> usize;

    /// The areas of the first buffer, or of the second, in a piece; [`CopyArea::at`] is not set.
    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = CopyArea>;
}

/// The elements of each of `parts` parts in a piece, if all parts share `room` bytes.
pub(super) fn elements_per_piece(room: usize, element: usize, parts: usize) -> Result<usize> {
    let share = (room - LINE) / element / parts;
    if share > 0 {
        return Ok(share);
    }
    let (doing, reason) = ("cutting a call", "there are too many ranks for one piece");
    Err(Error::Device { doing: doing.into(), reason: reason.into() })
}

/// Bytes of both buffers in a piece.
pub(super) fn lens(cut: &impl PieceRule, piece: &Range<usize>) -> [usize; 2] {
    from_fn(|side| cut.side(side, piece).map(|area| area.len).sum())
}

/// The areas of a piece with their places: the first buffer's, then the second's, aligned to
/// `align`.
pub(super) fn areas(
    cut: &impl PieceRule,
    piece: &Range<usize>,
    align: usize,
) -> impl Iterator<Item = CopyArea> {
    let second = lens(cut, piece)[0].next_multiple_of(align);
    [0, second].into_iter().enumerate().flat_map(move |(side, start)| {
        cut.side(side, piece).scan(start, |at, area| {
            let here = *at;
            *at += area.len;
            Some(CopyArea { at: here, ..area })
        })
    })
}

pub(super) fn pieces(cut: &impl PieceRule) -> impl Iterator<Item = Range<usize>> {
    successors(Some(0..cut.end(0)), move |last| {
        (last.end < cut.len()).then(|| last.end..cut.end(last.end))
    })
}

/// Blocks of one length: a piece has the same bytes of each block.
#[derive(Debug)]
pub(super) struct EvenPieces {
    sides: CallBuffers,
    /// Bytes of each block in a piece.
    step: usize,
}

impl EvenPieces {
    pub(super) fn new(room: usize, element: usize, sides: CallBuffers) -> Result<Self> {
        Ok(Self { sides, step: elements_per_piece(room, element, sides.most)? * element })
    }

    /// Pieces of so many bytes of each block.
    pub(super) fn in_steps(step: usize, sides: CallBuffers) -> Self {
        Self { sides, step }
    }
}

impl PieceRule for EvenPieces {
    fn len(&self) -> usize {
        self.sides.block
    }

    fn end(&self, from: usize) -> usize {
        self.sides.block.min(from + self.step)
    }

    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = CopyArea> {
        let CallBuffers { sides, block, .. } = self.sides;
        let (BlockBuffer { address, blocks, reads, writes, .. }, start) =
            (sides[side], piece.start);
        let len = piece.len();
        (0..blocks).map(move |number| {
            let device = address + (number * block + start) as u64;
            CopyArea { device, at: 0, len, reads, writes }
        })
    }
}

/// A buffer of consecutive parts of different lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnevenBuffer<'a> {
    /// Its name in errors.
    pub(super) argument: &'static str,
    /// On the device.
    pub(super) address: u64,
    /// Elements of each part; none if this rank does not use the buffer.
    pub(super) counts: &'a [usize],
    /// True if the buffer is read, and if it is written.
    reads: bool,
    writes: bool,
}

impl<'a> UnevenBuffer<'a> {
    pub(super) fn read(counts: &'a [usize]) -> Self {
        Self { argument: "send", address: 0, counts, reads: true, writes: false }
    }

    pub(super) fn written(counts: &'a [usize]) -> Self {
        Self { argument: "recv", address: 0, counts, reads: false, writes: true }
    }
}

/// Parts of different lengths: a piece has the same elements of each part, as far as the part goes.
pub(super) struct UnevenPieces<'a> {
    pub(super) sides: [UnevenBuffer<'a>; 2],
    pub(super) element: usize,
    /// The longest part at any rank that makes the same pieces.
    pub(super) longest: usize,
    pub(super) end: PieceEnd<'a>,
}

/// The rule for the end of a piece, before the end of all parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum PieceEnd<'a> {
    /// A fixed number of elements after the beginning.
    After(usize),
    /// As many elements of all parts, and of one more part as long as the longest, as there is room
    /// for: the piece fits at the rank with the most data.
    Filled {
        /// Elements of each part.
        counts: &'a [usize],
        room: usize,
    },
}

impl PieceEnd<'_> {
    pub(super) fn of(self, from: usize) -> usize {
        let (counts, room) = match self {
            Self::After(step) => return from + step,
            Self::Filled { counts, room } => (counts, room),
        };
        let rest = || counts.iter().map(|count| count.saturating_sub(from));
        let longest = rest().max().unwrap_or(0);
        if rest().fold(longest, usize::saturating_add) <= room {
            return from + longest;
        }
        from + room / (rest().filter(|&rest| rest > 0).count() + 1)
    }
}

impl PieceRule for UnevenPieces<'_> {
    fn len(&self) -> usize {
        self.longest
    }

    fn end(&self, from: usize) -> usize {
        self.longest.min(self.end.of(from))
    }

    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = CopyArea> {
        let UnevenBuffer { address, counts, reads, writes, .. } = self.sides[side];
        let (element, piece) = (self.element, piece.clone());
        counts.iter().scan(0, move |before, &count| {
            let start = *before + count.min(piece.start);
            let device = address + (start * element) as u64;
            *before += count;
            let len = within(&piece, count) * element;
            Some(CopyArea { device, at: 0, len, reads, writes })
        })
    }
}

/// The number of the first `count` elements that are in a piece.
pub(super) fn within(piece: &Range<usize>, count: usize) -> usize {
    count.min(piece.end) - count.min(piece.start)
}
