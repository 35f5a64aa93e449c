//! The laws: a walk that follows every contribution on its way, and what must be true of the end.
//! May touch: schedule. Law: `check` says yes only if all seven hold.

use super::collective::Expected;
use super::network::{At, Work, walk};
use super::shape::Shape;
use super::terms::Terms;
use super::violation::Violation;
use crate::schedule::{Collective, Schedule, Step};

/// What a walk did that broke no law.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Slices walked, over all ranks and steps.
    pub slices: u64,
    /// How many of them were sent.
    pub sent: u64,
    /// How many of them were stored.
    pub stored: u64,
}

/// Walks `schedules`, one per rank, over links of `shape`, the ranks taking turns as `seed` says,
/// and holds them to the seven laws.
///
/// # Errors
/// The first law that is seen broken, and where.
pub fn check(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape,
    seed: u64,
) -> Result<Report, Violation> {
    well_formed(collective, schedules, shape)?;
    let mut contents = Contents::new(collective, schedules.len() as u32, shape);
    walk(schedules, shape, seed, &mut contents)?;
    contents.verdict()?;
    bytes(collective, schedules)?;
    Ok(contents.report)
}

fn well_formed(
    collective: Collective,
    schedules: &[Schedule],
    shape: &Shape,
) -> Result<(), Violation> {
    let size = schedules.len() as u32;
    let one_each = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
    for (rank, schedule) in (0..size).zip(schedules) {
        let fail = |step, what| Err(Violation::Malformed { rank, step, what });
        if schedule.chunks as usize != shape.chunks() {
            return fail(None, "another number of chunks than the shape has");
        }
        if one_each && schedule.chunks != size {
            return fail(None, "not one chunk per rank");
        }
        for (number, step) in (0..).zip(&schedule.steps) {
            let peer = |used: bool, peer: u32| peer < size && used == (peer != rank);
            if step.chunk >= schedule.chunks {
                return fail(Some(number), "no such chunk");
            }
            if !peer(step.op.receives(), step.from) || !peer(step.op.sends(), step.to) {
                return fail(Some(number), "no such peer");
            }
        }
    }
    Ok(())
}

/// Law 4, in chunks; each weighs what the partition gives it.
fn bytes(collective: Collective, schedules: &[Schedule]) -> Result<(), Violation> {
    let Some(first) = schedules.first() else { return Ok(()) };
    let (most, total) = collective.volume(schedules.len() as u64, u64::from(first.chunks));
    let mut sum = 0;
    for (rank, schedule) in (0..).zip(schedules) {
        let sent = schedule.steps.iter().filter(|step| step.op.sends()).count() as u64;
        if sent > most {
            return Err(Violation::Bytes { rank: Some(rank), sent, formula: most });
        }
        sum += sent;
    }
    if sum == total {
        Ok(())
    } else {
        Err(Violation::Bytes { rank: None, sent: sum, formula: total })
    }
}

/// What a slot holds: which slice, and its term.
#[derive(Clone, Copy, Default)]
struct Message {
    index: usize,
    chunk: u32,
    term: u32,
}

/// What a slice of somebody's buffer holds, and which step stored it, if one did.
#[derive(Clone, Copy)]
struct Cell {
    term: u32,
    stored: Option<u32>,
}

struct Contents<'a> {
    collective: Collective,
    size: u32,
    shape: &'a Shape,
    terms: Terms,
    /// By rank, then by slice.
    cells: Vec<Cell>,
    report: Report,
}

impl<'a> Contents<'a> {
    fn new(collective: Collective, size: u32, shape: &'a Shape) -> Self {
        let terms = Terms::new(size);
        let mut cells = Vec::with_capacity(size as usize * shape.slices());
        for rank in 0..size {
            for chunk in shape.chunk_of_slices() {
                let own = collective.gives(rank, chunk);
                cells.push(Cell { term: if own { rank } else { terms.garbage() }, stored: None });
            }
        }
        Self { collective, size, shape, terms, cells, report: Report::default() }
    }

    /// Must `rank` get this chunk from others?
    fn needs(&self, rank: u32, chunk: u32) -> bool {
        match self.collective.expects(rank, chunk) {
            Expected::Untouched => false,
            Expected::Sum => self.size > 1,
            Expected::Copy(owner) => owner != rank,
        }
    }

    /// Law 3, while it happens: of two stores, the one is to blame that is not the final value.
    fn store(&mut self, at: &At, chunk: u32, index: usize, term: u32) -> Result<(), Violation> {
        let (rank, step) = (at.rank, at.step as u32);
        let cell = self.cells[rank as usize * self.shape.slices() + index];
        if cell.stored.is_some() || !self.needs(rank, chunk) {
            let earlier = cell.stored.filter(|_| !self.terms.full(cell.term));
            return Err(Violation::NeedlessStore { rank, chunk, step: earlier.unwrap_or(step) });
        }
        self.cells[rank as usize * self.shape.slices() + index] = Cell { term, stored: Some(step) };
        self.report.stored += 1;
        Ok(())
    }

    /// Laws 1, 2 and 7, when all is done.
    fn verdict(&self) -> Result<(), Violation> {
        let slices = self.shape.slices();
        // Whose term is known to be right, by slice: equal ones need no second look.
        let mut proven: Vec<Option<(u32, u32)>> = vec![None; slices];
        for rank in 0..self.size {
            let cells = &self.cells[rank as usize * slices..];
            for ((chunk, cell), proven) in self.shape.chunk_of_slices().zip(cells).zip(&mut proven)
            {
                match (self.collective.expects(rank, chunk), *proven) {
                    (Expected::Untouched, _) => {}
                    (Expected::Copy(owner), _) if cell.term == owner => {}
                    (Expected::Copy(_), _) => {
                        return Err(Violation::Incomplete { rank, chunk, step: cell.stored });
                    }
                    (Expected::Sum, Some((_, known))) if cell.term == known => {}
                    (Expected::Sum, first) => {
                        self.prove(rank, chunk, cell)?;
                        if let Some((other, _)) = first {
                            return Err(Violation::Differs { rank, other, chunk });
                        }
                        *proven = Some((rank, cell.term));
                    }
                }
            }
        }
        Ok(())
    }

    fn prove(&self, rank: u32, chunk: u32, cell: &Cell) -> Result<(), Violation> {
        let Cell { term, stored: step } = *cell;
        if self.terms.weight(term) < self.size {
            Err(Violation::Incomplete { rank, chunk, step })
        } else if !self.terms.full(term) || !self.terms.has_all(term) {
            Err(Violation::Twice { rank, chunk, step })
        } else {
            Ok(())
        }
    }
}

impl Work for Contents<'_> {
    type Slot = Message;

    fn slice(
        &mut self,
        at: &At,
        step: &Step,
        incoming: Option<&mut Message>,
        outgoing: Option<&mut Message>,
    ) -> Result<(), Violation> {
        let (rank, number, chunk) = (at.rank, at.step as u32, step.chunk);
        let index = self.shape.index(at, step);
        let mine = self.cells[rank as usize * self.shape.slices() + index].term;
        let mut term = mine;
        if let Some(message) = incoming {
            if message.index != index {
                let (from, got) = (step.from, message.chunk);
                return Err(Violation::Order { rank, step: number, chunk, from, got });
            }
            term = message.term;
            if step.op.reduces() {
                term = self.terms.fold(term, mine);
            }
        }
        if step.last != (step.op.reduces() && self.terms.full(term)) {
            return Err(Violation::Last { rank, step: number, chunk });
        }
        if step.op.stores() {
            self.store(at, chunk, index, term)?;
        }
        if let Some(slot) = outgoing {
            *slot = Message { index, chunk, term };
            self.report.sent += 1;
        }
        self.report.slices += 1;
        Ok(())
    }
}
