//! The staged executor: ranks of one host hand blocks to each other through the stages of the
//! host's region, on any memory. It walks the phases of [`StagedCall`] and waits as they say.
//! Law: the fold is in rank order.

use std::ops::Range;

use super::direct::{LINE, RegionCall};
use super::region_wait::RegionWait;
use super::wait::{Halt, Wait};
use crate::health::Peers;
use crate::kernel::copy;
use crate::memory::{Buffer, HostRegion};
use crate::schedule::{Collective, Phase, Space, StageShape, StagedCall};

/// Makes the call over `buffer`, this rank's own.
///
/// # Errors
/// The peer and cause if a peer makes another call, is lost or misses the deadline, or if the call
/// is aborted.
pub(crate) fn run(
    call: &RegionCall<'_>,
    buffer: &Buffer<'_>,
    streaming: bool,
    region: &mut HostRegion,
    peers: &mut Peers,
    wait: &Wait<'_>,
) -> Result<(), Halt> {
    let RegionCall { collective, me, size, call_id, .. } = *call;
    let shape = region.shape();
    let cut = Cut::of(call, shape.block);
    region.make_room(cut.piece * cut.pieces).map_err(Halt::no_memory)?;
    let first = region.begin(cut.blocks);
    let staged = StagedCall {
        collective,
        size,
        me,
        first,
        blocks: cut.blocks,
        depth: shape.depth as u64,
        is_single_copy: false,
    };
    let region = &*region;
    let mut waits = RegionWait { region, peers, wait, call_id, first };
    let walk = Walk { call, cut, buffer, staged, streaming, region };
    for (phase, block) in staged.steps() {
        waits.record(phase);
        if phase == Phase::Fold && block == first {
            if waits_for_all(collective) {
                waits.until_all_begin()?;
            } else {
                waits.compare_with_published(|peer| staged.reads_stage(me, peer))?;
            }
        }
        for peer in waits.others() {
            // Each result is copied out as soon as it is there.
            for need in staged.needs((phase, block), peer, region.finished()).into_iter().flatten()
            {
                waits.until(peer, need)?;
            }
            if phase == Phase::CopyOut && staged.reads_result(me, peer) {
                walk.copy_out(peer, block);
            }
        }
        match phase {
            Phase::CopyIn => {
                walk.copy_in(block);
                region.publish_block(block, call_id);
            }
            Phase::Fold => {
                walk.fold_or_fetch(block);
                region.publish_folded(block + 1);
            }
            Phase::CopyOut => region.publish_copied_out(block + 1),
        }
    }
    Ok(())
}

/// True if each rank reads something of every other.
const fn waits_for_all(collective: Collective) -> bool {
    collective.root().is_none()
}

/// How a call is cut into blocks.
#[derive(Clone, Copy)]
struct Cut {
    blocks: u64,
    /// Bytes of a rank's chunk, or of the whole buffer where there are no chunks.
    chunk: usize,
    /// Bytes of the chunk in each block but the last.
    piece: usize,
    /// Pieces in a slot: one for each rank, or one.
    pieces: usize,
}

impl Cut {
    fn of(call: &RegionCall<'_>, block: usize) -> Self {
        let [pieces, _] = call.collective.shape(call.size as u32).map(|blocks| blocks as usize);
        let per_piece = block / pieces;
        let most = (per_piece - per_piece % call.element).max(call.element);
        let blocks = call.bytes.div_ceil(most).max(1);
        // All blocks are about as long.
        let granule = if LINE.is_multiple_of(call.element) { LINE } else { call.element };
        let piece = call.bytes.div_ceil(blocks).next_multiple_of(granule).min(most);
        let blocks = call.bytes.div_ceil(piece.max(1)).max(1);
        Self { blocks: blocks as u64, chunk: call.bytes, piece, pieces }
    }
}

struct Walk<'a> {
    call: &'a RegionCall<'a>,
    cut: Cut,
    buffer: &'a Buffer<'a>,
    staged: StagedCall,
    /// True if results are stored past the cache.
    streaming: bool,
    region: &'a HostRegion,
}

impl Walk<'_> {
    /// The bytes of a chunk that the block has.
    fn piece(&self, block: u64) -> Range<usize> {
        let start = (block - self.staged.first) as usize * self.cut.piece;
        start..(start + self.cut.piece).min(self.cut.chunk)
    }

    /// Bytes of a slot's payload.
    fn payload_len(&self, block: u64) -> usize {
        self.piece(block).len() * self.cut.pieces
    }

    /// True if the ranks fold parts of a piece.
    fn is_in_parts(&self) -> bool {
        matches!(self.call.collective, Collective::AllReduce | Collective::Reduce { .. })
    }

    /// The part of a piece of `len` bytes that this rank folds.
    fn my_part(&self, len: usize) -> Range<usize> {
        match self.staged.folds_whole() {
            true if self.keeps_result() => 0..len,
            true => 0..0,
            false => self.call.part_of(self.call.me, len),
        }
    }

    /// True if what this rank folds belongs into its own output: of a reduction with a root, at the
    /// root alone.
    fn keeps_result(&self) -> bool {
        self.call.collective.root().is_none_or(|root| root as usize == self.call.me)
    }

    /// Copies `range` of a space into this rank's slot, from byte `at` of the payload on.
    fn copy_to_slot(&self, block: u64, at: usize, range: Range<usize>, streams_in: bool) {
        let (start, len) = (range.start, self.payload_len(block));
        for part in self.buffer.pieces([Space::Input], range) {
            let to = at + part.start - start..at + part.end - start;
            let slot = self.region.my_slot(block, len, to).streaming(streams_in);
            copy(slot, None, self.buffer.src(Space::Input, part));
        }
    }

    /// A slot that nobody reads stays as it is, and says nothing about stores.
    fn copy_in(&self, block: u64) {
        let RegionCall { me, size, .. } = *self.call;
        if !(0..size).any(|rank| self.staged.reads_stage(rank, me)) {
            return;
        }
        self.region.fill_slot(self.cut.piece * self.cut.pieces, |streams_in| {
            self.copy_in_by(block, streams_in);
        });
    }

    fn copy_in_by(&self, block: u64, streams_in: bool) {
        let copy = |at, range| self.copy_to_slot(block, at, range, streams_in);
        let RegionCall { me, size, .. } = *self.call;
        let piece = self.piece(block);
        if self.is_in_parts() && !self.staged.folds_whole() {
            let mine = self.my_part(piece.len());
            for other in [0..mine.start, mine.end..piece.len()] {
                let range = piece.start + other.start..piece.start + other.end;
                copy(other.start, range);
            }
        } else if self.cut.pieces > 1 {
            let readers = (0..size).filter(|&rank| self.staged.reads_stage(rank, me));
            readers.for_each(|rank| copy(rank * piece.len(), self.of_chunk(rank, &piece)));
        } else {
            copy(0, self.own_piece(&piece));
        }
    }

    /// The piece of the chunk of `rank`, in a space that has a chunk of each.
    fn of_chunk(&self, rank: usize, piece: &Range<usize>) -> Range<usize> {
        let RegionCall { stride, total, .. } = *self.call;
        let at = |byte: usize| (rank * stride + byte).min(total);
        at(piece.start)..at(piece.end)
    }

    fn fold_or_fetch(&self, block: u64) {
        let piece = self.piece(block);
        if self.is_in_parts() {
            self.fold(block, self.my_part(piece.len()));
        } else if self.call.collective.reduces() {
            self.fold(block, 0..self.own_piece(&piece).len());
        } else {
            self.fetch_all(block, &piece);
        }
    }

    /// Copies what this rank gets of its own input and of all stages.
    fn fetch_all(&self, block: u64, piece: &Range<usize>) {
        let RegionCall { collective, me, size, .. } = *self.call;
        let [is_input_cut, is_output_cut] = collective.shape(2).map(|blocks| blocks > 1);
        let own = |is_cut| if is_cut { self.of_chunk(me, piece) } else { self.own_piece(piece) };
        if collective.block_move(me as u32, me as u32).is_some() {
            self.copy_own(own(is_input_cut), own(is_output_cut));
        }
        let from = if is_input_cut { me * piece.len() } else { 0 };
        for rank in (me + 1..size).chain(0..me) {
            if self.staged.reads_stage(me, rank) {
                let to = if is_output_cut { self.of_chunk(rank, piece) } else { piece.clone() };
                self.fetch(rank, block, from, to);
            }
        }
    }

    /// The piece of this rank's chunk, in a space that has this chunk alone.
    fn own_piece(&self, piece: &Range<usize>) -> Range<usize> {
        piece.start..piece.start + self.of_chunk(self.call.me, piece).len()
    }

    /// Copies this rank's own data from input to output, unless it is there.
    fn copy_own(&self, from: Range<usize>, to: Range<usize>) {
        let offset = to.start;
        let start = from.start;
        for part in self.buffer.pieces([Space::Input], from) {
            let to = offset + part.start - start..offset + part.end - start;
            let mine = self.buffer.src(Space::Input, part);
            let mut place = self.buffer.dst(Space::Output, to).streaming(self.streaming);
            if mine.ptr() != place.ptr().cast_const() {
                copy(place, None, mine);
            }
        }
    }

    /// Copies the slot of `rank` from byte `at` of the payload on to the output at `to`.
    fn fetch(&self, rank: usize, block: u64, at: usize, to: Range<usize>) {
        let (start, len) = (to.start, self.payload_len(block));
        for part in self.buffer.pieces([Space::Output], to) {
            let from = at + part.start - start..at + part.end - start;
            let out = self.buffer.dst(Space::Output, part).streaming(self.streaming);
            copy(out, None, self.region.slot(rank, block, len, from));
        }
    }

    /// Copies what `peer` folded of the block to the output.
    fn copy_out(&self, peer: usize, block: u64) {
        let piece = self.piece(block);
        let theirs = self.call.part_of(peer, piece.len());
        let to = piece.start + theirs.start..piece.start + theirs.end;
        let start = to.start;
        for part in self.buffer.pieces([Space::Output], to) {
            let from = part.start - start..part.end - start;
            let out = self.buffer.dst(Space::Output, part).streaming(self.streaming);
            copy(out, None, self.region.result(peer, block, self.call.share(piece.len()), from));
        }
    }

    /// Folds `part` of the piece, from all ranks in rank order.
    fn fold(&self, block: u64, part: Range<usize>) {
        // The views are arrays on the stack, so that a call allocates nothing.
        match self.call.size {
            0..=8 => self.fold_of_up_to::<8>(block, part),
            9..=64 => self.fold_of_up_to::<64>(block, part),
            _ => self.fold_of_up_to::<{ StageShape::MOST_RANKS }>(block, part),
        }
    }

    fn fold_of_up_to<const MAX: usize>(&self, block: u64, part: Range<usize>) {
        let RegionCall { me, size, kernel, is_last, .. } = *self.call;
        let (piece, len) = (self.piece(block), self.payload_len(block));
        // Where this rank's part begins in the slots, in its input and in its output.
        let (slot, input, output) = match self.is_in_parts() {
            true => (part.start, piece.start + part.start, piece.start + part.start),
            false => (me * piece.len(), self.of_chunk(me, &piece).start, piece.start),
        };
        let shift = |range: &Range<usize>, by: usize| range.start + by..range.end + by;
        let keeps = self.keeps_result();
        let shares = (0..size).any(|peer| self.staged.reads_result(peer, me));
        let mut from = 0;
        while from < part.len() {
            let left = part.len() - from;
            let run = self.buffer.contiguous_len(Space::Input, input + from, left);
            let run = if keeps {
                self.buffer.contiguous_len(Space::Output, output + from, run)
            } else {
                run
            };
            let range = from..from + run;
            let mut sources = [self.buffer.src(Space::Input, shift(&range, input)); MAX];
            for rank in (0..size).filter(|&rank| rank != me) {
                sources[rank] = self.region.slot(rank, block, len, shift(&range, slot));
            }
            let own = || {
                let out = self.buffer.dst(Space::Output, shift(&range, output));
                out.streaming(self.streaming)
            };
            let shared = || {
                let (share, streams_out) = (self.call.share(piece.len()), self.region.streams(run));
                self.region.my_result(block, share, range.clone()).streaming(streams_out)
            };
            let sources = &sources[..size];
            match (keeps, shares) {
                (true, true) => kernel.fold(is_last, &mut [own(), shared()], sources),
                (true, false) => kernel.fold(is_last, &mut [own()], sources),
                _ => kernel.fold(is_last, &mut [shared()], sources),
            }
            from += run;
        }
    }
}
