//! How calls that go by way of the host are cut in pieces of which each fits a block of pinned
//! memory.
//! May touch: error. Law: ranks that meet cut alike, so a cut follows from what all of them pass.

use std::array::from_fn;
use std::iter::successors;
use std::ops::Range;

use super::{Side, Sides};
use crate::device::cuda::Area;
use crate::error::{Error, Result};

/// Where the second buffer of a piece begins behind the first: a line, at which any element may.
pub(super) const LINE: usize = 64;

/// How a call is cut in pieces. A piece is a range, in a unit of the call's own, and begins where
/// the one before ends; even of nothing there is one.
pub(super) trait Cut {
    /// Where the last piece ends.
    fn len(&self) -> usize;

    /// Where the piece ends that begins there.
    fn end(&self, from: usize) -> usize;

    /// What a piece has of the first buffer, or of the second; [`Area::at`] is not said.
    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = Area>;
}

/// Elements of so many bytes in a piece of each of so many parts, if all have so much room.
pub(super) fn share(room: usize, element: usize, parts: usize) -> Result<usize> {
    let share = (room - LINE) / element / parts;
    if share > 0 {
        return Ok(share);
    }
    let (doing, reason) = ("cutting a call", "there are too many ranks for one piece");
    Err(Error::Device { doing: doing.into(), reason: reason.into() })
}

/// Bytes of both buffers.
pub(super) fn lens(cut: &impl Cut, piece: &Range<usize>) -> [usize; 2] {
    from_fn(|side| cut.side(side, piece).map(|area| area.len).sum())
}

/// What is copied, and where it is in a block: those of the one buffer, then those of the other.
pub(super) fn areas(cut: &impl Cut, piece: &Range<usize>) -> impl Iterator<Item = Area> {
    let second = lens(cut, piece)[0].next_multiple_of(LINE);
    [0, second].into_iter().enumerate().flat_map(move |(side, start)| {
        cut.side(side, piece).scan(start, |at, area| {
            let here = *at;
            *at += area.len;
            Some(Area { at: here, ..area })
        })
    })
}

/// All pieces of a call.
pub(super) fn pieces(cut: &impl Cut) -> impl Iterator<Item = Range<usize>> {
    successors(Some(0..cut.end(0)), move |last| {
        (last.end < cut.len()).then(|| last.end..cut.end(last.end))
    })
}

/// Blocks of one length, of which a piece has the same bytes.
#[derive(Debug)]
pub(super) struct Even {
    sides: Sides,
    /// Bytes.
    step: usize,
}

impl Even {
    pub(super) fn new(room: usize, element: usize, sides: Sides) -> Result<Self> {
        Ok(Self { sides, step: share(room, element, sides.most)? * element })
    }
}

impl Cut for Even {
    fn len(&self) -> usize {
        self.sides.block
    }

    fn end(&self, from: usize) -> usize {
        self.sides.block.min(from + self.step)
    }

    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = Area> {
        let Sides { sides, block, .. } = self.sides;
        let (Side { device, blocks, reads, writes }, start) = (sides[side], piece.start);
        let len = piece.len();
        (0..blocks).map(move |number| {
            let device = device + (number * block + start) as u64;
            Area { device, at: 0, len, reads, writes }
        })
    }
}

/// A buffer of parts that follow each other and differ in length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    device: u64,
    /// Elements of each part.
    counts: &'a [usize],
    /// Is it copied in, and is it copied out?
    reads: bool,
    writes: bool,
}

impl<'a> Parts<'a> {
    pub(super) fn none() -> Self {
        Self { device: 0, counts: &[], reads: false, writes: false }
    }

    pub(super) fn read(device: u64, counts: &'a [usize]) -> Self {
        Self { device, counts, reads: true, writes: false }
    }

    pub(super) fn written(device: u64, counts: &'a [usize]) -> Self {
        Self { device, counts, reads: false, writes: true }
    }
}

/// Parts that differ in length, of which a piece has the same elements as far as they go.
pub(super) struct Uneven<'a> {
    pub(super) sides: [Parts<'a>; 2],
    /// Bytes of an element.
    pub(super) element: usize,
    /// The longest part at any rank that has to make as many pieces.
    pub(super) longest: usize,
    pub(super) end: End<'a>,
}

/// Where a piece of uneven parts ends, unless that is the end of all.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    /// So many elements on.
    After(usize),
    /// Where it has as much of all parts, and of one more that is as long as any, as there is room
    /// for, in elements: what the rank has that has most of a call.
    Filled {
        /// Elements of each part.
        counts: &'a [usize],
        room: usize,
    },
}

impl End<'_> {
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

impl Cut for Uneven<'_> {
    fn len(&self) -> usize {
        self.longest
    }

    fn end(&self, from: usize) -> usize {
        self.longest.min(self.end.of(from))
    }

    fn side(&self, side: usize, piece: &Range<usize>) -> impl Iterator<Item = Area> {
        let Parts { device, counts, reads, writes } = self.sides[side];
        let (element, piece) = (self.element, piece.clone());
        counts.iter().scan(0, move |before, &count| {
            let start = *before + count.min(piece.start);
            let device = device + (start * element) as u64;
            *before += count;
            let len = within(&piece, count) * element;
            Some(Area { device, at: 0, len, reads, writes })
        })
    }
}

/// How many of the first `count` elements are in a piece.
pub(super) fn within(piece: &Range<usize>, count: usize) -> usize {
    count.min(piece.end) - count.min(piece.start)
}
