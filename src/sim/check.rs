//! The laws: what a collective starts from and must end with, and a walk that follows every
//! contribution on its way. May touch: schedule. Law: `check` says yes only if all seven hold.
//!
//! Contents are terms: a rank's own contribution, or a fold of two terms, each term stored once,
//! so that equal numbers mean equal expressions: there is nothing to be unlucky with.

use super::network::{At, Shape, Work, walk};
use super::violation::Violation;
use crate::schedule::reduce_scatter;
use crate::schedule::{Ring, Schedule, Step, all_gather, all_reduce, barrier, broadcast};

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Everybody gets every chunk, reduced over all ranks.
    AllReduce,
    /// Rank r gets chunk r, reduced over all ranks.
    ReduceScatter,
    /// Everybody gets chunk r from rank r.
    AllGather,
    /// Everybody gets every chunk from one rank.
    Broadcast {
        /// That rank.
        root: u32,
    },
    /// Nobody is done before everybody has started: an all-reduce whose result nobody looks at.
    Barrier,
}

/// What a rank must end with in a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// What it was: nobody asked for it.
    Untouched,
    /// The fold of everybody's contribution.
    Sum,
    /// What this rank had.
    Copy(u32),
}

impl Collective {
    /// The ring's schedules for it, one per rank.
    #[must_use]
    pub fn schedules(self, ring: &Ring) -> Vec<Schedule> {
        let schedule = |me| match self {
            Self::AllReduce => all_reduce(ring, me),
            Self::ReduceScatter => reduce_scatter(ring, me),
            Self::AllGather => all_gather(ring, me),
            Self::Broadcast { root } => broadcast(ring, me, root),
            Self::Barrier => barrier(ring, me),
        };
        (0..ring.size()).map(schedule).collect()
    }

    /// Does `rank` have something to give for `chunk`?
    fn gives(self, rank: u32, chunk: u32) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::Barrier => true,
            Self::AllGather => rank == chunk,
            Self::Broadcast { root } => rank == root,
        }
    }

    fn expects(self, rank: u32, chunk: u32) -> Expected {
        match self {
            Self::AllReduce | Self::Barrier => Expected::Sum,
            Self::ReduceScatter if rank == chunk => Expected::Sum,
            Self::ReduceScatter => Expected::Untouched,
            Self::AllGather => Expected::Copy(chunk),
            Self::Broadcast { root } => Expected::Copy(root),
        }
    }

    /// The most chunks that a rank of `size` may send, and how many all send together: per rank
    /// 2(n-1)/n of the buffer for all-reduce, (n-1)/n for its halves, once the buffer for
    /// broadcast; a barrier's token goes round twice, but for its last hop.
    fn volume(self, size: u64, chunks: u64) -> (u64, u64) {
        let total = (size - 1) * chunks;
        match self {
            Self::AllReduce => (2 * total / size, 2 * total),
            Self::ReduceScatter | Self::AllGather => (total / size, total),
            Self::Broadcast { .. } => (chunks, total),
            Self::Barrier => (2 * chunks, 2 * total),
        }
    }
}

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

/// Terms by number: rank r's own contribution is r, what was in a buffer before is `garbage`.
struct Terms {
    size: u32,
    all: Vec<Term>,
}

struct Term {
    /// How many contributions it has, the same one counted as often as it is in there.
    weight: u32,
    /// For a fold: what came in, and what it met there.
    of: Option<(u32, u32)>,
    /// The latest fold in which this term came in, and the fold before it of the same incoming
    /// term: a list that rarely has a second member.
    latest: Option<u32>,
    before: Option<u32>,
}

impl Terms {
    fn new(size: u32) -> Self {
        let leaf = |weight| Term { weight, of: None, latest: None, before: None };
        let all = (0..size).map(|_| leaf(1)).chain([leaf(0)]).collect();
        Self { size, all }
    }

    fn garbage(&self) -> u32 {
        self.size
    }

    fn fold(&mut self, incoming: u32, mine: u32) -> u32 {
        let before = self.all[incoming as usize].latest;
        let mut known = before;
        while let Some(fold) = known {
            let term = &self.all[fold as usize];
            if term.of == Some((incoming, mine)) {
                return fold;
            }
            known = term.before;
        }
        let new = self.all.len() as u32;
        let weights = [incoming, mine].map(|term| self.all[term as usize].weight);
        let weight = weights[0].saturating_add(weights[1]);
        self.all.push(Term { weight, of: Some((incoming, mine)), latest: None, before });
        self.all[incoming as usize].latest = Some(new);
        new
    }

    /// As many contributions as there are ranks.
    fn full(&self, term: u32) -> bool {
        self.all[term as usize].weight == self.size
    }

    /// For a full term: every contribution, hence each once.
    fn has_all(&self, term: u32) -> bool {
        let mut seen = vec![false; self.size as usize];
        let mut todo = vec![term];
        while let Some(term) = todo.pop() {
            if let Some(seen) = seen.get_mut(term as usize) {
                *seen = true;
            } else if let Some((incoming, mine)) = self.all[term as usize].of {
                todo.extend([incoming, mine]);
            }
        }
        seen.iter().all(|&seen| seen)
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
        if self.terms.all[term as usize].weight < self.size {
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
