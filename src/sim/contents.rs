//! The contents of all memories during a walk: which contributions each slice holds. Violations of
//! laws 1, 2, 3, 5, 7 and 8 are found here.

use super::check::Report;
use super::network::{Cursor, Work};
use super::shape::Shape;
use super::terms::Terms;
use super::violation::Violation;
use crate::schedule::{ChunkResult, Collective, Op, Order, Place, Schedule, Space, Step};

/// A term over the ranks' contributions to one round's piece of one input chunk.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Value {
    round: u32,
    chunk: u32,
    term: u32,
}

/// The contents of a slot: a value, and the slice that it belongs to.
#[derive(Clone, Copy, Default)]
pub(super) struct Message {
    round: usize,
    slice: usize,
    bytes: usize,
    chunk: u32,
    value: Value,
}

/// The contents of a slice of a memory: its value, the step that stored it (if one did), and
/// whether it has been read since.
#[derive(Clone, Copy)]
struct Cell {
    value: Value,
    stored: Option<u32>,
    read: bool,
}

/// A rank, and the term of its result.
#[derive(Clone, Copy)]
struct RightResult {
    rank: u32,
    term: u32,
}

pub(super) struct Contents<'a> {
    collective: Collective,
    in_place: bool,
    schedules: &'a [Schedule],
    shape: &'a Shape<'a>,
    terms: Terms,
    /// The index of each rank's first cell.
    starts: Vec<usize>,
    cells: Vec<Cell>,
    report: Report,
}

impl<'a> Contents<'a> {
    pub(super) fn new(
        collective: Collective,
        schedules: &'a [Schedule],
        shape: &'a Shape<'a>,
        in_place: bool,
    ) -> Self {
        let size = schedules.len() as u32;
        let terms = Terms::new(size);
        let garbage = Value { round: u32::MAX, chunk: u32::MAX, term: terms.garbage() };
        let mut contents = Self {
            collective,
            in_place,
            schedules,
            shape,
            terms,
            starts: Vec::with_capacity(schedules.len()),
            cells: Vec::new(),
            report: Report { exact: true, rank_order: true, ..Report::default() },
        };
        for (rank, schedule) in (0..).zip(schedules) {
            let (rounds, slices) = (shape.rounds(rank), shape.most_slices(rank));
            contents.starts.push(contents.cells.len());
            let chunks = (schedule.input + schedule.output) as usize * rounds;
            let len = contents.cells.len() + (chunks + schedule.scratch.len()) * slices;
            contents.cells.resize(len, Cell { value: garbage, stored: None, read: false });
        }
        for rank in (0..size).filter(|&rank| collective.has_input(rank)) {
            for chunk in 0..schedules[rank as usize].input {
                for round in 0..shape.rounds(rank) {
                    for slice in 0..shape.most_slices(rank) {
                        let at = Cursor { rank, round, step: 0, slice };
                        let index = contents.index(&at, Place::input(chunk));
                        let value = Value { round: round as u32, chunk, term: rank };
                        contents.cells[index].value = value;
                    }
                }
            }
        }
        contents
    }

    /// The index of a slice's cell. The scratch has cells for one round.
    fn index(&self, at: &Cursor, place: Place) -> usize {
        let rank = at.rank as usize;
        let place = if self.in_place { self.collective.in_place(at.rank, place) } else { place };
        let Schedule { input, output, .. } = self.schedules[rank];
        let (rounds, chunk) = (self.shape.rounds(at.rank), place.chunk as usize);
        let piece = match place.space {
            Space::Input => chunk * rounds + at.round,
            Space::Output => (input as usize + chunk) * rounds + at.round,
            Space::Scratch => (input + output) as usize * rounds + chunk,
        };
        self.starts[rank] + piece * self.shape.most_slices(at.rank) + at.slice
    }

    fn read(&mut self, at: &Cursor, place: Place) -> Value {
        let index = self.index(at, place);
        let cell = &mut self.cells[index];
        cell.read = true;
        cell.value
    }

    /// Law 3, during the walk.
    fn store(&mut self, at: &Cursor, step: &Step, value: Value) -> Result<(), Violation> {
        let (rank, number) = (at.rank, at.step as u32);
        let chunk = step.dst.chunk;
        let needless = |step| Err(Violation::NeedlessStore { rank, chunk, step });
        let asked = step.dst.space == Space::Scratch
            || self.collective.result(rank, chunk) != ChunkResult::Untouched;
        if !asked {
            return needless(number);
        }
        let index = self.index(at, step.dst);
        match self.cells[index] {
            Cell { stored: Some(earlier), read: false, .. } => return needless(earlier),
            _ => self.cells[index] = Cell { value, stored: Some(number), read: false },
        }
        self.report.stored += 1;
        Ok(())
    }

    /// The fold of two values; undefined contents unless both belong to the same piece.
    fn fold(&mut self, order: Order, incoming: Value, mine: Value) -> Value {
        let (left, right) = match order {
            Order::IncomingFirst => (incoming.term, mine.term),
            Order::LocalFirst => (mine.term, incoming.term),
        };
        let same = (incoming.round, incoming.chunk) == (mine.round, mine.chunk);
        let term = if same { self.terms.fold(left, right) } else { self.terms.garbage() };
        Value { term, ..incoming }
    }

    /// Laws 1, 2, 7 and 8, and the rest of law 3, at the end of the walk.
    pub(super) fn finish(mut self) -> Result<Report, Violation> {
        let mut proven = Vec::new();
        for rank in 0..self.schedules.len() as u32 {
            self.check_scratch_is_read(rank)?;
            for chunk in 0..self.schedules[rank as usize].output {
                let expected = self.collective.result(rank, chunk);
                if expected == ChunkResult::Untouched {
                    continue;
                }
                for round in 0..self.shape.rounds(rank) {
                    let place = Place::output(chunk);
                    for slice in 0..self.shape.slices(rank, round, place) {
                        let at = Cursor { rank, round, step: 0, slice };
                        self.check_slice(&at, chunk, expected, &mut proven)?;
                    }
                }
            }
        }
        Ok(self.report)
    }

    /// Law 3: every slice stored in the scratch was read.
    fn check_scratch_is_read(&self, rank: u32) -> Result<(), Violation> {
        for chunk in 0..self.schedules[rank as usize].scratch.len() as u32 {
            for slice in 0..self.shape.most_slices(rank) {
                let at = Cursor { rank, slice, ..Cursor::default() };
                let cell = self.cells[self.index(&at, Place::scratch(chunk))];
                if let Cell { stored: Some(step), read: false, .. } = cell {
                    return Err(Violation::NeedlessStore { rank, chunk, step });
                }
            }
        }
        Ok(())
    }

    /// Checks a slice of the output. `proven` has, by slice, a result that was found right: an
    /// equal term needs no second check.
    fn check_slice(
        &mut self,
        at: &Cursor,
        chunk: u32,
        expected: ChunkResult,
        proven: &mut Vec<Option<RightResult>>,
    ) -> Result<(), Violation> {
        let Cell { value, stored: step, .. } = self.cells[self.index(at, Place::output(chunk))];
        let rank = at.rank;
        let incomplete = Err(Violation::Incomplete { rank, chunk, step });
        let is_piece_of = |chunk| value.round as usize == at.round && value.chunk == chunk;
        match expected {
            ChunkResult::Untouched => Ok(()),
            ChunkResult::Copy { rank: owner, chunk }
                if is_piece_of(chunk) && value.term == owner =>
            {
                Ok(())
            }
            ChunkResult::Sum(contribution) if is_piece_of(contribution) => {
                let (rounds, slices) = (self.shape.rounds(rank), self.shape.most_slices(rank));
                let slice = (contribution as usize * rounds + at.round) * slices + at.slice;
                if proven.len() <= slice {
                    proven.resize(slice + 1, None);
                }
                match proven[slice] {
                    Some(right) if right.term == value.term => return Ok(()),
                    Some(_) if self.collective == Collective::Barrier => self.report.exact = false,
                    Some(right) => {
                        self.check_sum(rank, chunk, value.term, step)?;
                        return Err(Violation::Differs { rank, other: right.rank, chunk });
                    }
                    None => proven[slice] = Some(RightResult { rank, term: value.term }),
                }
                self.report.rank_order &=
                    self.terms.rank_range(value.term) == Some(&(0..self.size()));
                self.check_sum(rank, chunk, value.term, step)
            }
            ChunkResult::Prefix { ranks, chunk: contribution } if is_piece_of(contribution) => {
                self.check_prefix(rank, chunk, value.term, ranks, step)
            }
            ChunkResult::Copy { .. } | ChunkResult::Sum(_) | ChunkResult::Prefix { .. } => {
                incomplete
            }
        }
    }

    fn size(&self) -> u32 {
        self.schedules.len() as u32
    }

    fn check_sum(
        &mut self,
        rank: u32,
        chunk: u32,
        term: u32,
        step: Option<u32>,
    ) -> Result<(), Violation> {
        let barrier = self.collective == Collective::Barrier;
        let enough = self.terms.weight(term) >= self.size();
        self.report.exact &= self.terms.is_full(term);
        let once = enough && (self.terms.is_full(term) || barrier);
        if once && self.terms.has_first(term, self.size()) {
            Ok(())
        } else if barrier || !enough {
            Err(Violation::Incomplete { rank, chunk, step })
        } else {
            Err(Violation::Twice { rank, chunk, step })
        }
    }

    /// Checks the fold of the first `ranks`: each once, and in order.
    fn check_prefix(
        &self,
        rank: u32,
        chunk: u32,
        term: u32,
        ranks: u32,
        step: Option<u32>,
    ) -> Result<(), Violation> {
        if self.terms.rank_range(term) == Some(&(0..ranks)) {
            Ok(())
        } else if self.terms.weight(term) < ranks {
            Err(Violation::Incomplete { rank, chunk, step })
        } else if self.terms.has_first(term, ranks) && self.terms.weight(term) == ranks {
            Err(Violation::Disordered { rank, chunk, step })
        } else {
            Err(Violation::Twice { rank, chunk, step })
        }
    }
}

impl Work for Contents<'_> {
    type Slot = Message;

    fn slice(
        &mut self,
        at: &Cursor,
        step: &Step,
        incoming: Option<&mut Message>,
        outgoing: Option<&mut Message>,
    ) -> Result<(), Violation> {
        let (rank, number) = (at.rank, at.step as u32);
        let Step { op, src, dst, .. } = *step;
        self.report.slices += 1;
        let is_one_memory = self.in_place
            && self.collective.in_place(rank, src) == self.collective.in_place(rank, dst);
        if op == Op::Copy && is_one_memory {
            return Ok(());
        }
        let like = self.schedules[rank as usize].like(src);
        let bytes = self.shape.bytes(rank, at.round, like, at.slice);
        let mut value = match incoming {
            Some(message) => {
                if (message.round, message.slice, message.bytes) != (at.round, at.slice, bytes) {
                    let (chunk, from, got) = (dst.chunk, step.from, message.chunk);
                    return Err(Violation::Order { rank, step: number, chunk, from, got });
                }
                message.value
            }
            None => self.read(at, src),
        };
        if op.reduces() {
            let mine = self.read(at, if op.receives() { src } else { dst });
            value = self.fold(step.order, value, mine);
        }
        let averages = op.reduces() && !self.collective.is_prefix();
        if step.last != (averages && self.terms.is_full(value.term)) {
            return Err(Violation::Last { rank, step: number, chunk: dst.chunk });
        }
        if op.stores() {
            self.store(at, step, value)?;
        }
        if let Some(slot) = outgoing {
            let (round, slice) = (at.round, at.slice);
            *slot = Message { round, slice, bytes, chunk: dst.chunk, value };
            self.report.sent += 1;
        }
        Ok(())
    }
}
