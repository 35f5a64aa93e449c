//! A call around a ring of devices, each of which reaches the one before it: a rank waits for the
//! word that something lies ready there, fetches and reduces it in one kernel, and says so to the
//! rank after it. May touch: board, form, hop, launch, names, together, schedule.
//! Law: as `together`'s; a rank's words are set by the rank before it, but for the last, that the
//! rank after has fetched all, and taken back by itself.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::control_block::At;
use super::kernel_names::Wanted;
use super::launch::Table;
use super::peer_executor::{Begun, Call, Together};
use crate::device::algorithm::{Form, Move};
use crate::device::ring_pull::{Hop, Hops, Work};
use crate::element::ReduceOp;
use crate::error::Error;
use crate::schedule::{Collective, Place, Ring, Space};

/// The ring, and what it makes of collectives: this rank's hops, and those of the rank after it.
#[derive(Debug)]
pub(crate) struct Around {
    ring: Ring,
    me: u32,
    known: Vec<(Collective, Arc<[Hops; 2]>)>,
}

impl Around {
    pub(crate) fn new(ring: Ring, me: usize) -> Self {
        Self { ring, me: me as u32, known: Vec::new() }
    }

    /// The ranks before and after this one.
    pub(crate) fn neighbours(&self) -> [usize; 2] {
        [-1, 1].map(|hops| self.ring.after(self.me, hops) as usize)
    }

    fn hops(&mut self, collective: Collective) -> Arc<[Hops; 2]> {
        if let Some((_, hops)) = self.known.iter().find(|(known, _)| *known == collective) {
            return Arc::clone(hops);
        }
        let of = |hops| collective.schedule(&self.ring, self.ring.after(self.me, hops));
        let [before, mine, after] = [of(-1), of(0), of(1)];
        let hops = [Hops::new(&before, &mine), Hops::new(&mine, &after)];
        let hops = Arc::new(hops.map(Option::unwrap_or_default));
        self.known.push((collective, Arc::clone(&hops)));
        hops
    }

    /// What kernels a reduction takes.
    pub(super) fn wanted(whole: Wanted) -> impl Iterator<Item = Wanted> {
        [(false, false), (true, false), (false, true)]
            .into_iter()
            .map(move |(is_sum, last)| step(whole, is_sum, last))
    }
}

/// What a step does of a reduction: to a contribution or to what is reduced so far.
fn step(whole: Wanted, is_partial: bool, last: bool) -> Wanted {
    match whole {
        Wanted::Plain(ReduceOp::Avg) if !last => Wanted::Plain(ReduceOp::Sum),
        Wanted::PreMulSum if is_partial => Wanted::PreMulStep,
        other => other,
    }
}

/// Into how many pieces a chunk is cut that goes all the way alone, so that the ranks' work
/// overlaps.
fn pieces(form: &Form) -> usize {
    if matches!(form.collective, Collective::Broadcast { .. }) { form.size } else { 1 }
}

/// Where a piece of a chunk lies in its memory.
fn lies(form: &Form, place: Place, piece: usize) -> (usize, usize) {
    let chunk = place.chunk as usize;
    let range = match (form.collective, place.space) {
        (Collective::AllReduce, _) => form.cut(form.size, chunk),
        (Collective::AllGather, Space::Output) => chunk * form.block..(chunk + 1) * form.block,
        (Collective::AllGather, _) => 0..form.block,
        _ => form.cut(pieces(form), piece),
    };
    (range.start, range.len())
}

/// The number of a piece's word, and of its place in the list of moves.
fn number(form: &Form, hop: usize, piece: usize) -> usize {
    hop * pieces(form) + piece
}

/// What is copied in a hop.
fn moved(form: &Form, hop: &Hop, piece: usize) -> Move {
    let (from, bytes) = lies(form, hop.from, piece);
    let (to, _) = lies(form, Place::output(hop.to), piece);
    Move { from, to, bytes }
}

/// Of two buffers, that which has a place.
fn whose(place: Place, [send, recv]: [CUdeviceptr; 2]) -> CUdeviceptr {
    if place.space == Space::Input { send } else { recv }
}

/// The hops that only copy, with their numbers.
fn copies(hops: &Hops) -> impl Iterator<Item = (usize, &Hop)> {
    hops.hops.iter().enumerate().filter(|(_, hop)| hop.work == Work::Copy)
}

impl Together {
    /// Tells the rank after this one where the buffers are, and what of them lies ready. Does what
    /// this rank gives lie where it wants it already?
    pub(super) fn begin_around(
        &mut self,
        call: &Call,
        place: usize,
        buffers: &impl Fn(usize) -> [CUdeviceptr; 2],
    ) -> bool {
        let Some(around) = &mut self.around else { return true };
        let ([_, after], hops) = (around.neighbours(), around.hops(call.form.collective));
        let boards = &self.guard.watch.boards;
        let (mine, behind) = (At { rank: boards.me, place }, At { rank: after, place });
        let ([own, seen], form) = ([boards.me, after].map(buffers), &call.form);
        boards.put_buffers(mine, own);
        boards.put_pairs(mine, own);
        boards.put_pairs(behind, seen);
        let [my, its] = &*hops;
        let mut lies = true;
        for piece in 0..pieces(form) {
            for (at, hop) in copies(my) {
                let (index, moved) = (number(form, at, piece), moved(form, hop, piece));
                boards.put_target(mine, index, own[1], moved);
                if hop.fetches.is_none() {
                    let from = whose(hop.from, own);
                    boards.put_source(mine, index, from, moved);
                    lies = from + moved.from as u64 == own[1] + moved.to as u64;
                }
            }
            for (at, hop) in copies(its).filter(|(_, hop)| hop.fetches.is_some()) {
                let index = number(form, at, piece);
                boards.put_source(behind, index, whose(hop.from, seen), moved(form, hop, piece));
            }
            for &ready in &my.ready {
                self.ops.set(boards.step(behind, number(form, ready, piece)), 1);
            }
        }
        lies
    }

    /// Puts this rank's part on the stream, and that it waits until its buffers were read.
    pub(super) fn put_around(&mut self, stream: CUstream, begun: &Begun) -> Result<(), Error> {
        let &Begun { call, place, lies: own_lies, .. } = begun;
        let Some(around) = &mut self.around else { return Ok(()) };
        let ([before, after], hops) = (around.neighbours(), around.hops(call.form.collective));
        let watch = Arc::clone(&self.guard.watch);
        let (boards, form) = (&watch.boards, &call.form);
        let at = |rank| At { rank, place };
        let mine = at(boards.me);
        for piece in 0..pieces(form) {
            for (index, hop) in hops[0].hops.iter().enumerate() {
                if hop.fetches.is_none() && own_lies {
                    continue;
                }
                if let Some(fetched) = hop.fetches {
                    let word = boards.step(mine, number(form, fetched, piece));
                    self.ops.wait(word, 1);
                    self.ops.set(word, 0);
                }
                self.ops.run(stream)?;
                self.put_hop(stream, &call, mine, (index, hop, piece))?;
                self.ops.set(boards.works(mine), 0);
                if let Some(given) = hop.gives {
                    self.ops.set(boards.step(at(after), number(form, given, piece)), 1);
                }
            }
        }
        // Nobody takes back what is said of nothing, and who fetches nothing waits for nobody: in a
        // graph that is launched again it would say it twice, and be heard once.
        if hops[0].fetch() {
            self.ops.set(boards.fetched(at(before)), 1);
        }
        self.put_wait(stream, &call, place)
    }

    /// Does the rank after this one fetch anything?
    pub(super) fn is_fetched(&mut self, call: &Call) -> bool {
        let hops = self.around.as_mut().map(|around| around.hops(call.form.collective));
        hops.is_some_and(|hops| hops[1].fetch())
    }

    fn put_hop(
        &mut self,
        stream: CUstream,
        call: &Call,
        mine: At,
        (index, hop, piece): (usize, &Hop, usize),
    ) -> Result<(), Error> {
        let form = &call.form;
        let Move { from, to, bytes } = moved(form, hop, piece);
        if bytes == 0 {
            return Ok(());
        }
        let (Work::Reduce { last }, Some((_, whole, _))) = (hop.work, call.reduction) else {
            return self.put_moves(stream, mine, [number(form, index, piece), 1], bytes);
        };
        let boards = &self.guard.watch.boards;
        let is_partial = hop.from.space == Space::Output;
        let table = |at, len, offset: usize| Table { at, len, offset: offset as u64 };
        let tables = [
            table(boards.pair(mine, is_partial), 2, from),
            table(boards.recvs(mine, boards.me), 1, to),
        ];
        self.put_fold(stream, call, mine, (step(whole, is_partial, last), tables, bytes))
    }
}
