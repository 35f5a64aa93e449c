//! Direct calls around a ring of devices, each of which accesses the memory of the one before it. A
//! rank waits for its predecessor's ready word, fetches and reduces a chunk in one kernel, and sets
//! the ready word of its successor.
//! Law: the predecessor sets a rank's ring words and the rank clears them, except the all-fetched
//! word, which the successor sets after it has fetched everything.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::control_block::SlotRef;
use super::kernel_names::KernelReduction;
use super::launch::PointerTable;
use super::peer_executor::{PeerCall, PeerExecutor, StartedCall};
use crate::device::algorithm::{DeviceAlgorithm, Move};
use crate::device::ring_pull::{PullSchedule, PullStep, PullWork};
use crate::element::ReduceOp;
use crate::error::Error;
use crate::schedule::{Collective, Place, Ring, Space};

/// The ring, and for each collective the pull schedules of this rank and of its successor.
#[derive(Debug)]
pub(crate) struct RingCalls {
    ring: Ring,
    me: u32,
    schedules: Vec<(Collective, Arc<[PullSchedule; 2]>)>,
}

impl RingCalls {
    pub(crate) fn new(ring: Ring, me: usize) -> Self {
        Self { ring, me: me as u32, schedules: Vec::new() }
    }

    /// The predecessor and the successor.
    pub(crate) fn neighbours(&self) -> [usize; 2] {
        [-1, 1].map(|distance| self.ring.after(self.me, distance) as usize)
    }

    fn pulls(&mut self, collective: Collective) -> Arc<[PullSchedule; 2]> {
        if let Some((_, pulls)) = self.schedules.iter().find(|(made, _)| *made == collective) {
            return Arc::clone(pulls);
        }
        let of = |distance| collective.schedule(&self.ring, self.ring.after(self.me, distance));
        let [before, mine, after] = [of(-1), of(0), of(1)];
        let pulls = [PullSchedule::new(&before, &mine), PullSchedule::new(&mine, &after)];
        let pulls = Arc::new(pulls.map(Option::unwrap_or_default));
        self.schedules.push((collective, Arc::clone(&pulls)));
        pulls
    }

    /// The reductions of the kernels that the steps of a collective need.
    pub(super) fn step_reductions(whole: KernelReduction) -> impl Iterator<Item = KernelReduction> {
        [(false, false), (true, false), (false, true)]
            .into_iter()
            .map(move |(is_partial, last)| step_reduction(whole, is_partial, last))
    }
}

/// The reduction of one step, whose source is a contribution, or a partial result if `is_partial`.
fn step_reduction(whole: KernelReduction, is_partial: bool, last: bool) -> KernelReduction {
    match whole {
        KernelReduction::Plain(ReduceOp::Avg) if !last => KernelReduction::Plain(ReduceOp::Sum),
        KernelReduction::PreMulSum if is_partial => KernelReduction::PreMulStep,
        other => other,
    }
}

/// The number of pieces of a chunk. A broadcast has one chunk, which is cut so that the ranks' work
/// overlaps.
fn pieces_per_chunk(algorithm: &DeviceAlgorithm) -> usize {
    if matches!(algorithm.collective, Collective::Broadcast { .. }) { algorithm.size } else { 1 }
}

/// The byte offset and the length of a piece of a chunk in its buffer.
fn piece_range(algorithm: &DeviceAlgorithm, place: Place, piece: usize) -> (usize, usize) {
    let chunk = place.chunk as usize;
    let range = match (algorithm.collective, place.space) {
        (Collective::AllReduce, _) => algorithm.range_of_part(algorithm.size, chunk),
        (Collective::AllGather, Space::Output) => {
            chunk * algorithm.block..(chunk + 1) * algorithm.block
        }
        (Collective::AllGather, _) => 0..algorithm.block,
        _ => algorithm.range_of_part(pieces_per_chunk(algorithm), piece),
    };
    (range.start, range.len())
}

/// The index of a piece of an item: of a handed-on chunk among the ring words, or of a step in the
/// list of moves.
fn piece_index(algorithm: &DeviceAlgorithm, item: usize, piece: usize) -> usize {
    item * pieces_per_chunk(algorithm) + piece
}

/// The copy that a step makes.
fn piece_move(algorithm: &DeviceAlgorithm, step: &PullStep, piece: usize) -> Move {
    let (from, bytes) = piece_range(algorithm, step.from, piece);
    let (to, _) = piece_range(algorithm, Place::output(step.to), piece);
    Move { from, to, bytes }
}

/// The buffer that has a place.
fn buffer_of(place: Place, [send, recv]: [CUdeviceptr; 2]) -> CUdeviceptr {
    if place.space == Space::Input { send } else { recv }
}

/// The steps that only copy, with their indices.
fn copy_steps(pulls: &PullSchedule) -> impl Iterator<Item = (usize, &PullStep)> {
    pulls.steps.iter().enumerate().filter(|(_, step)| step.work == PullWork::Copy)
}

impl PeerExecutor {
    /// Tells the successor the addresses of this rank's buffers and the chunks that are ready; true
    /// if this rank's own contribution already lies in its place of the receive buffer.
    pub(super) fn begin_ring(
        &mut self,
        call: &PeerCall,
        slot: usize,
        buffers: &impl Fn(usize) -> [CUdeviceptr; 2],
    ) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        let ([_, after], pulls) = (ring.neighbours(), ring.pulls(call.algorithm.collective));
        let blocks = &self.watchdog.shared.blocks;
        let (mine, successor) = (blocks.own(slot), SlotRef { rank: after, slot });
        let ([own, seen], algorithm) = ([blocks.me, after].map(buffers), &call.algorithm);
        blocks.write_buffers(mine, own);
        blocks.write_operand_pairs(mine, own);
        blocks.write_operand_pairs(successor, seen);
        let [my, its] = &*pulls;
        let mut is_in_position = true;
        for piece in 0..pieces_per_chunk(algorithm) {
            for (at, step) in copy_steps(my) {
                let (index, moved) =
                    (piece_index(algorithm, at, piece), piece_move(algorithm, step, piece));
                blocks.write_move_target(mine, index, own[1], moved);
                if step.fetches.is_none() {
                    let from = buffer_of(step.from, own);
                    blocks.write_move_source(mine, index, from, moved);
                    is_in_position = from + moved.from as u64 == own[1] + moved.to as u64;
                }
            }
            for (at, step) in copy_steps(its).filter(|(_, step)| step.fetches.is_some()) {
                let (index, moved) =
                    (piece_index(algorithm, at, piece), piece_move(algorithm, step, piece));
                blocks.write_move_source(successor, index, buffer_of(step.from, seen), moved);
            }
            for &ready in &my.ready {
                self.ops
                    .write(blocks.ring_word(successor, piece_index(algorithm, ready, piece)), 1);
            }
        }
        is_in_position
    }

    /// Enqueues this rank's steps, and the wait until the successor has fetched everything.
    pub(super) fn enqueue_ring(
        &mut self,
        stream: CUstream,
        started: &StartedCall,
    ) -> Result<(), Error> {
        let &StartedCall { call, slot, is_in_position, .. } = started;
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let ([before, after], pulls) = (ring.neighbours(), ring.pulls(call.algorithm.collective));
        let watchdog = Arc::clone(&self.watchdog.shared);
        let (blocks, algorithm) = (&watchdog.blocks, &call.algorithm);
        let at = |rank| SlotRef { rank, slot };
        let mine = at(blocks.me);
        for piece in 0..pieces_per_chunk(algorithm) {
            for (index, step) in pulls[0].steps.iter().enumerate() {
                if step.fetches.is_none() && is_in_position {
                    continue;
                }
                if let Some(fetched) = step.fetches {
                    let word = blocks.ring_word(mine, piece_index(algorithm, fetched, piece));
                    self.ops.wait(word, 1);
                    self.ops.write(word, 0);
                }
                self.ops.enqueue(stream)?;
                self.enqueue_pull(stream, &call, mine, (index, step, piece))?;
                self.ops.write(blocks.running_word(mine), 0);
                if let Some(given) = step.given_number {
                    let index = piece_index(algorithm, given, piece);
                    self.ops.write(blocks.ring_word(at(after), index), 1);
                }
            }
        }
        // A rank that fetches nothing does not say that it has fetched everything: its predecessor
        // does not wait for that word, and would not clear it before the next launch of a graph.
        if pulls[0].fetches_anything() {
            self.ops.write(blocks.all_fetched_word(at(before)), 1);
        }
        self.enqueue_wait(stream, &call, slot)
    }

    /// True if the successor fetches anything.
    pub(super) fn successor_fetches(&mut self, call: &PeerCall) -> bool {
        let pulls = self.ring.as_mut().map(|ring| ring.pulls(call.algorithm.collective));
        pulls.is_some_and(|pulls| pulls[1].fetches_anything())
    }

    fn enqueue_pull(
        &mut self,
        stream: CUstream,
        call: &PeerCall,
        mine: SlotRef,
        (index, step, piece): (usize, &PullStep, usize),
    ) -> Result<(), Error> {
        let algorithm = &call.algorithm;
        let Move { from, to, bytes } = piece_move(algorithm, step, piece);
        if bytes == 0 {
            return Ok(());
        }
        let (PullWork::Reduce { last }, Some((_, whole, _))) = (step.work, call.reduction) else {
            let index = piece_index(algorithm, index, piece);
            return self.enqueue_moves(stream, mine, [index, 1], bytes);
        };
        let blocks = &self.watchdog.shared.blocks;
        let is_partial = step.from.space == Space::Output;
        let table = |at, len, offset: usize| PointerTable { at, len, offset: offset as u64 };
        let tables = [
            table(blocks.operand_pair(mine, is_partial), 2, from),
            table(blocks.recv_table(mine, blocks.me), 1, to),
        ];
        let wanted = step_reduction(whole, is_partial, last);
        self.enqueue_fold(stream, call, mine, (wanted, tables, bytes))
    }
}
